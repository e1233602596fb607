"""TransCLIP and StatA: Gaussian mixtures of all test embeddings, held by zero-shot and by a graph of neighbours.

Assignments a_i of the embeddings z_i, and the Gaussians p_c, in turn decrease

    −w Σ_i a_i · log p_i − Σ_ij w_ij a_i · a_j + Σ_i a_i · (log a_i − λ log ŷ_i)        p_ic = p_c(z_i)

where ŷ are the zero-shot probabilities and w_ij is the cosine of an image and its nearest neighbours. For given
Gaussians, that is a few rounds of

    a_i ∝ ŷ_i^λ · exp(w log p_i + Σ_j w_ij a_j)

Sources. The text of the two papers could not be had; papers that restate them could. The objective, with w = 1/n for n
images, and w_ij = max(0, cosine): Saha et al., GTA-CLIP (ICCV 2025, arXiv 2501.06031), as a note on it has them
(en.papernotes.org). The objective with w = 1, the update of a (equation 12), the graph of nearest neighbours and the 5
updates of a in each of 10 rounds (appendix A and table 3), λ = 1 and 3 neighbours (appendix C.2): Huang et al., MOON
(arXiv 2607.15851).

The outputs of the authors' programs, which are the references of the tests, agree with neither w: there w = 1/50, and
w_ij is divided by the number of neighbours, an edge counting half in each direction. Both were found by running them.
The accuracies that the authors publish are those programs', so their weights are the defaults here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, Flag, Natural
from clip_tca.core.tensors import unit
from clip_tca.methods.base import TransductiveMethod, directions, prototypes
from clip_tca.methods.neighbours import Graph, nearest

SMALLEST = 1e-12
"""Variance of a dimension in which all embeddings are equal."""


@dataclass(kw_only=True, eq=False, repr=False)
class MixtureMethod(TransductiveMethod):
    """Class assignments of all embeddings of a call, solved together with the Gaussians of the classes.

    New rows (``predict``) get ŷ^λ · p^w under the last Gaussians, without the graph.

    Args:
        neighbours: Nearest neighbours of an image in the graph; 0 leaves the graph out.
        text_weight: λ, of the zero-shot probabilities.
        likelihood_weight: w, of the Gaussians.
        rounds: Updates of the Gaussians.
        assignment_rounds: Updates of the assignments before each of them.
    """

    neighbours: Natural = 3
    text_weight: Amount = 1.0
    likelihood_weight: Amount = 0.02
    rounds: Count = 10
    assignment_rounds: Count = 5

    def solve(self, z: Tensor) -> Tensor:
        """Logarithm of the assignments after the last round."""
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        cosine, targets = nearest(u, u, self.neighbours, itself=False)
        graph = Graph(cosine.clamp_min(0) / (2 * max(self.neighbours, 1)), targets)
        self.start(u, log_p)
        prior, assigned = (self.text_weight * log_p).to(u.dtype), log_p.exp().to(u.dtype)
        for _ in range(self.rounds):
            scores = prior + self.likelihood_weight * self.log_likelihood(u)
            for _ in range(self.assignment_rounds):
                assigned = (scores + graph @ assigned).softmax(dim=1)
            self.update(u, assigned)
        return assigned.clamp_min(torch.finfo(z.dtype).tiny).log()

    def place(self, z: Tensor) -> Tensor:
        """Logarithm of ŷ^λ · p^w, up to a constant."""
        likelihood = self.log_likelihood(directions(self.classifier, z))
        prior = (self.text_weight * self.classifier.log_probabilities(z)).to(z.dtype)
        return prior + self.likelihood_weight * likelihood

    @abstractmethod
    def start(self, u: Tensor, log_p: Tensor) -> None:
        """The Gaussians before the first round, from unit rows ``(n, d)`` and log ŷ ``(n, classes)``."""

    @abstractmethod
    def update(self, u: Tensor, assigned: Tensor) -> None:
        """The Gaussians for given assignments ``(n, classes)``."""

    @abstractmethod
    def log_likelihood(self, u: Tensor) -> Tensor:
        """log p ``(n, classes)``, up to what is the same for all classes."""


@dataclass(kw_only=True, eq=False, repr=False)
class TransCLIP(MixtureMethod):
    """TransCLIP: class means μ_c of unit length, and one diagonal covariance for all classes.

    Both are the usual means and variances, weighted by the assignments. Zanella, Gérin and Ben Ayed, "Boosting
    Vision-Language Models with Transduction", NeurIPS 2024 (arXiv 2406.01837): the zero-shot form. A summary of the
    paper (sciencestack.ai/paper/2406.01837) has updates in closed form of "class means and diagonals". That all classes
    share one diagonal, that means have unit length, and that variances start at 1/d was found by running the authors'
    program (AGPL), whose outputs are the reference of the tests. That a class mean starts as that of the 8 embeddings
    of highest ŷ_c, weighted by it, is from the guide beside that program. The scale in ŷ is the model's own.

    The other options are those of :class:`MixtureMethod`.

    Args:
        start_shots: Embeddings whose mean a class mean starts from.
    """

    name = "transclip"
    summary = "Gaussian mixture of all test embeddings, held by a graph of neighbours and by zero-shot"
    updates = "class assignments, class means and a diagonal covariance"

    start_shots: Count = 8

    def start(self, u: Tensor, log_p: Tensor) -> None:
        """Means of the most confident embeddings of each class."""
        top = log_p.topk(min(self.start_shots, len(u)), dim=0)
        self.means_ = unit((u[top.indices] * top.values.exp()[..., None].to(u.dtype)).sum(dim=0))
        self.variance_ = u.new_full((u.shape[1],), 1 / u.shape[1])

    def update(self, u: Tensor, assigned: Tensor) -> None:
        """Weighted means and their common variances."""
        sums, counts = assigned.T @ u, assigned.sum(dim=0)
        self.means_ = unit(sums)
        spread = (u * u).sum(dim=0) - (2 * sums * self.means_ - counts[:, None] * self.means_**2).sum(dim=0)
        self.variance_ = (spread / len(u)).clamp_min(SMALLEST)

    def log_likelihood(self, u: Tensor) -> Tensor:
        """−½ (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) without the square of z."""
        scaled = self.means_.to(u) / self.variance_.to(u)
        return u @ scaled.T - (scaled * self.means_.to(u)).sum(dim=1) / 2


@dataclass(kw_only=True, eq=False, repr=False)
class StatA(MixtureMethod):
    """StatA: Gaussians that are anchored to the text, so that few classes do not pull them away.

    Each class has a mean μ_c and a diagonal covariance Σ_c. A Kullback-Leibler term of weight α to the anchor
    N(t_c, Σ₀) keeps them near the text embedding t_c where few images are assigned to the class: with counts m_c,

        β_c = m_c / (m_c + α)        μ_c = β_c v_c + (1 − β_c) t_c
        Σ_c = β_c V_c + (1 − β_c) (Σ₀ + (t_c − μ_c)²)

    where v_c and V_c are the weighted mean of the class and its variance about μ_c, and
    Σ₀ = 1/n Σ_ic ŷ_ic (z_i − t_c)².

    Zanella, Fuchs, De Vleeschouwer and Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025
    (arXiv 2501.03729). Its text could not be had. These equations, with the anchor and Σ₀, are those of appendix B of
    MOON (equations 22 to 24). So is m_c, the number of images whose largest assignment is c, for which the objective
    has the sum of assignments (``soft_counts``); a note on the paper (en.papernotes.org) gives the authors' reason,
    that it is steadier, and α = 1. Equation 23 does not scale v_c and μ_c to unit length. The authors' program (AGPL)
    does, which was found by running it: its outputs are the reference of the tests. The scale in ŷ is the model's own.

    The other options are those of :class:`MixtureMethod`.

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
