"""ADAPT: Gaussians from banks of confident images, with the zero-shot probabilities as prior; online form.

The bank B_k keeps the L images of predicted class k that have the highest confidence, with their zero-shot probability
ŷ_jk of that class. Classes have means μ_k, which start at the texts t_k, and share a covariance Σ:

    μ_k = α Σ_{j∈B_k} ŷ_jk x_j / Σ_{j∈B_k} ŷ_jk + (1 − α) t_k
    Σ = Σ_k Σ_{j∈B_k} (x_j − μ_k)(x_j − μ_k)ᵀ / N        Σ⁻¹ = d ((N − 1) Σ + tr(Σ) I)⁻¹

for N images in all banks. An image x_i, with zero-shot probabilities ŷ_i, is predicted by the logits

    log ŷ_ik + μ_kᵀ Σ⁻¹ x_i − ½ μ_kᵀ Σ⁻¹ μ_k + Σ_{j∈B_k} w_ij ŷ_jk

and is then offered to the bank of its class. A full bank drops its least confident image for it, if the new image is
more confident.

Zhang, Kim, Choi, Kim, Liu and Hong, "Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment",
NeurIPS 2025 (arXiv 2508.15568). The equations (8 to 10) are those of the authors' poster and slides. Their code has no
licence, and we did not read it. What poster and slides leave open is decided here:

* The confidence is the largest zero-shot probability, at the model's own logit scale. ŷ_jk is not rounded to 0 or 1.
* w_ij is the cosine x_i · x_j.
* α is constant. The printed α = Σ ŷ_jk / (Σ ŷ_jk + β) needs a β, which is not given; the poster varies α itself. Its
  0.9, and L = 16, are those of another project that uses ADAPT; the poster's curves are flat there.
* The mean of a class with an empty bank is its text. With fewer than 2 images in all banks, or no spread, the
  prediction is zero-shot.
* An image joins after its prediction. Algorithm 1 updates the banks first, but the authors' project page says that the
  current image is excluded from the updates.

The authors' prompts by a language model are left out, and so is the transductive form (Algorithm 2).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from clip_tca.core.checks import Count, Share
from clip_tca.core.tensors import double
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes

NO_SPREAD = 1e-12
"""Mean squared distance from the class means up to which the banks have no covariance."""


@dataclass(kw_only=True, eq=False, repr=False)
class ADAPT(EmbeddingMethod):
    """Gaussians of banks of confident images, updated image by image and carried from batch to batch.

    Args:
        shots: L, images kept for each class.
        mean_weight: α, of the images of a bank in the mean of its class.
    """

    name = "adapt-gda"
    summary = "Gaussians of banks of confident test images, with zero-shot as prior"
    updates = "banks of embeddings, class means and a covariance"

    shots: Count = 16
    mean_weight: Share = 0.9

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Empty the banks."""
        self.texts_ = double(prototypes(self.classifier))
        c, d = self.texts_.shape
        self.banks_: list[list[tuple[float, Tensor]]] = [[] for _ in range(c)]  # (ŷ_jk, x_j), the least confident first
        self.means_, self.sums_ = self.texts_.clone(), torch.zeros_like(self.texts_)  # μ_k and Σ_j ŷ_jk x_j
        self.scatter_ = self.texts_.new_zeros(d, d)  # N Σ
        self.weights_, self.bias_ = torch.zeros_like(self.texts_), self.texts_.new_zeros(c)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logarithm of the numerator of equation 8; each image in turn is predicted and then joins."""
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z).to(self.texts_)
        if not join:
            return (log_p + self._added(u).to(log_p)).to(z.dtype)
        added = []
        confidence, labels = log_p.exp().max(dim=1)
        for row, p, k in zip(u, confidence.tolist(), labels.tolist(), strict=True):
            added.append(self._added(row[None]))
            self._offer(row, p, k)
        return (log_p + torch.cat(added).to(log_p)).to(z.dtype)

    def _offer(self, row: Tensor, p: float, k: int) -> None:
        bank = self.banks_[k]
        if len(bank) == self.shots and p <= bank[0][0]:
            return
        self.scatter_ -= self._scatter(k)
        if len(bank) == self.shots:
            del bank[0]
        insort(bank, (p, row.clone()), key=itemgetter(0))
        weights = self.texts_.new_tensor([weight for weight, _ in bank])
        self.sums_[k] = weights @ torch.stack([kept for _, kept in bank])
        self.means_[k] = self.texts_[k].lerp(self.sums_[k] / weights.sum(), self.mean_weight)
        self.scatter_ += self._scatter(k)
        self._solve()

    def _scatter(self, k: int) -> Tensor:
        """Σ_{j∈B_k} (x_j − μ_k)(x_j − μ_k)ᵀ."""
        if not self.banks_[k]:
            return torch.zeros_like(self.scatter_)
        centred = torch.stack([kept for _, kept in self.banks_[k]]) - self.means_[k]
        return centred.T @ centred

    def _solve(self) -> None:
        """Weights ``(c, d)`` and bias ``(c,)`` of what the Gaussians and the banks add to log ŷ."""
        n, d = sum(map(len, self.banks_)), len(self.scatter_)
        trace = self.scatter_.trace() / n
        if n < 2 or float(trace) <= NO_SPREAD:
            self.weights_, self.bias_ = torch.zeros_like(self.texts_), torch.zeros_like(self.bias_)
            return
        regular = (n - 1) / (n * d) * self.scatter_
        regular.diagonal().add_(trace / d)
        weights = torch.cholesky_solve(self.means_.T, torch.linalg.cholesky(regular)).T
        self.weights_, self.bias_ = weights + self.sums_, -(weights * self.means_).sum(dim=1) / 2

    def _added(self, u: Tensor) -> Tensor:
        """What the Gaussians and the banks add to log ŷ, for rows ``(n, d)``."""
        return u @ self.weights_.T + self.bias_
