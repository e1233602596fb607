"""PLC: pseudo-labels, classifier only.

A step minimises the cross-entropy of the model's own predictions, −log p(ŷ) with ŷ = arg max p, over the images with
``p(ŷ) > 0.9``; only the last layer follows. For CLIP that layer is the text matrix: logits = scale · z · textᵀ. Lee,
"Pseudo-Label", ICML workshop 2013, as the baseline ``PLClf`` of Iwasawa and Matsuo, "Test-Time Classifier Adjustment
Module for Model-Agnostic Domain Generalization" (T3A), NeurIPS 2021 (github.com/matsuolab/T3A).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_flag, check_number, check_positive, check_whole
from clip_tca.core.tensors import check_rows, unit
from clip_tca.methods.base import Method, Task


class PLC(Method):
    """Cross-entropy with confident pseudo-labels; the text matrix follows, the image tower stays.

    Settings: Adam, learning rate 5e-5, one step for each batch, threshold 0.9. The rows of the matrix start as unit
    text embeddings and are not scaled back, as the original's last layer is not. As there, a batch without a
    confident image still takes the step that Adam's momentum has left.
    """

    name: ClassVar[str] = "plc"
    summary: ClassVar[str] = "cross-entropy with confident pseudo-labels, on the classifier alone"
    updates: ClassVar[str] = "text matrix"
    backpropagation: ClassVar[bool] = True
    sees: ClassVar[Literal["images", "embeddings"]] = "embeddings"
    changed: ClassVar[str] = (
        "The classifier is the text matrix times the fixed logit scale, without a bias, and a batch is predicted after "
        "its step instead of before."
    )

    def __init__(
        self, task: Task, *, lr: float = 5e-5, steps: int = 1, threshold: float = 0.9, continual: bool = True
    ) -> None:
        """Copy the text matrix.

        Args:
            task: Prompts; the mean of the templates is the classifier.
            lr: Learning rate.
            steps: Gradient steps for each batch.
            threshold: Probability above which a prediction is a label.
            continual: Go on from the last batch instead of starting anew.
        """
        check_positive("lr", lr)
        check_whole("steps", steps)
        check_number("threshold", threshold, 0, 1)
        check_flag("continual", continual)
        self.lr, self.steps, self.threshold, self.continual = lr, steps, threshold, continual
        self.classifier = ZeroShotClassifier(task.text, task.scale)
        self.reset()

    def reset(self) -> None:
        """The text matrix as it was, and a new optimiser."""
        with torch.inference_mode(False), torch.no_grad():
            self.text = self.classifier.text.clone()
        self.optimizer = torch.optim.Adam([self.text], lr=self.lr)

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt the text matrix to the batch, then predict it."""
        check_rows(batch, self.classifier.dim)
        if not self.continual:
            self.reset()
        with torch.inference_mode(False), torch.enable_grad():
            z = unit(batch.detach().clone()).to(self.text)
            self.text.requires_grad_(True)
            try:
                for _ in range(self.steps):
                    self._step(z)
            finally:
                self.text.requires_grad_(False)
        return self.predict(batch)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the batch with the text matrix as it is; the embeddings stay as they are."""
        check_rows(batch, self.classifier.dim)
        with torch.no_grad():
            z = unit(batch.detach()).to(self.text)
            return z.to(batch), self.logits(z).to(batch)

    def logits(self, z: Tensor) -> Tensor:
        """scale · z · textᵀ with the adapted text, ``(n, classes)``."""
        return self.classifier.scale * z @ self.text.T

    def _step(self, z: Tensor) -> None:
        logits = self.logits(z)
        confidence, label = logits.softmax(dim=1).max(dim=1)
        confident = confidence > self.threshold
        loss = functional.cross_entropy(logits[confident], label[confident], reduction="sum")
        (loss / confident.sum().clamp(min=1)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
