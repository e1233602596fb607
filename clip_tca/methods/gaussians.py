"""OGA, DOTA, TransCLIP, StatA and GMM: Gaussians of the classes, estimated from test embeddings."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Amount, Count, Flag, Natural, Part, Positive, check_number
from clip_tca.core.tensors import double, unit
from clip_tca.methods.base import EmbeddingMethod, TransductiveMethod, directions, entropy, finite_log, prototypes
from clip_tca.methods.caches import ClassCache
from clip_tca.methods.graphs import Graph, similar_images

SMALLEST = 1e-12  # variance of a dimension in which all embeddings are equal
TINY = 10 * torch.finfo(torch.float64).eps  # added to the size of a component of GMM, as scikit-learn does


def discriminant(means: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Weights ``(classes, d)`` and bias ``(classes,)`` of log N(z; μ_c, Σ), without what all classes share."""
    weights = means @ precision
    return weights, -(weights * means).sum(dim=1) / 2


# -- online ------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class OGA(EmbeddingMethod):
    """OGA: Gaussians of the most certain test embeddings of each class, with zero-shot as prior.

    A cache keeps for each predicted class the embeddings of lowest entropy. From it come class means μ_c and one
    covariance Σ for all classes, and an embedding is predicted by

        log ŷ_c(z) + τ log N(z; μ_c, Σ)

    With fewer than 2 cached embeddings a class has its text embedding as mean; Σ = I/d until a class has 3. With n
    cached embeddings, of covariance S about their means, Σ⁻¹ = d ((n − 1) S + tr(S) I)⁻¹ up to n = 4d, and S⁻¹ beyond.
    All images of a batch enter before any is predicted.

    Fuchs, Zanella and De Vleeschouwer, "Online Gaussian Test-Time Adaptation of Vision-Language Models", CVPR workshops
    2025. Differs: a mean is divided by what is cached, the authors' by the size of the cache (``capacity``).
    """

    name = "oga"
    summary = "Gaussians of the most certain test embeddings, with zero-shot as prior"
    updates = "a cache of embeddings, class means and a covariance"

    shots: Count = 8  # embeddings kept for each class
    likelihood_power: Amount = 0.05  # τ
    divide_by: Literal["cached", "capacity"] = "cached"  # what the sum of a class is divided by

    def clear(self) -> None:
        self.means_, d = double(prototypes(self.classifier)), self.classifier.dim
        self.cache_ = ClassCache(self.shots, self.means_)
        self.precision_ = d * torch.eye(d, dtype=self.means_.dtype, device=self.means_.device)
        self.weights_, self.bias_ = discriminant(self.means_, self.precision_)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        log_p, u = self.classifier.log_probabilities(z), double(directions(self.classifier, z))
        if join and self.cache_.add(u, log_p.argmax(dim=1), entropy(log_p)):
            self._estimate()
        likelihood = u @ self.weights_.to(u).T + self.bias_.to(u)
        return (log_p + self.likelihood_power * likelihood).to(z.dtype)

    def _estimate(self) -> None:
        """Means and covariance of the cache."""
        rows, labels = self.cache_.rows, self.cache_.labels
        start = prototypes(self.classifier).to(rows)
        counts = torch.bincount(labels, minlength=len(start))
        divisor = counts if self.divide_by == "cached" else counts.new_full((1,), self.shots)
        means = self.cache_.class_sums(len(start)) / divisor.clamp_min(1)[:, None]
        self.means_ = torch.where(counts[:, None] >= 2, means, start)
        if bool((counts > 2).any()):
            self._invert((rows - self.means_[labels]).T.cov(), len(rows))
        self.weights_, self.bias_ = discriminant(self.means_, self.precision_.to(rows))

    def _invert(self, covariance: Tensor, n: int) -> None:
        d, trace = len(covariance), covariance.trace()
        if n > 4 * d:
            self.precision_ = torch.linalg.pinv(covariance, hermitian=True)
        elif bool(trace > 0):
            ridge = (n - 1) * covariance
            ridge.diagonal().add_(trace)
            self.precision_ = d * torch.cholesky_inverse(torch.linalg.cholesky(ridge))


