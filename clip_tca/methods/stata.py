"""StatA: TransCLIP's mixture whose Gaussians are anchored to the text, so that few classes do not pull them away.

Each class has a mean μ_c and a diagonal covariance Σ_c. A Kullback-Leibler term of weight α to the anchor N(t_c, Σ₀)
keeps them near the text embedding t_c where few images are assigned to the class: with counts m_c,

    β_c = m_c / (m_c + α)        μ_c = β_c v_c + (1 − β_c) t_c
    Σ_c = β_c V_c + (1 − β_c) (Σ₀ + (t_c − μ_c)²)

where v_c and V_c are the weighted mean of the class and its variance about μ_c, and Σ₀ = 1/n Σ_ic ŷ_ic (z_i − t_c)².
The assignments are updated as in TransCLIP (:mod:`clip_tca.methods.transclip`).

Zanella, Fuchs, De Vleeschouwer and Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025,
with its α = 1. Written from the paper; the code of its authors (AGPL) was only run, and its outputs are the reference
of the tests. From these outputs come the weights of the terms, as for TransCLIP; that m_c counts the images whose
largest assignment is c (the paper's sum of assignments is ``soft_counts``); and that v_c and μ_c are scaled to unit
length. The scale in ŷ is the model's own, 100 in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import check_flag, check_number, check_whole
from clip_tca.core.tensors import unit
from clip_tca.methods.base import TransductiveMethod, directions, prototypes
from clip_tca.methods.transclip import SMALLEST, neighbour_graph, settled


@dataclass(kw_only=True, eq=False, repr=False)
class StatA(TransductiveMethod):
    """Class assignments of all embeddings of a call, solved together, with Gaussians anchored to the text.

    New rows (``predict``) get ŷ^λ · p under the last Gaussians, without the graph.

    Args:
        anchor_strength: α, images that the anchor of a class counts as.
        soft_counts: Count the images of a class by their assignments instead of by the largest one.
        neighbours: Nearest neighbours of an image in the graph; 0 leaves the graph out.
        text_weight: λ, of the zero-shot probabilities.
        likelihood_weight: Of log p_i.
        rounds: Updates of means and covariances.
        assignment_rounds: Updates of the assignments before each of them.
    """

    name = "stata"
    summary = "Gaussian mixture of all test embeddings, its means and covariances anchored to the text"
    updates = "class assignments, class means and diagonal covariances"

    anchor_strength: float = 1.0
    soft_counts: bool = False
    neighbours: int = 3
    text_weight: float = 1.0
    likelihood_weight: float = 0.02
    rounds: int = 10
    assignment_rounds: int = 5

    def __post_init__(self) -> None:
        check_flag("soft_counts", self.soft_counts)
        check_whole("neighbours", self.neighbours, 0)
        for name in ("anchor_strength", "text_weight", "likelihood_weight"):
            check_number(name, getattr(self, name))
        for name in ("rounds", "assignment_rounds"):
            check_whole(name, getattr(self, name))
        super().__post_init__()

    def solve(self, z: Tensor) -> Tensor:
        """Logarithm of the assignments after the last round."""
        log_p, u = self.classifier.log_probabilities(z).to(z.dtype), directions(self.classifier, z)
        anchor, graph, assigned = prototypes(self.classifier).to(u), neighbour_graph(u, self.neighbours), log_p.exp()
        spread = _spread(u, assigned, anchor).sum(dim=0) / len(u)
        self.means_, self.variances_ = anchor, spread.clamp_min(SMALLEST).expand_as(anchor)
        for _ in range(self.rounds):
            scores = self.text_weight * log_p + self.likelihood_weight * self._log_likelihood(u)
            assigned = settled(scores, assigned, graph, self.assignment_rounds)
            self._update(u, assigned, anchor, spread)
        return assigned.clamp_min(torch.finfo(z.dtype).tiny).log()

    def place(self, z: Tensor) -> Tensor:
        """Logarithm of ŷ^λ · p, up to a constant."""
        likelihood = self._log_likelihood(directions(self.classifier, z))
        return (self.text_weight * self.classifier.log_probabilities(z)).to(z) + self.likelihood_weight * likelihood

    def _log_likelihood(self, u: Tensor) -> Tensor:
        """log N(z; μ_c, Σ_c) without its constant, ``(n, classes)``."""
        means, precision = self.means_.to(u), 1 / self.variances_.to(u)
        distance = (u * u) @ precision.T - 2 * u @ (means * precision).T + (means**2 * precision).sum(dim=1)
        return (precision.log().sum(dim=1) - distance) / 2

    def _update(self, u: Tensor, assigned: Tensor, anchor: Tensor, spread: Tensor) -> None:
        n_classes, totals = len(anchor), assigned.sum(dim=0)
        counts = totals if self.soft_counts else torch.bincount(assigned.argmax(dim=1), minlength=n_classes).to(u)
        beta = (counts / (counts + self.anchor_strength)).nan_to_num()[:, None]  # no image and no anchor
        self.means_ = unit(beta * unit(assigned.T @ u) + (1 - beta) * anchor)
        own = _spread(u, assigned, self.means_) / totals.clamp_min(SMALLEST)[:, None]
        anchored = spread + (anchor - self.means_) ** 2
        self.variances_ = (beta * own + (1 - beta) * anchored).clamp_min(SMALLEST)


def _spread(u: Tensor, assigned: Tensor, means: Tensor) -> Tensor:
    """Σ_i a_ic (z_i − μ_c)², ``(classes, d)``."""
    return assigned.T @ (u * u) - 2 * means * (assigned.T @ u) + assigned.sum(dim=0)[:, None] * means**2
