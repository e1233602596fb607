"""TransCLIP: a Gaussian mixture of all test embeddings, held by a graph of neighbours and by the text.

Zero-shot form. Assignments a_i of the n embeddings z_i minimise, in turn with class means μ_c of unit length and one
diagonal covariance Σ for all classes,

    −Σ_i a_i · log p_i − Σ_ij w_ij a_i · a_j + Σ_i a_i · (log a_i − λ log ŷ_i)        p_ic = N(z_i; μ_c, Σ)

where ŷ are the zero-shot probabilities and w_ij is the cosine of an image and its 3 nearest neighbours. For given means
and covariance, a few rounds of

    a_i ∝ ŷ_i^λ · exp(log p_i + Σ_j w_ij a_j)

decrease it; then means and covariance are the usual weighted ones.

Zanella, Gérin and Ben Ayed, "Boosting Vision-Language Models with Transduction", NeurIPS 2024. Written from the paper;
the code of its authors (AGPL) was only run, and its outputs are the reference of the tests. From these outputs come the
weights of the terms, 1/50 for log p_i and 1/3 (one over the neighbours) for the graph, which counts an edge half in
each direction; that a class mean starts as that of the 8 embeddings of highest ŷ_c, weighted by it; and that Σ starts
at 1/d. The scale in ŷ is the model's own, 100 in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import check_number, check_whole
from clip_tca.core.tensors import unit
from clip_tca.methods.base import TransductiveMethod, directions
from clip_tca.methods.neighbours import Graph, nearest

SMALLEST = 1e-12
"""Variance of a dimension in which all embeddings are equal."""


@dataclass(kw_only=True, eq=False, repr=False)
class TransCLIP(TransductiveMethod):
    """Class assignments of all embeddings of a call, solved together.

    New rows (``predict``) get ŷ^λ · p under the last means and covariance, without the graph.

    Args:
        neighbours: Nearest neighbours of an image in the graph; 0 leaves the graph out.
        text_weight: λ, of the zero-shot probabilities.
        likelihood_weight: Of log p_i.
        start_shots: Embeddings whose mean a class mean starts from.
        rounds: Updates of means and covariance.
        assignment_rounds: Updates of the assignments before each of them.
    """

    name = "transclip"
    summary = "Gaussian mixture of all test embeddings, held by a graph of neighbours and by zero-shot"
    updates = "class assignments, class means and a diagonal covariance"

    neighbours: int = 3
    text_weight: float = 1.0
    likelihood_weight: float = 0.02
    start_shots: int = 8
    rounds: int = 10
    assignment_rounds: int = 5

    def __post_init__(self) -> None:
        check_whole("neighbours", self.neighbours, 0)
        for name in ("text_weight", "likelihood_weight"):
            check_number(name, getattr(self, name))
        for name in ("start_shots", "rounds", "assignment_rounds"):
            check_whole(name, getattr(self, name))
        super().__post_init__()

    def solve(self, z: Tensor) -> Tensor:
        """Logarithm of the assignments after the last round."""
        log_p = self.classifier.log_probabilities(z)
        prior, u = (self.text_weight * log_p).to(z.dtype), directions(self.classifier, z)
        graph = neighbour_graph(u, self.neighbours)
        self.means_, self.variance_ = self._start(u, log_p), u.new_full((u.shape[1],), 1 / u.shape[1])
        assigned = log_p.exp().to(z.dtype)
        for _ in range(self.rounds):
            scores = prior + self.likelihood_weight * self._log_likelihood(u)
            assigned = settled(scores, assigned, graph, self.assignment_rounds)
            self._update(u, assigned)
        return assigned.clamp_min(torch.finfo(z.dtype).tiny).log()

    def place(self, z: Tensor) -> Tensor:
        """Logarithm of ŷ^λ · p, up to a constant."""
        likelihood = self._log_likelihood(directions(self.classifier, z))
        prior = self.text_weight * self.classifier.log_probabilities(z)
        return prior.to(z.dtype) + self.likelihood_weight * likelihood

    def _start(self, u: Tensor, log_p: Tensor) -> Tensor:
        """Class means of the most confident embeddings."""
        top = log_p.topk(min(self.start_shots, len(u)), dim=0)
        return unit((u[top.indices] * top.values.exp()[..., None].to(u.dtype)).sum(dim=0))

    def _log_likelihood(self, u: Tensor) -> Tensor:
        """−½ (z − μ_c)ᵀ Σ⁻¹ (z − μ_c), ``(n, classes)``, without what is the same for all classes."""
        scaled = self.means_.to(u) / self.variance_.to(u)
        return u @ scaled.T - (scaled * self.means_.to(u)).sum(dim=1) / 2

    def _update(self, u: Tensor, assigned: Tensor) -> None:
        sums, counts = assigned.T @ u, assigned.sum(dim=0)
        self.means_ = unit(sums)
        spread = (u * u).sum(dim=0) - (2 * sums * self.means_ - counts[:, None] * self.means_**2).sum(dim=0)
        self.variance_ = (spread / len(u)).clamp_min(SMALLEST)


def neighbour_graph(u: Tensor, neighbours: int) -> Graph:
    """Edges to the nearest neighbours, weighted by their cosine, so that Graph @ a is their mean in both directions."""
    cosine, targets = nearest(u, u, neighbours, itself=False)
    return Graph(cosine.clamp_min(0) / (2 * max(neighbours, 1)), targets)


def settled(scores: Tensor, assigned: Tensor, graph: Graph, rounds: int) -> Tensor:
    """Assignments ``(n, classes)`` after ``rounds`` of a = softmax(scores + graph · a)."""
    for _ in range(rounds):
        assigned = (scores + graph @ assigned).softmax(dim=1)
    return assigned
