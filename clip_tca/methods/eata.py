"""EATA: entropy minimisation on test images that are reliable and not redundant.

With H(p) the entropy of a prediction and m the moving average of the predictions used so far, a step minimises the
mean of ``exp(E₀ − H(p)) · H(p)`` over the images with ``H(p) < E₀ = 0.4 · ln C`` (reliable) and
``|cos(p, m)| < ε`` (not redundant); the factor carries no gradient. Niu et al., "Efficient Test-Time Model Adaptation
without Forgetting", ICML 2022 (github.com/mr-eggplant/EATA); settings for vision transformers from the same authors'
github.com/mr-eggplant/SAR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Share, check_number
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import ScaledMethod


@dataclass(kw_only=True, eq=False, repr=False)
class EATA(ScaledMethod):
    """Entropy minimisation, weighted by certainty, on reliable and non-redundant images.

    The defaults are the published ones. ε is 0.4 for 10 classes and 0.05 for 1000; for other numbers of classes the
    power law through both is taken: a certain prediction has cosine 1/√C with an even average, so that with 7 classes
    0.05 would drop every image.

    Args:
        margin: E₀ as a share of ln C, the largest entropy there is.
        redundancy: ε, largest similarity to the moving average; by default by the number of classes.
    """

    name = "eata"
    summary = "entropy minimisation on reliable, non-redundant images, weighted by certainty"
    changed = (
        "No Fisher regulariser, which needs source data (so this is the authors' ETA), and a batch is predicted after "
        "its step instead of before."
    )

    margin: Share = 0.4
    redundancy: Annotated[float | None, partial(check_number, also=None)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        classes = self.task.classifier.n_classes
        if self.redundancy is None:
            self.redundancy = 0.4 * (classes / 10) ** math.log(0.125, 100)
        self._limit = self.margin * math.log(classes)

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and no moving average."""
        super().reset()
        self.average: Tensor | None = None

    def adapt(self, batch: Tensor) -> None:
        """One weighted entropy step over the chosen images; no step if there are none."""
        self.scale_rate(len(batch))
        for _ in range(self.steps):
            with torch.no_grad():
                chosen = self.choose(self.logits(self.embed_parts(batch)))
            if chosen.any():
                self.descend(batch, partial(self._loss, chosen))

    def _loss(self, chosen: Tensor, z: Tensor) -> Tensor:
        uncertainty = entropy(self.logits(z[chosen]))
        return ((self._limit - uncertainty.detach()).exp() * uncertainty).mean()

    def choose(self, logits: Tensor) -> Tensor:
        """Which images are reliable and not redundant ``(n,)``; they enter the moving average."""
        p = logits.softmax(dim=1)
        chosen = entropy(logits) < self._limit
        if self.average is not None:
            chosen &= functional.cosine_similarity(self.average[None], p, dim=1).abs() < cast(float, self.redundancy)
        if chosen.any():
            mean = p[chosen].mean(dim=0)
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        return chosen
