"""One Gaussian for each class, with a shared covariance, from soft assignments: the mathematics of ConditionalTCA.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from clip_tca.adapters.overconfidence import POWER, TWICE, nearest, temperature
from clip_tca.adapters.statistics import Moments, mean
from clip_tca.adapters.symmetric import eigh
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import CHUNK, exact

FEWEST_PRIOR_IMAGES = 2.0
FEWEST_IMAGES = 8
"""Below as many rows the classifier g is kept as it is."""
TRIAL_ROUNDS = 2
"""Rounds without a prior, from which it is seen how unequal the classes are."""
NEIGHBOURS = 3
"""Nearest neighbours of each row from which the first covariance is taken."""
NEIGHBOUR_ROWS = 512
"""Rows among which neighbours are looked for (or 8 for each class, if that is more)."""


Prior = Callable[[Tensor], Tensor]
"""From the support ``(c,)`` of the classes to γ log π_c ``(c,)``."""


@dataclass
class GaussianFit:
    """The classifier of equation (1) with what it was estimated from.

    Attributes:
        classifier: z ↦ log q(c | z) up to a constant, on prepared rows.
        counts: ``(c,)`` soft class counts n_c.
        means: ``(c, d)`` class means m_c.
        temperature: ``()`` by which weight and bias have been divided.
        start_temperature: ``()`` of g in the first assignment.
    """

    classifier: LinearClassifier
    counts: Tensor
    means: Tensor
    temperature: Tensor
    start_temperature: Tensor


def fit_gaussians(
    z: Tensor,
    g: LinearClassifier,
    shrinkage: Literal["auto"] | float = "auto",
    anchor: float = 1.0,
    rounds: int = 8,
    moments: Moments | None = None,
    shares: Tensor | None = None,
) -> GaussianFit:
    """The classifier of equation (1), estimated from the unlabeled rows of ``z`` ``(n, d)``, at temperature 1.

    ``moments`` are those of the rows, where they are known already; ``shares`` ``(c,)`` those of the classes.
    """
    n, d = z.shape
    g_weight, g_bias = exact(g.weight.to(z.device)), exact(g.bias.to(z.device))
    log_g = g.log_probabilities(z)
    posterior = log_g.exp()
    one = torch.ones_like(g_weight[0, 0])
    if n < FEWEST_IMAGES:
        centre = mean(z)
        counts = posterior.sum(dim=0)
        means = posterior.T @ (exact(z) - centre) / (counts + FEWEST_PRIOR_IMAGES)[:, None] + centre
        return GaussianFit(LinearClassifier(g_weight, g_bias), counts, means, one, one)
    amount = max(0.3, d / (2 * n + d)) if shrinkage == "auto" else float(shrinkage)
    rows = Assignment.of(z, log_g, anchor, amount, moments)
    c = g.n_classes
    if shares is None:  # a first look, all classes alike: the zero-shot shares would exaggerate what g is partial to
        _, soft, _ = rows.run(TRIAL_ROUNDS, lambda _: torch.zeros_like(g_bias), one)
        unequal = imbalance(soft.support)
        if n >= 8 * c:
            unequal = torch.where(attracted(unequal, log_g), 0 * one, unequal)
        prior: Prior = lambda support: agreed_prior(support, unequal)  # noqa: E731
    else:
        shares = shares.to(g_weight) / shares.sum()
        unequal = 1 + shares.square().sum().log() / math.log(max(2, c))
        prior = lambda _: known_prior(shares, n)  # noqa: E731
    ramp = 1 + 4 * (unequal / 0.3).clamp(min(1.0, 30 * c / n), 1.0)
    fitted, soft, length = rows.run(rounds, prior, ramp)
    axes = rows.axes
    means, weight, bias = fitted.discriminant(soft, length)
    weight = axes.directions @ weight
    bias = bias - axes.centre @ weight
    means = means @ axes.directions.T + axes.centre
    weighed = anchor / rows.excess
    classifier = LinearClassifier(weighed * g_weight + weight.T, weighed * g_bias + bias)
    return GaussianFit(classifier, soft.counts, means, one, rows.start_temperature * rows.excess)


def match_confidence(fitted: GaussianFit, z: Tensor, g: LinearClassifier) -> GaussianFit:
    """``fitted`` at the temperature at which its mean confidence in the rows of ``z`` ``(n, d)`` is what one expects.

    That is the confidence of g, and 0.3 for each prediction that was changed, because about so many more are right.
    """
    if len(z) < FEWEST_IMAGES:
        return fitted  # it is g
    some = z[:: max(1, len(z) // 8192)]
    before, after = g.log_probabilities(some).max(dim=1), fitted.classifier.exact_logits(some)
    changed = exact(after.argmax(dim=1) != before.indices).mean()
    temperature = matching_temperature(after, (before.values.exp().mean() + 0.3 * changed).clamp_max(0.99))
    cooled = LinearClassifier(fitted.classifier.weight / temperature, fitted.classifier.bias / temperature)
    return replace(fitted, classifier=cooled, temperature=temperature)


@dataclass
class Axes:
    """The principal axes of n rows. About them the scatter is diagonal, which makes every round cheap.

    Attributes:
        n: Number of rows.
        centre: ``(d,)`` their mean.
        directions: ``(d, r)`` orthonormal columns, r = min(n, d): the rows differ in no other direction.
        scatter: ``(r,)`` Σᵢ yᵢ² along each.
    """

    n: int
    centre: Tensor
    directions: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, z: Tensor, moments: Moments | None = None) -> tuple[Axes, Tensor]:
        """The axes of the rows of ``z`` ``(n, d)``, and the rows along them ``(n, r)``, in the dtype of ``z``."""
        n, d = z.shape
        if n < d:  # in the span of the rows: n dimensions in place of d
            centre = mean(z)
            span, x = torch.linalg.qr((exact(z) - centre).T)
            scatter = x @ x.T
        else:
            moments = moments or Moments.of(z)
            span, centre, scatter = None, moments.mean, moments.scatter
        values, vectors = eigh(scatter)
        directions = vectors if span is None else span @ vectors
        y, turn, shift = z.new_empty(n, len(values)), directions.to(z.dtype), centre.to(z.dtype)
        for start in range(0, n, CHUNK):
            y[start : start + CHUNK] = (z[start : start + CHUNK] - shift) @ turn
        return cls(n, centre, directions, values.clamp_min(0.0)), y


@dataclass
class SoftStatistics:
    """What equation (2) needs of the soft assignments; the statistics of two sets of rows add up.

    Attributes:
        counts: ``(c,)`` n_c = Σᵢ q_ic.
        squares: ``(c,)`` Σᵢ q_ic².
        sums: ``(c, r)`` Σᵢ q_ic yᵢ of the rows along their axes.
        support: ``(c,)`` Σᵢ q_ic p⁰_ic.
    """

    counts: Tensor
    squares: Tensor
    sums: Tensor
    support: Tensor

    @classmethod
    def empty(cls, axes: Axes, classes: int) -> SoftStatistics:
        """Statistics of no rows, on the device of ``axes``."""
        sums = axes.scatter.new_zeros(classes, len(axes.scatter))
        return cls(sums[:, 0].clone(), sums[:, 0].clone(), sums, sums[:, 0].clone())

    def add(self, y: Tensor, posterior: Tensor, zero_shot: Tensor) -> None:
        """Add the rows of ``y`` ``(n, r)`` with q = ``posterior`` and p⁰ = ``zero_shot``, both ``(n, c)``."""
        self.counts += posterior.sum(dim=0)
        self.squares += posterior.square().sum(dim=0)
        self.sums += posterior.T.to(y.dtype) @ y
        self.support += (posterior * zero_shot).sum(dim=0)


def prior_images(axes: Axes, soft: SoftStatistics) -> Tensor:
    """κ: how many images at the mean of all each class is given, the ratio of variance within classes to between.

    Of the variance seen between class means, Σᵢ q_ic²/n_c of the variance within is noise and is taken off. At least 2,
    at most 100.
    """
    counts = soft.counts.clamp_min(torch.finfo(soft.counts.dtype).tiny)
    total = axes.scatter.sum() / axes.n
    seen = (soft.sums.square().sum(dim=1) / counts).sum() / axes.n
    noise = (soft.squares / counts).sum() / axes.n
    within = torch.minimum((total - seen) / (1 - noise).clamp_min(1e-3), total)
    between = seen - within * noise
    return torch.where(between > 0, within / between, 100.0).clamp(FEWEST_PRIOR_IMAGES, 100.0)


def imbalance(support: Tensor) -> Tensor:
    """0 where the classes that ``support`` ``(c,)`` counts are equally frequent, up to 1 where there is only one.

    1 + log Σπ² / log c, with what chance adds to Σπ² in so small a sample taken off.
    """
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + squares.log() / math.log(max(2, len(support)))


def attracted(unequal: Tensor, log_g: Tensor) -> Tensor:
    """Whether the classes look ``unequal`` because g calls images of other classes by the name of one.

    Where classes are unequal in truth, q and g agree on more unequal shares than g predicts: its errors are spread. A
    class that attracts others is the other way round. From 0.3 on, where much is lost if the classes are unequal after
    all, it has to be clearly so, and shares as unequal as 0.4 are not the work of such a class.
    """
    named = log_g.argmax(dim=1)
    predicted = torch.zeros_like(unequal.expand(log_g.shape[1])).index_add(
        0, named, torch.ones_like(exact(log_g[:, 0]))
    )
    return (unequal < 0.4) & (unequal < torch.where(unequal < 0.3, 1.1, 0.75) * imbalance(predicted))


def agreed_prior(support: Tensor, most: Tensor) -> Tensor:
    """γ log π_c ``(c,)`` from what q and p⁰ agree on; γ goes by how unequal the classes are, at ``most`` as given."""
    prior = (support + 1) / (support.sum() + len(support))
    return (6 * torch.minimum(imbalance(support), most)).clamp_max(2.0) * prior.log()


def known_prior(shares: Tensor, images: int) -> Tensor:
    """log π_c ``(c,)`` of given class shares: half an image more for each, because nobody knows them exactly.

    Only a share of zero is taken at its word.
    """
    counts = shares * images + torch.where(shares > 0, 0.5, 1e-9)
    return (counts / counts.sum()).log()


def spread(z: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` rows of ``z`` ``(n, d)``: the same rows in whatever order they come.

    They are spread evenly along the first coordinate, and where that is equal, as zeros of features are, by their sum.
    """
    order = z.sum(dim=1).argsort(stable=True)
    return order[z[order, 0].argsort(stable=True)][:: -(-len(z) // most)]


def local_covariance(y: Tensor, neighbours: Tensor) -> Tensor:
    """Covariance ``(r, r)`` of the differences of rows ``(n, r)`` to their ``neighbours`` ``(n, k)``, of trace 1.

    Neighbours are mostly of one class, whatever g takes them for.
    """
    scatter = exact(y.new_zeros(y.shape[1], y.shape[1]))
    for part, near in zip(y.split(CHUNK), neighbours.split(CHUNK), strict=True):
        for column in near.T:
            gap = part - y[column]
            scatter += gap.T @ gap
    return scatter / scatter.trace().clamp_min(torch.finfo(scatter.dtype).tiny)


@dataclass
class Gaussians:
    """N(m_c, S) for each class with its log prior, along the axes of all rows.

    With the scatter Λ of all rows diagonal, Ŝ = (Λ − Σ_c (n_c + 2κ) m_c m_cᵀ) / n by equation (2), so S = B − EᵀE with
    B diagonal and one row of E for each class, and S⁻¹ = B⁻¹ + FᵀF with F = (I − EB⁻¹Eᵀ)^{-1/2} E B⁻¹ (Woodbury).
    For more classes than dimensions, and where the shape of S is given, it is S⁻¹ = FᵀF.

    Attributes:
        totals: ``(c,)`` n_c + κ.
        prior_images: ``()`` κ.
        means: ``(c, r)`` class means m_c.
        diagonal: ``(r,)`` B⁻¹, or zeros.
        factor: ``(min(c, r), r)`` F, or ``(r, r)``.
        log_prior: ``(c,)`` γ log π_c.
        trust: ``()`` β.
    """

    totals: Tensor
    prior_images: Tensor
    means: Tensor
    diagonal: Tensor
    factor: Tensor
    log_prior: Tensor
    trust: Tensor

    @classmethod
    def fit(
        cls,
        axes: Axes,
        soft: SoftStatistics,
        shrinkage: float,
        log_prior: Tensor,
        trust: Tensor,
        shape: Tensor | None = None,
    ) -> Gaussians:
        """Estimate (2) from the scatter of all rows and the soft statistics.

        ``shape`` ``(r, r)``, of trace 1, is that of S before shrinkage, where it does not come from the statistics.
        """
        kappa = prior_images(axes, soft)
        totals = soft.counts + kappa
        means = soft.sums / totals[:, None]
        removed = (totals + kappa).sqrt()[:, None] * means
        spread = axes.scatter.sum()
        # identical rows leave no spread within classes: keep a positive one that stays finite when inverted
        floor = torch.maximum(0.01 * spread / axes.n, 1e-9 * (spread / axes.n + axes.centre.square().sum()))
        variance = torch.maximum((spread - removed.square().sum()) / axes.n, floor.clamp_min(1e-30)) / len(axes.centre)
        diagonal = axes.scatter * ((1 - shrinkage) / axes.n) + variance * (shrinkage + 1e-6)
        # a little less than all of it, so that rounding of float32 rows can't make S indefinite
        e = removed * ((1 - 2e-6) * ((1 - shrinkage) / axes.n) ** 0.5)
        if shape is None and len(e) <= len(diagonal):
            diagonal = diagonal.reciprocal()
            rest = torch.eye(len(e), dtype=e.dtype, device=e.device) - (e * diagonal) @ e.T
            factor = torch.linalg.solve_triangular(torch.linalg.cholesky(rest), e * diagonal, upper=False)
        else:  # S itself, and S⁻¹ = FᵀF
            s = diagonal.diag() - e.T @ e
            if shape is not None:
                s = shape * ((1 - shrinkage) * variance * len(axes.centre))
                s.diagonal().add_(variance * (shrinkage + 1e-6))
            diagonal = torch.zeros_like(diagonal)
            factor = torch.linalg.solve_triangular(torch.linalg.cholesky(s), torch.eye(len(s)).to(s), upper=False)
        return cls(totals, kappa, means, diagonal, factor, log_prior, trust)

    @cached_property
    def towards(self) -> Tensor:
        """S⁻¹m_c ``(r, c)``."""
        return self.precise(self.means)

    def precise(self, y: Tensor) -> Tensor:
        """S⁻¹yᵀ ``(r, n)`` of ``y`` ``(n, r)``."""
        return self.diagonal[:, None] * y.T + self.factor.T @ (self.factor @ y.T)

    def leave_one_out(self, y: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """β log N(yᵢ; m_c without yᵢ, S) + γ log π_c ``(n, c)``, and ‖yᵢ‖² in the metric S⁻¹ ``(n,)``."""
        score, lengths = self.distances(y)
        return self.without_own_share(score, posterior), lengths

    def distances(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """‖yᵢ − m_c‖² ``(n, c)`` and ‖yᵢ‖² ``(n,)`` in the metric S⁻¹."""
        products = y @ torch.cat([self.factor.T, self.towards], dim=1).to(
            y.dtype
        )  # the expensive ones: in the rows' dtype
        along, across = products.split([len(self.factor), len(self.means)], dim=1)
        lengths = exact(y.square() @ self.diagonal.to(y.dtype) + along.square().sum(dim=1))
        score = exact(across).mul(-2).add_(lengths[:, None]).add_((self.means.T * self.towards).sum(dim=0))
        return score, lengths

    def without_own_share(self, score: Tensor, posterior: Tensor) -> Tensor:
        """Of the squared distances ``score``, which are overwritten, what :meth:`leave_one_out` gives."""
        score /= (posterior / self.totals).neg_().add_(1).square_()  # in place: each is as large as all rows × classes
        return score.mul_(-0.5 * self.trust).add_(self.log_prior)

    def discriminant(self, soft: SoftStatistics, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Final means ``(c, r)``, weight ``(r, c)`` and bias ``(c,)`` of β log N(y; m_c, S) + γ log π_c.

        ``length`` is the mean of the lengths of :meth:`leave_one_out`: about ``length``/n_c of the squared length of an
        estimated mean is noise.
        """
        totals = soft.counts + self.prior_images
        means = soft.sums / totals[:, None]
        weight = self.precise(means)
        square = (means.T * weight).sum(dim=0) - length * soft.counts / totals.square()
        return means, self.trust * weight, self.log_prior - 0.5 * self.trust * square


@dataclass
class Assignment:
    """All rows with what g says of them, ready for rounds of equations (1) and (2).

    Attributes:
        axes: Their principal axes.
        y: ``(n, r)`` rows along them.
        log_g: ``(n, c)`` log p⁰, of a g that is at most twice as sure as its neighbours allow.
        anchor: λ.
        shrinkage: a.
        some: Indices of the rows among which neighbours are looked for.
        neighbours: ``(m, k)`` nearest neighbours of each of them, as places among them.
        start_temperature: ``()`` at which g makes the first assignment, lest its sure errors decide the first means.
        excess: ``()`` what the logits of g have been divided by.
    """

    axes: Axes
    y: Tensor
    log_g: Tensor
    anchor: float
    shrinkage: float
    some: Tensor
    neighbours: Tensor
    start_temperature: Tensor
    excess: Tensor

    @classmethod
    def of(
        cls, z: Tensor, log_g: Tensor, anchor: float, shrinkage: float, moments: Moments | None = None
    ) -> Assignment:
        """Of the rows of ``z`` ``(n, d)`` and their log-probabilities ``log_g`` ``(n, c)``."""
        axes, y = Axes.of(z, moments)
        some = spread(z, max(NEIGHBOUR_ROWS, 8 * log_g.shape[1]))
        neighbours = nearest(y[some], NEIGHBOURS)
        told = torch.ones_like(exact(log_g[0, 0]))
        if len(z) >= 8 * log_g.shape[1]:  # among fewer the nearest is often of another class
            told = temperature(log_g[some], neighbours[:, 0])
        start, excess = told.clamp_max(TWICE) ** POWER, (told / TWICE).clamp_min(1.0)
        log_g = (log_g / excess).log_softmax(dim=1)
        return cls(axes, y, log_g.to(y.dtype), anchor, shrinkage, some, neighbours, start, excess)

    def _first(self) -> Tensor:
        """The first assignment ``(n, c)``."""
        return (exact(self.log_g) / self.start_temperature).softmax(dim=1)

    @cached_property
    def _start(self) -> tuple[SoftStatistics, Gaussians, list[tuple[Tensor, Tensor]]]:
        """Statistics of the first q, the Gaussians with the first S, and the distances of all rows: so runs begin."""
        c = self.log_g.shape[1]
        soft = SoftStatistics.empty(self.axes, c)
        parts = (self.y, self.log_g, self._first())
        for y, log_p, q in zip(*(part.split(CHUNK) for part in parts), strict=True):
            soft.add(y, q, exact(log_p).exp())
        zero = torch.zeros_like(soft.counts)
        local = local_covariance(self.y[self.some], self.neighbours)
        first = Gaussians.fit(self.axes, soft, self.shrinkage, zero, zero[0], local)
        return soft, first, [first.distances(y) for y in self.y.split(CHUNK)]

    def run(self, rounds: int, prior: Prior, ramp: Tensor) -> tuple[Gaussians, SoftStatistics, Tensor]:
        """Assign and estimate ``rounds`` times from the first q; β grows to its full weight over ``ramp`` of them.

        Returns the last Gaussians, the soft statistics of the last assignment, and the mean length of
        :meth:`Gaussians.leave_one_out`.
        """
        n, c = self.log_g.shape
        soft, first, known = self._start
        posterior = self._first()
        parts = list(zip(self.y.split(CHUNK), self.log_g.split(CHUNK), posterior.split(CHUNK), known, strict=True))
        for step in range(rounds):
            trust = ((step + 1) / ramp).clamp_max(1.0) * min(1.0, n / (8 * c))
            if step == 0:
                fitted = replace(first, log_prior=prior(soft.support), trust=trust)
            else:
                fitted = Gaussians.fit(self.axes, soft, self.shrinkage, prior(soft.support), trust)
            soft, length = SoftStatistics.empty(self.axes, c), torch.zeros_like(self.axes.scatter[0])
            for y, log_p, q, (score, lengths) in parts:  # q is overwritten in place
                if step == 0:
                    likelihood = fitted.without_own_share(score.clone(), q)
                else:
                    likelihood, lengths = fitted.leave_one_out(y, q)
                q.copy_(likelihood.add_(log_p, alpha=self.anchor).softmax(dim=1))
                soft.add(y, q, log_p.exp())
                length += lengths.sum() / n
        return fitted, soft, length


def matching_temperature(logits: Tensor, confidence: Tensor) -> Tensor:
    """The temperature ≥ 1 at which the mean of the largest softmax probability falls to ``confidence`` (bisection)."""
    low, high = torch.zeros_like(confidence), torch.full_like(confidence, 20.0)
    gaps = (logits - logits.max(dim=1, keepdim=True).values).T.contiguous()  # classes first: sums over them are fast
    powers = torch.empty_like(gaps)
    for _ in range(32):
        middle = (low + high) / 2
        sure = torch.div(gaps, 2**middle, out=powers).exp_().sum(dim=0).reciprocal_().mean() > confidence
        low, high = torch.where(sure, middle, low), torch.where(sure, high, middle)
    return 2**low


def least_move(adapted: LinearClassifier, g: LinearClassifier) -> tuple[Tensor, Tensor]:
    """``(d, d)`` matrix and ``(d,)`` offset of the smallest move after which g says what ``adapted`` says."""
    g_weight, g_bias = exact(g.weight.to(adapted.device)), exact(g.bias.to(adapted.device))
    difference = adapted.bias - g_bias
    weight = (adapted.weight - adapted.weight.mean(dim=0)).T
    g_weight = (g_weight - g_weight.mean(dim=0)).T
    inverse = torch.linalg.pinv(g_weight, rtol=1e-6)
    matrix = (weight - g_weight) @ inverse
    matrix.diagonal().add_(1.0)
    return matrix, (difference - difference.mean()) @ inverse