@dataclass(kw_only=True, eq=False, repr=False)
class DOTA(EmbeddingMethod):
    """DOTA: Gaussians of the classes, estimated online with the zero-shot probabilities as weights.

    Means start at ω in every dimension, covariances at σ² I, counts c_k at 1. Images are predicted, then join: with
    zero-shot probabilities ŷ and sums over the images that join,

        μ_k ← (c_k μ_k + Σ_n ŷ_nk z_n) / (c_k + Σ_n ŷ_nk)
        Σ_k ← (c_k Σ_k + Σ_n ŷ_nk (z_n − μ_k)(z_n − μ_k)ᵀ) / (c_k + Σ_n ŷ_nk)        c_k ← c_k + Σ_n ŷ_nk

    with the means before the update on the right. One covariance, the mean of all, serves every class:

        logits = g(z) + min(ρ c̄, η) · log N(z; μ_k, (1 − ε) Σ̄ + ε I)

    The covariances need memory of classes · d² floats. The defaults are those for ImageNet.

    Han, Yang, Wang, Li, Xu, Shou and Zhang, "DOTA: Distributional Test-Time Adaptation of Vision-Language Models",
    NeurIPS 2025 (arXiv 2409.19375). Differs: several images share an inversion; no views of an image; where text and
    program differ, this is the program.
    """

    name = "dota"
    summary = "adds Gaussians of the classes, estimated online with zero-shot probabilities as weights"
    updates = "class means and covariances"

    mean_start: Annotated[float, partial(check_number, low=-1, high=1)] = 0.001  # ω
    variance_start: Positive = 0.002  # σ²
    shrinkage: Part = 1e-4  # ε
    weight_growth: Amount = 0.005  # ρ, of the Gaussians' weight with the mean count of a class
    largest_weight: Amount = 0.2  # η, where that growth ends
    rows_at_once: Count = 16  # images that are predicted and then join together; the authors' 1 is slower

    def clear(self) -> None:
        weight = self.classifier.weight
        c, d = weight.shape
        self.means_, self.counts_ = torch.full_like(weight, self.mean_start), weight.new_ones(c)
        start = self.variance_start * torch.eye(d, dtype=weight.dtype, device=weight.device)
        self.scatters_ = start.repeat(c, 1, 1)  # c_k Σ_k
        self._weigh()

    def logits(self, z: Tensor, join: bool) -> Tensor:
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


