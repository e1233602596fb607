"""EATA: entropy minimisation on test images that are reliable and not redundant.

With H(p) the entropy of a prediction and m the moving average of the predictions used so far, a step minimises the
mean of ``exp(E₀ − H(p)) · H(p)`` over the images with ``H(p) < E₀ = 0.4 · ln C`` (reliable) and
``|cos(p, m)| < ε`` (not redundant); the factor carries no gradient. Niu et al., "Efficient Test-Time Model Adaptation
without Forgetting", ICML 2022 (github.com/mr-eggplant/EATA); settings for vision transformers from the same authors'
github.com/mr-eggplant/SAR.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import check_number
from clip_tca.methods.base import Task
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import TowerMethod


class EATA(TowerMethod):
    """Entropy minimisation, weighted by certainty, on reliable and non-redundant images.

    Settings: SGD with momentum 0.9, one step for each batch, learning rate 0.001 for 64 images and proportional to the
    batch, E₀ = 0.4 ln C. The published ε is 0.4 for 10 classes and 0.05 for 1000; for other numbers of classes the
    power law through both is taken: a certain prediction has cosine 1/√C with an even average, so that with 7 classes
    0.05 would drop every image.
    """

    name: ClassVar[str] = "eata"
    summary: ClassVar[str] = "entropy minimisation on reliable, non-redundant images, weighted by certainty"
    changed: ClassVar[str] = (
        "No Fisher regulariser, which needs source data (so this is the authors' ETA), and a batch is predicted after "
        "its step instead of before."
    )
    ensemble: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        *,
        lr: float = 1e-3,
        steps: int = 1,
        margin: float = 0.4,
        redundancy: float | None = None,
        continual: bool = True,
        micro_batch: int | None = None,
    ) -> None:
        """Take over the model's normalisation weights.

        Args:
            task: Classifier and model.
            lr: Learning rate for a batch of 64 images; it grows in proportion.
            steps: Gradient steps for each batch.
            margin: E₀ as a share of ln C, the largest entropy there is.
            redundancy: ε, largest similarity to the moving average; by default by the number of classes.
            continual: Continue from the last batch instead of starting from the original weights.
            micro_batch: Images to back-propagate through at a time; None takes the whole batch.
        """
        check_number("margin", margin, 0, 1)
        check_number("redundancy", redundancy, also=None)
        classes = task.classifier.n_classes
        self.margin = margin
        self.redundancy = redundancy if redundancy is not None else 0.4 * (classes / 10) ** math.log(0.125, 100)
        self._limit = margin * math.log(classes)
        super().__init__(task, lr=lr, steps=steps, continual=continual, micro_batch=micro_batch)

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and no moving average."""
        super().reset()
        self.average: Tensor | None = None

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum 0.9."""
        return torch.optim.SGD(self.parameters, lr=self.lr, momentum=0.9)

    def adapt(self, batch: Tensor) -> None:
        """One weighted entropy step over the chosen images; no step if there are none."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * len(batch) / 64
        for _ in range(self.steps):
            with torch.no_grad():
                z = torch.cat([self.embed(part) for part in batch.split(self.micro_batch or len(batch))])
                chosen = self.choose(self.logits(z))
            if chosen.any():
                self.descend(batch, partial(self._loss, chosen), coupled=True)

    def _loss(self, chosen: Tensor, z: Tensor) -> Tensor:
        uncertainty = entropy(self.logits(z[chosen]))
        return ((self._limit - uncertainty.detach()).exp() * uncertainty).mean()

    def choose(self, logits: Tensor) -> Tensor:
        """Which images are reliable and not redundant ``(n,)``; they enter the moving average."""
        p = logits.softmax(dim=1)
        chosen = entropy(logits) < self._limit
        if self.average is not None:
            chosen &= functional.cosine_similarity(self.average[None], p, dim=1).abs() < self.redundancy
        if chosen.any():
            mean = p[chosen].mean(dim=0)
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        return chosen
