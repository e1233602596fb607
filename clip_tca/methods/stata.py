"""StatA: a mixture as TransCLIP's whose Gaussians are anchored to the text, so that few classes do not pull them away.

In the mixture of :mod:`clip_tca.methods.mixture` each class has a mean μ_c and a diagonal covariance Σ_c. A
Kullback-Leibler term of weight α to the anchor N(t_c, Σ₀) keeps them near the text embedding t_c where few images are
assigned to the class: with counts m_c,

    β_c = m_c / (m_c + α)        μ_c = β_c v_c + (1 − β_c) t_c
    Σ_c = β_c V_c + (1 − β_c) (Σ₀ + (t_c − μ_c)²)

where v_c and V_c are the weighted mean of the class and its variance about μ_c, and Σ₀ = 1/n Σ_ic ŷ_ic (z_i − t_c)².

Zanella, Fuchs, De Vleeschouwer and Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025
(arXiv 2501.03729). Its text could not be had. These equations, with the anchor and Σ₀, are those of appendix B of Huang
et al., MOON (arXiv 2607.15851, equations 22 to 24). So is m_c, the number of images whose largest assignment is c, for
which the objective has the sum of assignments (``soft_counts``); a note on the paper (en.papernotes.org) gives the
authors' reason, that it is steadier, and α = 1. :mod:`clip_tca.methods.mixture` says where the rest is from.

Equation 23 does not scale v_c and μ_c to unit length. The authors' program (AGPL) does, which was found by running it:
its outputs are the reference of the tests. The scale in ŷ is the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Flag
from clip_tca.core.tensors import unit
from clip_tca.methods.base import prototypes
from clip_tca.methods.mixture import SMALLEST, MixtureMethod


@dataclass(kw_only=True, eq=False, repr=False)
class StatA(MixtureMethod):
    """Class assignments of all embeddings of a call; the other options are those of :class:`MixtureMethod`.

    Args:
        anchor_strength: α, images that the anchor of a class counts as.
        soft_counts: Count the images of a class by their assignments instead of by the largest one.
    """

    name = "stata"
    summary = "Gaussian mixture of all test embeddings, its means and covariances anchored to the text"
    updates = "class assignments, class means and diagonal covariances"

    anchor_strength: Amount = 1.0
    soft_counts: Flag = False

    def start(self, u: Tensor, log_p: Tensor) -> None:
        """The anchors: texts, and the variances Σ₀ of the embeddings about them."""
        self.means_ = self.anchor_ = prototypes(self.classifier).to(u)
        self.spread_ = _spread(u, log_p.exp().to(u.dtype), self.anchor_).sum(dim=0) / len(u)
        self.variances_ = self.spread_.clamp_min(SMALLEST).expand_as(self.anchor_)

    def update(self, u: Tensor, assigned: Tensor) -> None:
        """Means and variances between those of the assigned images and the anchors."""
        totals = assigned.sum(dim=0)
        largest = torch.bincount(assigned.argmax(dim=1), minlength=len(totals)).to(u.dtype)
        counts = totals if self.soft_counts else largest
        beta = (counts / (counts + self.anchor_strength)).nan_to_num()[:, None]  # neither images nor anchor: 0 / 0
        self.means_ = unit(beta * unit(assigned.T @ u) + (1 - beta) * self.anchor_)
        own = _spread(u, assigned, self.means_) / totals.clamp_min(SMALLEST)[:, None]
        anchored = self.spread_ + (self.anchor_ - self.means_) ** 2
        self.variances_ = (beta * own + (1 - beta) * anchored).clamp_min(SMALLEST)

    def log_likelihood(self, u: Tensor) -> Tensor:
        """log N(z; μ_c, Σ_c) without its constant."""
        means, precision = self.means_.to(u), 1 / self.variances_.to(u)
        distance = (u * u) @ precision.T - 2 * u @ (means * precision).T + (means**2 * precision).sum(dim=1)
        return (precision.log().sum(dim=1) - distance) / 2


def _spread(u: Tensor, assigned: Tensor, means: Tensor) -> Tensor:
    """Σ_i a_ic (z_i − μ_c)², ``(classes, d)``."""
    return assigned.T @ (u * u) - 2 * means * (assigned.T @ u) + assigned.sum(dim=0)[:, None] * means**2
