"""DOTA: Gaussians of the classes, estimated online with the zero-shot probabilities as weights.

Means start at ω in every dimension, covariances at σ² I, counts c_k at 1. Images are predicted, then join: with
zero-shot probabilities ŷ and sums over the images that join,

    μ_k ← (c_k μ_k + Σ_n ŷ_nk z_n) / (c_k + Σ_n ŷ_nk)
    Σ_k ← (c_k Σ_k + Σ_n ŷ_nk (z_n − μ_k)(z_n − μ_k)ᵀ) / (c_k + Σ_n ŷ_nk)        c_k ← c_k + Σ_n ŷ_nk

with the means before the update on the right. One covariance, the mean of all, serves every class:

    logits = g(z) + min(ρ c̄, η) · log N(z; μ_k, (1 − ε) Σ̄ + ε I)

Han, Yang, Wang, Li, Xu, Shou and Zhang, "DOTA: Distributional Test-Time Adaptation of Vision-Language Models", NeurIPS
2025 (arXiv 2409.19375; github.com/skylineeeeen/DOTA, MIT), with its ω = 0.001, σ² = 0.002, ε = 1e-4, and ρ = 0.005 and
η = 0.2 as in its ImageNet configuration; other data sets there have other values. Where text and program differ, this
is the program: the text starts c_k at 0 and updates before it predicts. The authors take one image at a time; here
``rows_at_once`` images share an inversion of the covariance. The views of an image are left out: it has one embedding.
The covariances need memory of classes · d² floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, Part, Positive, check_number
from clip_tca.methods.base import EmbeddingMethod, directions, discriminant


@dataclass(kw_only=True, eq=False, repr=False)
class DOTA(EmbeddingMethod):
    """Gaussians of all embeddings so far, carried from batch to batch.

    Args:
        mean_start: ω.
        variance_start: σ².
        shrinkage: ε.
        weight_growth: ρ, of the Gaussians' weight with the mean count of a class.
        largest_weight: η, where that growth ends.
        rows_at_once: Images that are predicted and then join together; the authors' 1 is slower.
    """

    name = "dota"
    summary = "adds Gaussians of the classes, estimated online with zero-shot probabilities as weights"
    updates = "class means and covariances"

    mean_start: Annotated[float, partial(check_number, low=-1, high=1)] = 0.001
    variance_start: Positive = 0.002
    shrinkage: Part = 1e-4
    weight_growth: Amount = 0.005
    largest_weight: Amount = 0.2
    rows_at_once: Count = 16

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Forget all images."""
        weight = self.classifier.weight
        c, d = weight.shape
        self.means_, self.counts_ = torch.full_like(weight, self.mean_start), weight.new_ones(c)
        start = self.variance_start * torch.eye(d, dtype=weight.dtype, device=weight.device)
        self.scatters_ = start.repeat(c, 1, 1)  # c_k Σ_k
        self._weigh()

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logits of g, and the Gaussians' with the weight that they have by now."""
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        added = []
        for rows, p in zip(u.split(self.rows_at_once), log_p.exp().split(self.rows_at_once), strict=True):
            weight = min(self.weight_growth * float(self.counts_.mean()), self.largest_weight)
            added.append(weight * (rows @ self.weights_.to(rows).T + self.bias_.to(rows)))
            if join:
                self._join(rows.to(self.means_), p.to(self.means_))
        return self.classifier.logits(z) + torch.cat(added)

    def _join(self, u: Tensor, p: Tensor) -> None:
        deviations = p.T.sqrt()[..., None] * (u - self.means_[:, None])
        self.scatters_.baddbmm_(deviations.transpose(1, 2), deviations)
        total = self.counts_ + p.sum(dim=0)
        self.means_ = (self.counts_[:, None] * self.means_ + p.T @ u) / total[:, None]
        self.counts_ = total
        self._weigh()

    def _weigh(self) -> None:
        """The Gaussians as a linear function of z."""
        c, d = self.means_.shape
        shrunk = ((1 - self.shrinkage) / c / self.counts_ @ self.scatters_.flatten(1)).view(d, d)
        shrunk.diagonal().add_(self.shrinkage)
        self.weights_, self.bias_ = discriminant(self.means_, torch.linalg.inv(shrunk))
