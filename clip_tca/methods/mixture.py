"""Gaussian mixtures held by zero-shot and by a graph of neighbours: what TransCLIP and StatA have in common.

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

from clip_tca.core.checks import Amount, Count, Natural
from clip_tca.methods.base import TransductiveMethod, directions
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
