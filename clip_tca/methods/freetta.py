"""FreeTTA: Gaussians of the classes that follow the test images by online EM, weighted by zero-shot certainty.

Classes have priors π_y, means μ_y and counts N_y, and share a covariance Σ. At the start μ_y are the texts, Σ = I and
N_y = 1/classes, with the sum n = 1. An image x whose zero-shot probabilities have the entropy H has the weight
w = exp(−β H) and the posteriors γ_y ∝ π_y N(x; μ_y, Σ). It moves

    μ_y ← (N_y μ_y + w γ_y x) / (N_y + w γ_y)
    Σ ← (n Σ + w Σ_y γ_y (x − μ_y)(x − μ_y)ᵀ) / (n + w)
    N_y ← N_y + w γ_y        n ← n + w        π_y = N_y / n

with the new means in the second line, and is then predicted by the logits

    g(x) + α (μ_yᵀ Σ⁻¹ x − ½ μ_yᵀ Σ⁻¹ μ_y + log π_y)

Dai and Yang, "Free on the Fly: Enhancing Flexibility in Test-Time Adaptation with Online EM", CVPR 2025 (arXiv
2507.06973), equations 6 to 13, with its α = 0.2 and β = 4.5. There is no code of its authors to compare with. What the
paper leaves open, or prints otherwise, is decided so:

* Texts and images have the length √scale, for the model's logit scale. In print cosines have no scale; the posteriors
  would then start almost equal for all classes. With it they start as the zero-shot probabilities, and the two terms
  of the logits are on one scale.
* The entropy, in nats, is that of g's probabilities with its scale.
* n starts at 1, the sum of the N_y.
* Σ is a running average. The printed update, [(n − 1) Σ + …] / (n − 1), only ever adds to Σ.
* An image is predicted after its own update, as in a round of EM.
* Σ is solved as it is, without a term that regularises it: it keeps its start, I, with a weight of 1/n.

With these readings, chosen before we saw an accuracy, the method collapses on our embeddings: most images go to a few
classes (docs/methods.md). The means of classes with early images leave the texts for the images, which are nearer to
each other than to any text, and so attract the images of other classes. With Gaussians of unit length, as printed
(``scaled=False``), it hardly changes a prediction there. Neither is what the paper reports.

To spare time, classes with a posterior below ``NEGLIGIBLE`` do not enter Σ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Flag
from clip_tca.core.tensors import double
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes, scaled_rows

NEGLIGIBLE = 1e-12


@dataclass(kw_only=True, eq=False, repr=False)
class FreeTTA(EmbeddingMethod):
    """Gaussians of all images so far, updated image by image and carried from batch to batch.

    Args:
        gaussian_weight: α, of the Gaussians in the logits.
        certainty: β; with 0 all images count alike, and the larger, the less do uncertain ones.
        scaled: Whether texts and images have the length √scale in the Gaussians; if not, they have length 1.
    """

    name = "freetta"
    summary = "adds Gaussians that follow the test images by online EM"
    updates = "class priors, class means and a covariance"

    gaussian_weight: Amount = 0.2
    certainty: Amount = 4.5
    scaled: Flag = True

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Texts as means, and the identity as covariance."""
        self.length_ = math.sqrt(scaled_rows(self.classifier)[1]) if self.scaled else 1.0
        self.means_ = self.length_ * double(prototypes(self.classifier))
        c, d = self.means_.shape
        self.counts_, self.total_ = self.means_.new_full((c,), 1 / c), 1.0
        self.covariance_ = torch.eye(d, dtype=self.means_.dtype, device=self.means_.device)
        self._solve()

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logits of g and of the Gaussians; each image in turn moves the Gaussians and is then predicted."""
        x = self.length_ * directions(self.classifier, z).to(self.means_)
        if join:
            log_p = self.classifier.log_probabilities(z)
            certain = (self.certainty * (log_p.exp() * log_p).sum(dim=1)).exp().tolist()
            added = torch.cat([self._visit(row[None], weight) for row, weight in zip(x, certain, strict=True)])
        else:
            added = self._discriminants(x)
        return self.classifier.logits(z) + self.gaussian_weight * added.to(z)

    def _visit(self, x: Tensor, weight: float) -> Tensor:
        posterior = self._discriminants(x)[0].softmax(dim=0)
        moved = weight * posterior
        self.means_ = (self.counts_[:, None] * self.means_ + moved[:, None] * x) / (self.counts_ + moved)[:, None]
        near = posterior > NEGLIGIBLE
        deviations = moved[near, None].sqrt() * (x - self.means_[near])
        self.covariance_ = (self.total_ * self.covariance_ + deviations.T @ deviations) / (self.total_ + weight)
        self.counts_, self.total_ = self.counts_ + moved, self.total_ + weight
        self._solve()
        return self._discriminants(x)

    def _solve(self) -> None:
        """A root R Rᵀ = Σ of the covariance, the means in its coordinates, R⁻¹ μ_y, and the bias of each class."""
        self.root_ = torch.linalg.cholesky(self.covariance_)
        self.whitened_ = torch.linalg.solve_triangular(self.root_, self.means_.T, upper=False)
        self.bias_ = (self.counts_ / self.total_).log() - self.whitened_.square().sum(dim=0) / 2

    def _discriminants(self, x: Tensor) -> Tensor:
        """log π_y N(x; μ_y, Σ) for rows ``(n, d)``, without what all classes share."""
        white: Tensor = torch.linalg.solve_triangular(self.root_, x.T, upper=False)
        found: Tensor = white.T @ self.whitened_ + self.bias_
        return found
