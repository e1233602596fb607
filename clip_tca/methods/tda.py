"""TDA: two small caches of test embeddings that correct the classifier.

The positive cache keeps for each predicted class its most certain embeddings k_j, with one-hot labels v_j; the negative
cache those of medium entropy, with a mask m_j of the classes that are possible for them. Every image first tries to
enter the caches and is then predicted:

    logits = g(z) + α⁺ Σ_j exp(−β⁺ (1 − z·k_j)) v_j − α⁻ Σ_j exp(−β⁻ (1 − z·k_j)) m_j

Karmanov et al., "Efficient Test-Time Adaptation of Vision-Language Models", CVPR 2024 (github.com/kdiAAA/TDA). That
code sets α⁺ and β⁺ for each data set; the defaults here are those of its ImageNet configuration (ImageNet-A has the
same; V and R: 1 and 8; Sketch: 2.363 and 7.45). What it calls normalised entropy is in nats over log₂ of the number of
classes, so it ends at ln 2 = 0.69; the thresholds are meant on that scale. For ImageNet-A, -V, -R and -Sketch the
original averages the most certain of 64 augmented views; here, as for its other data sets, an image has one embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Amount, Natural
from clip_tca.methods.base import EmbeddingMethod, directions
from clip_tca.methods.certain_images import Cache

ROWS_AT_ONCE = 256
"""Images compared at a time with the cache and with each other."""


@dataclass(kw_only=True, eq=False, repr=False)
class TDA(EmbeddingMethod):
    """A positive and a negative cache, filled image by image and carried from batch to batch.

    Args:
        positive_shots: Embeddings kept for each class; 0 turns the positive cache off.
        positive_alpha: Its weight α⁺.
        positive_beta: Its sharpness β⁺.
        negative_shots: Embeddings kept for each class; 0 turns the negative cache off.
        negative_alpha: Its weight α⁻.
        negative_beta: Its sharpness β⁻.
        entropy_low: Above this entropy (nats over log₂ of the number of classes) an image may enter it, …
        entropy_high: … and below this one.
        mask_low: Above this probability a class is possible, …
        mask_high: … and below this one.
    """

    name = "tda"
    summary = "corrects the logits by caches of certain and of doubtful test embeddings"
    updates = "two caches of embeddings"

    positive_shots: Natural = 3
    positive_alpha: Amount = 2.0
    positive_beta: Amount = 5.0
    negative_shots: Natural = 2
    negative_alpha: Amount = 0.117
    negative_beta: Amount = 1.0
    entropy_low: Amount = 0.2
    entropy_high: Amount = 0.5
    mask_low: Amount = 0.03
    mask_high: Amount = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("entropy", "mask"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            if low >= high:
                raise ValueError(f"{name}_low, {name}_high: {low!r}, {high!r}; the first must be below the second")

    def reset(self) -> None:
        """Empty both caches."""
        self.positive_, self.negative_ = Cache(self.positive_shots), Cache(self.negative_shots)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Each image in turn tries to enter the caches, and is predicted by them."""
        return torch.cat([self._block(part, join) for part in z.split(ROWS_AT_ONCE)])

    def _block(self, z: Tensor, enter: bool) -> Tensor:
        log_p = self.classifier.log_probabilities(z)
        p, predicted = log_p.exp(), log_p.argmax(dim=1)
        classes = predicted.tolist()
        entropies: list[float | None] = (-(p * log_p).sum(dim=1)).tolist() if enter else [None] * len(z)
        logits, keys = self.classifier.logits(z), directions(self.classifier, z)
        if self.positive_shots:
            one_hot = functional.one_hot(predicted, self.classifier.n_classes).to(z.dtype)
            logits += self.positive_alpha * self.positive_.visit(keys, one_hot, classes, entropies, self.positive_beta)
        if self.negative_shots:
            low, high = (
                bound * math.log2(self.classifier.n_classes) for bound in (self.entropy_low, self.entropy_high)
            )
            doubtful = [h if h is not None and low < h < high else None for h in entropies]
            mask = ((p > self.mask_low) & (p < self.mask_high)).to(z.dtype)
            logits -= self.negative_alpha * self.negative_.visit(keys, mask, classes, doubtful, self.negative_beta)
        return logits
