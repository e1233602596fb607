"""PLC: pseudo-labels, classifier only.

A step minimises the cross-entropy of the model's own predictions, −log p(ŷ) with ŷ = arg max p, over the images with
``p(ŷ) > 0.9``; only the class weights change, in logits = scale · z · rowsᵀ + bias (CLIP: text embeddings, no bias).
Lee, "Pseudo-Label", ICML workshop 2013, as the baseline ``PLClf`` of Iwasawa and Matsuo, "Test-Time Classifier
Adjustment Module for Model-Agnostic Domain Generalization" (T3A), NeurIPS 2021 (github.com/matsuolab/T3A).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Count, Flag, Positive, Share, check_fields
from clip_tca.core.tensors import check_rows
from clip_tca.methods.base import Method, Task, scaled_rows


@dataclass(kw_only=True, eq=False, repr=False)
class PLC(Method):
    """Cross-entropy with confident pseudo-labels; the class weights change, the image tower does not.

    Settings: Adam, learning rate 5e-5, one step for each batch, threshold 0.9. The rows start as unit text embeddings
    (of another classifier: as its weight over the mean length of its rows) and are not normalised again, as in the
    original. As there, a batch without a confident image still takes a step by Adam's momentum.

    Args:
        task: The classifier.
        lr: Learning rate.
        steps: Gradient steps for each batch.
        threshold: Probability above which a prediction is a label.
        continual: Continue from the last batch instead of starting from the original weights.
    """

    name = "plc"
    summary = "cross-entropy with confident pseudo-labels, on the classifier alone"
    updates = "class weights"
    backpropagation = True
    sees = "embeddings"
    changed = (
        "The class weights are multiplied by a fixed scale, the bias stays fixed, and a batch is predicted after its "
        "step instead of before."
    )

    task: Task = field(kw_only=False)
    lr: Positive = 5e-5
    steps: Count = 1
    threshold: Share = 0.9
    continual: Flag = True

    def __post_init__(self) -> None:
        check_fields(self)
        self.classifier = self.task.classifier
        self.reset()

    def reset(self) -> None:
        """Restore the class weights, with a new optimiser."""
        rows, self.scale = scaled_rows(self.classifier)
        with torch.inference_mode(False), torch.no_grad():
            self.rows, self.bias = rows.clone(), self.classifier.bias.clone().to(rows)
        self.optimizer = torch.optim.Adam([self.rows], lr=self.lr)

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt the class weights to the batch, then predict it."""
        check_rows(batch, self.classifier.dim)
        if not self.continual:
            self.reset()
        with torch.inference_mode(False), torch.enable_grad():
            z = self.classifier.prepared(batch.detach().clone()).to(self.rows)
            self.rows.requires_grad_(True)
            try:
                for _ in range(self.steps):
                    self._step(z)
            finally:
                self.rows.requires_grad_(False)
        return self.predict(batch)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the batch with the current class weights; the embeddings stay as they are."""
        check_rows(batch, self.classifier.dim)
        with torch.no_grad():
            z = self.classifier.prepared(batch.detach()).to(self.rows)
            return z.to(batch), self.logits(z).to(batch)

    def logits(self, z: Tensor) -> Tensor:
        """scale · z · rowsᵀ + bias with the adapted rows, ``(n, classes)``."""
        return self.scale * z @ self.rows.T + self.bias

    def _step(self, z: Tensor) -> None:
        logits = self.logits(z)
        confidence, label = logits.softmax(dim=1).max(dim=1)
        confident = confidence > self.threshold
        loss = functional.cross_entropy(logits[confident], label[confident], reduction="sum")
        (loss / confident.sum().clamp(min=1)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