# -- held by a graph of neighbours -------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class MixtureMethod(TransductiveMethod):
    """Class assignments of all embeddings of a call, solved together with the Gaussians of the classes.

    Assignments a_i of the embeddings z_i, and the Gaussians p_c, in turn decrease

        −w Σ_i a_i · log p_i − Σ_ij w_ij a_i · a_j + Σ_i a_i · (log a_i − λ log ŷ_i)        p_ic = p_c(z_i)

    where ŷ are the zero-shot probabilities and w_ij is the cosine of an image and its nearest neighbours, divided by
    their number, an edge counting half in each direction. For given Gaussians, that is a few rounds of

        a_i ∝ ŷ_i^λ · exp(w log p_i + Σ_j w_ij a_j)

    New rows (``predict``) get ŷ^λ · p^w under the last Gaussians, without the graph. The weights w and w_ij are those
    of the authors' programs, and differ from the printed ones (docs/methods.md). The scale in ŷ is the model's own.
    """

    neighbours: Natural = 3  # of an image in the graph; 0 leaves the graph out
    text_weight: Amount = 1.0  # λ, of the zero-shot probabilities
    likelihood_weight: Amount = 0.02  # w, of the Gaussians
    rounds: Count = 10  # updates of the Gaussians
    assignment_rounds: Count = 5  # updates of the assignments before each of them

    def solve(self, z: Tensor) -> Tensor:
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        cosine, targets = similar_images(u, self.neighbours)
        graph = Graph(cosine.clamp_min(0) / (2 * max(self.neighbours, 1)), targets)
        self.start(u, log_p)
        prior, assigned = (self.text_weight * log_p).to(u.dtype), log_p.exp().to(u.dtype)
        for _ in range(self.rounds):
            scores = prior + self.likelihood_weight * self.log_likelihood(u)
            for _ in range(self.assignment_rounds):
                assigned = (scores + graph @ assigned).softmax(dim=1)
            self.update(u, assigned)
        return finite_log(assigned)

    def place(self, z: Tensor) -> Tensor:
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

    Both are the usual means and variances, weighted by the assignments. A class mean starts as that of the embeddings
    of highest ŷ_c, weighted by it; variances start at 1/d.

    Zanella, Gérin and Ben Ayed, "Boosting Vision-Language Models with Transduction", NeurIPS 2024 (arXiv 2406.01837),
    zero-shot form.
    """

    name = "transclip"
    summary = "Gaussian mixture of all test embeddings, held by a graph of neighbours and by zero-shot"
    updates = "class assignments, class means and a diagonal covariance"

    start_shots: Count = 8  # embeddings that a class mean starts from

    def start(self, u: Tensor, log_p: Tensor) -> None:
        top = log_p.topk(min(self.start_shots, len(u)), dim=0)
        self.means_ = unit((u[top.indices] * top.values.exp()[..., None].to(u.dtype)).sum(dim=0))
        self.variance_ = u.new_full((u.shape[1],), 1 / u.shape[1])

    def update(self, u: Tensor, assigned: Tensor) -> None:
        sums, counts = assigned.T @ u, assigned.sum(dim=0)
        self.means_ = unit(sums)
        spread = (u * u).sum(dim=0) - (2 * sums * self.means_ - counts[:, None] * self.means_**2).sum(dim=0)
        self.variance_ = (spread / len(u)).clamp_min(SMALLEST)

    def log_likelihood(self, u: Tensor) -> Tensor:
        scaled = self.means_.to(u) / self.variance_.to(u)
        return u @ scaled.T - (scaled * self.means_.to(u)).sum(dim=1) / 2  # without the square of z


@dataclass(kw_only=True, eq=False, repr=False)
class StatA(MixtureMethod):
    """StatA: Gaussians that are anchored to the text, so that few classes do not pull them away.

    Each class has a mean μ_c and a diagonal covariance Σ_c. A Kullback-Leibler term of weight α to the anchor
    N(t_c, Σ₀) keeps them near the text embedding t_c where few images are assigned to the class: with counts m_c,

        β_c = m_c / (m_c + α)        μ_c = β_c v_c + (1 − β_c) t_c, scaled to unit length
        Σ_c = β_c V_c + (1 − β_c) (Σ₀ + (t_c − μ_c)²)

    where v_c and V_c are the weighted mean of the class, of unit length, and its variance about μ_c, and
    Σ₀ = 1/n Σ_ic ŷ_ic (z_i − t_c)². m_c is the number of images whose largest assignment is c.

    Zanella, Fuchs, De Vleeschouwer and Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025
    (arXiv 2501.03729).
    """

    name = "stata"
    summary = "Gaussian mixture of all test embeddings, its means and covariances anchored to the text"
    updates = "class assignments, class means and diagonal covariances"

    anchor_strength: Amount = 1.0  # α, images that the anchor of a class counts as
    soft_counts: Flag = False  # m_c is the sum of assignments instead, as in the objective

    def start(self, u: Tensor, log_p: Tensor) -> None:
        self.means_ = self.anchor_ = prototypes(self.classifier).to(u)
        self.spread_ = _spread(u, log_p.exp().to(u.dtype), self.anchor_).sum(dim=0) / len(u)
        self.variances_ = self.spread_.clamp_min(SMALLEST).expand_as(self.anchor_)

    def update(self, u: Tensor, assigned: Tensor) -> None:
        totals = assigned.sum(dim=0)
        largest = torch.bincount(assigned.argmax(dim=1), minlength=len(totals)).to(u.dtype)
        counts = totals if self.soft_counts else largest
        beta = (counts / (counts + self.anchor_strength)).nan_to_num()[:, None]  # neither images nor anchor: 0 / 0
        self.means_ = unit(beta * unit(assigned.T @ u) + (1 - beta) * self.anchor_)
        own = _spread(u, assigned, self.means_) / totals.clamp_min(SMALLEST)[:, None]
        anchored = self.spread_ + (self.anchor_ - self.means_) ** 2
        self.variances_ = (beta * own + (1 - beta) * anchored).clamp_min(SMALLEST)

    def log_likelihood(self, u: Tensor) -> Tensor:
        means, precision = self.means_.to(u), 1 / self.variances_.to(u)
        distance = (u * u) @ precision.T - 2 * u @ (means * precision).T + (means**2 * precision).sum(dim=1)
        return (precision.log().sum(dim=1) - distance) / 2


def _spread(u: Tensor, assigned: Tensor, means: Tensor) -> Tensor:
    """Σ_i a_ic (z_i − μ_c)², ``(classes, d)``."""
    return assigned.T @ (u * u) - 2 * means * (assigned.T @ u) + assigned.sum(dim=0)[:, None] * means**2


# -- held by nothing ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class GMM(TransductiveMethod):
    """GMM: a plain Gaussian mixture of all embeddings with one full covariance; what needs no paper.

    Expectation-maximisation as in scikit-learn's ``GaussianMixture(covariance_type="tied", means_init=means)``, with
    its options and stopping rule. ``means`` are where zero-shot puts the classes: the mean of the embeddings predicted
    as a class, or its prototype if there are none; the component that grows from it keeps the class. Shares and
    covariance start as those of k-means, which starts at the same means instead of at random. No label is used, and
    nothing holds a component near its text. New rows (``predict``) are placed in the mixture.
    """

    name = "gmm"
    summary = "Gaussian mixture of all test embeddings with one covariance, started by k-means from zero-shot"
    updates = "class means, class shares and a covariance"

    em_rounds: Count = 100  # at most
    em_tolerance: Positive = 1e-3  # stop when the mean log-likelihood gains less
    kmeans_rounds: Natural = 300  # at most
    ridge: Positive = 1e-6  # added to the diagonal of the covariance

    def solve(self, z: Tensor) -> Tensor:
        u = double(directions(self.classifier, z))
        predicted = self.classifier.log_probabilities(z).argmax(dim=1)
        start = self._centres(u, predicted, prototypes(self.classifier).to(u))
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
