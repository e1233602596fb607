"""OGA: Gaussians of the most certain test embeddings of each class, with the zero-shot probabilities as prior.

A cache keeps for each predicted class the embeddings of lowest entropy. From it come class means μ_c and one covariance
Σ for all classes, and an embedding is predicted by

    log ŷ_c(z) + τ log N(z; μ_c, Σ)

With fewer than 2 cached embeddings a class has its text embedding as mean; Σ = I/d until a class has 3. With n cached
embeddings, of covariance S about their means, Σ⁻¹ = d ((n − 1) S + tr(S) I)⁻¹ up to n = 4d, and S⁻¹ beyond.

Fuchs, Zanella and De Vleeschouwer, "Online Gaussian Test-Time Adaptation of Vision-Language Models", CVPR workshops
2025 (github.com/cfuchs2023/OGA), with its τ = 0.05 and 8 embeddings for each class. As there, all images of a batch
enter before any is predicted. That code stores half precision, and divides the sum of a class by 8 also where fewer are
cached, which shortens the mean; ``divide_by="capacity"`` does so too. Here a mean is divided by what is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clip_tca.adapters.linear import certain_rows
from clip_tca.core.checks import Amount, Count
from clip_tca.core.tensors import double
from clip_tca.methods.base import EmbeddingMethod, directions, discriminant, prototypes


@dataclass(kw_only=True, eq=False, repr=False)
class OGA(EmbeddingMethod):
    """Gaussians of a cache of certain embeddings, carried from batch to batch.

    Args:
        shots: Embeddings kept for each class.
        likelihood_power: τ.
        divide_by: What the sum of a class is divided by: ``"cached"``, or ``"capacity"`` as in the authors' code.
    """

    name = "oga"
    summary = "Gaussians of the most certain test embeddings, with zero-shot as prior"
    updates = "a cache of embeddings, class means and a covariance"

    shots: Count = 8
    likelihood_power: Amount = 0.05
    divide_by: Literal["cached", "capacity"] = "cached"

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Empty the cache."""
        self.means_ = double(prototypes(self.classifier))
        d = self.classifier.dim
        self.cached_ = self.means_.new_empty(0, d)
        self.labels_ = torch.empty(0, dtype=torch.int64, device=self.means_.device)
        self.entropy_ = self.means_.new_empty(0)
        self.precision_ = d * torch.eye(d, dtype=self.means_.dtype, device=self.means_.device)
        self._weigh()

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logarithm of ŷ · N^τ, up to a constant."""
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        if join:
            self._join(u, log_p)
        likelihood = double(u) @ self.weights_.to(z.device).T + self.bias_.to(z.device)
        return (log_p + self.likelihood_power * likelihood).to(z.dtype)

    def _join(self, u: Tensor, log_p: Tensor) -> None:
        labels = torch.cat([self.labels_.to(u.device), log_p.argmax(dim=1)])
        entropy = torch.cat([self.entropy_.to(u.device), -(log_p.exp() * log_p).sum(dim=1)])
        members = certain_rows(entropy, labels, labels.new_full((log_p.shape[1],), self.shots))
        if int(members[-1]) < len(self.labels_) and u.device == self.cached_.device:
            return  # no new row is certain enough
        self.cached_ = torch.cat([self.cached_.to(u.device), double(u)])[members]
        self.labels_, self.entropy_ = labels[members], entropy[members]
        self._estimate()

    def _estimate(self) -> None:
        """Means and covariance of the cache."""
        start = double(prototypes(self.classifier)).to(self.cached_.device)
        counts = torch.bincount(self.labels_, minlength=len(start))
        sums = torch.zeros_like(start).index_add_(0, self.labels_, self.cached_)
        divisor = counts if self.divide_by == "cached" else counts.new_full((1,), self.shots)
        self.means_ = torch.where(counts[:, None] >= 2, sums / divisor.clamp_min(1)[:, None], start)
        if bool((counts > 2).any()):
            self._invert(self.cached_ - self.means_[self.labels_])
        self._weigh()

    def _invert(self, centred: Tensor) -> None:
        n, d = centred.shape
        covariance = centred.T.cov()
        trace = covariance.trace()
        if n > 4 * d:
            self.precision_ = torch.linalg.pinv(covariance, hermitian=True)
        elif bool(trace > 0):
            ridge = (n - 1) * covariance
            ridge.diagonal().add_(trace)
            self.precision_ = d * torch.cholesky_inverse(torch.linalg.cholesky(ridge))

    def _weigh(self) -> None:
        """log N as a linear function of z, without what is the same for all classes."""
        self.weights_, self.bias_ = discriminant(self.means_, self.precision_.to(self.means_.device))
