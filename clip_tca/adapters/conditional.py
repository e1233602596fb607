"""ConditionalTCA: align each class, not the mixture of all classes.

The covariance of a test set is Σ = Σ_within + Σ_between, and Σ_between depends on how often each class occurs.
Aligning Σ therefore aligns class proportions as well. ConditionalTCA models the embeddings class by class, with one
shared covariance, z | y = c ~ N(m_c, S). The prediction p⁰ of the classifier g (weight w_c, bias b_c) is a second
source of evidence. By Bayes' rule, up to a constant in c,

    log q(c | z) = λ log p⁰(c | z) + β log N(z; m_c, S) + γ log π_c                                          (1)
                 = z·(λ w_c + β S⁻¹m_c) + λ b_c − ½ β m_cᵀS⁻¹m_c + γ log π_c ,

because zᵀS⁻¹z is the same for all classes. So q is a linear classifier again. Its parameters come from soft
assignments, by a few rounds of EM that start at q = p⁰ (p⁰ stays in (1), so the classes keep their names):

    n_c = Σᵢ q_ic ,   m_c = Σᵢ q_ic zᵢ / (n_c + κ) ,   Ŝ = Σᵢ_c q_ic (zᵢ−m_c)(zᵢ−m_c)ᵀ / n      (z centred)     (2)

The safeguards, in the order of the functions below:

* **Over-confidence.** If g is sure of its errors, EM can't correct them. Nearest neighbours mostly share a class, and
  the temperature t at which g best predicts its own opinion of the neighbour measures how over-confident g is. If
  t > 2, the logits of g are divided by t/2, which leaves t = 2. Neighbours share errors, so t says too little: the
  first q is g at t³ (n ≥ 8c).
* **First covariance from neighbours.** Errors of g put scatter between classes into the first Ŝ. The first S takes its
  shape from the differences of nearest neighbours instead, and its trace from Ŝ.
* **Shrunken means and covariance.** κ, the ratio of variance within classes to variance between them, adds that many
  pseudo-images at the overall mean to each class. S = (1−a) Ŝ + a (tr Ŝ/d) I with a = max(0.3, d/(2n+d)).
* **Class prior from agreement.** π_c ∝ 1 + Σᵢ q_ic p⁰_ic counts only what q and p⁰ agree on, so an absent class can't
  support itself. γ = min(2, 30u²) grows with the imbalance u = 1 + log Σπ_c² / log c, less what chance adds, so that
  a small imbalance, which errors of g can cause, hardly counts. u is capped by its value after two rounds without a
  prior. If that value is below 0.4 and below ¾ of the imbalance of g's own predictions, one class attracts images of
  others, and u is set to 0 (n ≥ 8c). Given shares are used with γ = 1.
* **Leave-one-out assignment.** m_c contains zᵢ, which pulls zᵢ to its class by d/n_c nats. Without its own share,
  zᵢ − m_c becomes (zᵢ − m_c) / (1 − q_ic/(n_c+κ)), exactly. The final bias is corrected for the same effect.
* **Calibrated trust.** In d dimensions N outweighs everything else, and with many classes much of that is noise of the
  class means. β₁ is the weight at which the Gaussians alone best predict the labels of g. It is safe, but too small if
  classes are few or if g is often wrong, which its over-confidence t shows. β is the larger of β₁ and (30/c)³, times
  min(1, n/8c), or (min(2, t) − 1)³ min(1, n/30c) if that is more; at most 1. β rises to this value over 5 rounds if
  there are at most 30 images per class, and over fewer rounds otherwise.
* **Keep g if it is confident.** On images like those it was trained on, g is right, and it is sure of the predictions
  that would change. If its mean confidence in those, at temperature t, is above 0.65, g is kept. This does not apply
  if ``shares`` are not estimated. Below 8 images g is kept as well.

The logits of (1) are over-confident in d dimensions. They are divided by one temperature, at which the mean confidence
is that of g without its over-confidence. ``transform`` makes the smallest move after which g agrees with q:
z′ = z + (logits − logits⁰)·pinv(W), with W the centred weights of g.

All rounds work along the principal axes of the rows, where the total scatter is diagonal: with fewer classes than
dimensions a round then costs n·d·c in place of n·d². eval/defaults.md shows what each safeguard is worth.

Related work: TransCLIP (Zanella et al., NeurIPS 2024) and StatA (Zanella et al., CVPR 2025) fit Gaussians with a
KL-to-text term by block updates; Wang et al. (ICLR 2024) use Gaussian discriminant analysis with labelled shots;
ADAPT (Zhang et al., NeurIPS 2025) keeps per-class banks and a shared covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter, Shares, check_shares, log, share_vector
from clip_tca.adapters.statistics import EvenSample, Moments, evenly, moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_number, check_whole
from clip_tca.core.tensors import double, is_fake

FEWEST_IMAGES = 8
"""With fewer images g is kept as it is."""
NEIGHBOURS = 3
NEIGHBOUR_ROWS = 512
"""Rows among which neighbours are searched, or 8 for each class if that is more."""
CALIBRATION_ROWS = 512
"""Rows on which β₁ is found."""
FEW_CLASSES = 30
"""Number of classes up to which the Gaussians are trusted fully."""
FEW_PER_CLASS = 30
"""Images per class below which the Gaussians are trusted less, and later."""
MOST_CONFIDENT = 0.65
"""Mean confidence of g in the predictions that would change, above which g is kept."""
MAY_STOP = 4
"""The first round after which EM may stop early."""
NO_CHANGE = 1e-3
"""EM stops when no class count changes by as many images."""
ROWS_AT_ONCE = 1024


# -- g and its neighbours ----------------------------------------------------------------------------------------------


def log_probabilities(z: Tensor, g: LinearClassifier, temperature: float = 1.0) -> Tensor:
    """log p⁰ ``(n, c)`` of the rows of ``z`` ``(n, d)``, in their dtype."""
    weight, bias = g.weight.to(z), g.bias.to(z)
    log_p = z.new_empty(len(z), len(bias))
    for part, out in zip(z.split(ROWS_AT_ONCE), log_p.split(ROWS_AT_ONCE), strict=True):
        torch.log_softmax(torch.addmm(bias, part, weight.T) / temperature, dim=1, out=out)
    return log_p


def spread_rows(z: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` rows, spread along the first coordinate: the same rows in any order of ``z``."""
    order = z.sum(dim=1).argsort(stable=True)
    return order[z[order, 0].argsort(stable=True)][evenly(len(z), most)]


def nearest(y: Tensor, count: int) -> Tensor:
    """Indices ``(n, k)`` of the ``count`` nearest other rows of each row of ``y`` ``(n, r)``, the nearest first."""
    squares, found = y.square().sum(dim=1), []
    for start in range(0, len(y), ROWS_AT_ONCE):
        distance = torch.addmm(squares, y[start : start + ROWS_AT_ONCE], y.T, alpha=-2)
        distance.diagonal(start).fill_(float("inf"))
        found.append(distance.topk(min(count, len(y) - 1), largest=False).indices)
    return torch.cat(found)


def neighbour_temperature(log_p: Tensor, neighbour: Tensor) -> float:
    """t ≥ 1 at which p ∝ exp(log p⁰ / t) predicts best, in log-likelihood, what g says of the ``neighbour`` ``(n,)``.

    At that t the derivative is zero: E_p[log p⁰] equals the expectation under the neighbour's probabilities.
    """
    wanted = double((log_p[neighbour].exp() * log_p).sum())

    def surplus(log_t: float) -> Tensor:
        return double(((log_p / math.exp(log_t)).softmax(dim=1) * log_p).sum()) - wanted

    return math.exp(falling_root(surplus, 0.0, math.log(1e4)))


def local_covariance(y: Tensor, neighbours: Tensor) -> Tensor:
    """Covariance ``(r, r)``, of trace 1, of the differences of rows ``(n, r)`` to their ``neighbours`` ``(n, k)``."""
    gaps = torch.cat([y - y[column] for column in neighbours.T])
    scatter = double(gaps.T @ gaps)
    return scatter / scatter.trace().clamp_min(torch.finfo(scatter.dtype).tiny)


# -- equation (2) ------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows along their principal axes, and what g says of them.

    Attributes:
        y: ``(n, r)`` centred rows along the axes, r = min(n, d).
        log_p: ``(n, c)`` log p⁰.
        mean: ``(d,)`` mean of the rows.
        axes: ``(d, r)`` orthonormal columns.
        scatter: ``(r,)`` Σᵢ yᵢ² along each axis.
    """

    y: Tensor
    log_p: Tensor
    mean: Tensor
    axes: Tensor
    scatter: Tensor


def along_axes(z: Tensor, log_p: Tensor, m: Moments | None = None) -> Rows:
    """Rotate ``z`` ``(n, d)`` to its principal axes; ``m`` are its moments if they are known."""
    n, d = z.shape
    m = m or moments(z)
    mean = m.mean.to(z.dtype)
    if n < d:
        _, roots, turned = torch.linalg.svd(z - mean, full_matrices=False)
        axes, scatter = turned.T, double(roots).square()
    else:
        total = m.covariance.trace().clamp_min(torch.finfo(m.covariance.dtype).tiny)
        values, axes = torch.linalg.eigh((m.covariance / total).to(z.dtype))
        scatter = double(values).clamp_min(0) * total * (n - 1)
    y = torch.cat([(part - mean) @ axes for part in z.split(ROWS_AT_ONCE)])
    return Rows(y, log_p, m.mean, axes, scatter)


class Statistics(NamedTuple):
    """Sums over the soft assignments q: n_c, Σᵢ q_ic² and Σᵢ q_ic p⁰_ic, each ``(c,)``, and Σᵢ q_ic yᵢ ``(c, r)``."""

    counts: Tensor
    squares: Tensor
    support: Tensor
    sums: Tensor


def soft_statistics(rows: Rows, q: Tensor) -> Statistics:
    """The sums over q ``(n, c)``."""
    counts, squares, support = rows.scatter.new_zeros(3, q.shape[1])
    sums = rows.scatter.new_zeros(len(counts), len(rows.scatter))
    for y, log_p, part in zip(*(x.split(ROWS_AT_ONCE) for x in (rows.y, rows.log_p, q)), strict=True):
        counts += part.sum(dim=0)
        squares += part.square().sum(dim=0)
        support += (part * log_p.exp()).sum(dim=0)
        sums += part.T @ y
    return Statistics(counts, squares, support, sums)


class Gaussians(NamedTuple):
    """N(m_c, S) along the axes, with S⁻¹ = diag(``diagonal``) + FᵀF.

    Attributes:
        kappa: ``()`` κ.
        totals: ``(c,)`` n_c + κ.
        means: ``(c, r)`` m_c.
        diagonal: ``(r,)``.
        factor: ``(·, r)`` F.
    """

    kappa: Tensor
    totals: Tensor
    means: Tensor
    diagonal: Tensor
    factor: Tensor

    def times_precision(self, x: Tensor) -> Tensor:
        """S⁻¹xᵢ ``(n, r)`` of the rows of ``x``."""
        return x * self.diagonal + (x @ self.factor.T) @ self.factor

    def squared_lengths(self, x: Tensor) -> Tensor:
        """xᵢᵀS⁻¹xᵢ ``(n,)`` of the rows of ``x``, in their dtype."""
        return x.square() @ self.diagonal.to(x) + (x @ self.factor.to(x).T).square_().sum(dim=1)


def prior_images(rows: Rows, soft: Statistics) -> Tensor:
    """κ ``()``: the ratio of variance within classes to variance between them, from 2 to 100.

    Σᵢ q_ic²/n_c of the variance within classes shows up between the class means as noise, and is taken off.
    """
    n, counts = len(rows.y), soft.counts.clamp_min(torch.finfo(soft.counts.dtype).tiny)
    total = rows.scatter.sum() / n
    seen = (soft.sums.square().sum(dim=1) / counts).sum() / n
    noise = (soft.squares / counts).sum() / n
    within = torch.minimum((total - seen) / (1 - noise).clamp_min(1e-3), total)
    between = seen - within * noise
    return torch.where(between > 0, within / between, 100.0).clamp(2.0, 100.0)


def class_gaussians(rows: Rows, soft: Statistics, a: float, shape: Tensor | None = None) -> Gaussians:
    """Equation (2) with shrinkage ``a``; ``shape`` ``(r, r)`` of trace 1 replaces that of Ŝ.

    Along the axes the total scatter Λ is diagonal, so Ŝ = (Λ − Σ_c (n_c + 2κ) m_c m_cᵀ) / n and S = B − EᵀE with B
    diagonal and a row of E for each class. By Woodbury, S⁻¹ = B⁻¹ + FᵀF with F = (I − EB⁻¹Eᵀ)^{-1/2} E B⁻¹, a small
    inverse where there are few classes. Otherwise S = LLᵀ and F = L⁻¹.
    """
    n, d = len(rows.y), len(rows.mean)
    kappa = prior_images(rows, soft)
    totals = soft.counts + kappa
    means = soft.sums / totals[:, None]
    removed = (totals + kappa).sqrt()[:, None] * means
    spread = rows.scatter.sum() / n
    # identical rows leave no variance within classes: keep a positive one that stays finite when inverted
    floor = torch.maximum(0.01 * spread, 1e-9 * (spread + rows.mean.square().sum())).clamp_min(1e-30)
    variance = torch.maximum(spread - removed.square().sum() / n, floor) / d
    ridge = (a + 1e-6) * variance
    diagonal = rows.scatter * ((1 - a) / n) + ridge
    e = removed * ((1 - 2e-6) * ((1 - a) / n) ** 0.5)  # a little less, so that rounding can't make S indefinite
    if shape is None and len(e) < len(diagonal):
        diagonal = diagonal.reciprocal()
        rest = torch.eye(len(e), dtype=e.dtype, device=e.device) - (e * diagonal) @ e.T
        return Gaussians(kappa, totals, means, diagonal, solve_lower(rest, e * diagonal))
    if shape is None:
        s = diagonal.diag() - e.T @ e
    else:
        s = shape * ((1 - a) * variance * d)
        s.diagonal().add_(ridge)
    eye = torch.eye(len(s), dtype=s.dtype, device=s.device)
    return Gaussians(kappa, totals, means, torch.zeros_like(diagonal), solve_lower(s, eye))


def solve_lower(positive: Tensor, right: Tensor) -> Tensor:
    """L⁻¹ · ``right`` for the Cholesky factor L of ``positive``."""
    solved: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(positive), right, upper=False)
    return solved


# -- the class prior ---------------------------------------------------------------------------------------------------


def imbalance(support: Tensor) -> Tensor:
    """u ``()`` of the counts ``support`` ``(c,)``: 0 for equally frequent classes, up to 1 for a single one."""
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + squares.log() / math.log(max(2, len(support)))


def imbalance_is_artefact(unequal: Tensor, predicted: Tensor) -> Tensor:
    """Whether the classes look ``unequal`` only because g gives many images of other classes to one class.

    If classes are unequal in truth, q and g agree on shares that are about as unequal as those that g predicts
    (``predicted`` ``(c,)`` counts). If one class attracts others, they agree on shares that are clearly more equal.
    """
    return (unequal < 0.4) & (unequal < 0.75 * imbalance(predicted))


def agreed_prior(support: Tensor, cap: Tensor) -> Tensor:
    """γ log π_c ``(c,)`` from Σᵢ q_ic p⁰_ic = ``support`` ``(c,)``; the imbalance counts up to ``cap``."""
    prior = (support + 1) / (support.sum() + len(support))
    return (30 * torch.minimum(imbalance(support), cap).square()).clamp_max(2.0) * prior.log()


def given_prior(shares: Tensor, n: int) -> Tensor:
    """log π_c ``(c,)`` of given shares: half an image more for each class, unless its share is 0."""
    counts = shares * n + torch.where(shares > 0, 0.5, 1e-9)
    return (counts / counts.sum()).log()


# -- equation (1) ------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """What EM ends with: q ``(n, c)``, its statistics, the last Gaussians, γ log π_c ``(c,)`` and β."""

    q: Tensor
    soft: Statistics
    gaussians: Gaussians
    log_prior: Tensor
    trust: float


class Start(NamedTuple):
    """Where EM starts.

    Attributes:
        q: ``(n, c)`` first assignments.
        soft: Their statistics.
        gaussians: The Gaussians of the first round.
        lengths: ``(n,)`` yᵢᵀS⁻¹yᵢ in the first round.
        sample: Indices of the rows on which β₁ is found.
    """

    q: Tensor
    soft: Statistics
    gaussians: Gaussians
    lengths: Tensor
    sample: Tensor


def start_at(rows: Rows, temperature: float, local: Tensor, a: float, sample: Tensor) -> Start:
    """The first q is g at ``temperature``, the first S has the shape ``local`` ``(r, r)``."""
    q = (rows.log_p / temperature).softmax(dim=1)
    soft = soft_statistics(rows, q)
    gaussians = class_gaussians(rows, soft, a, local)
    lengths = torch.cat([gaussians.squared_lengths(y) for y in rows.y.split(ROWS_AT_ONCE)])
    return Start(q, soft, gaussians, lengths, sample)


class Density:
    """log N(y; m_c, S) up to a constant, of each row without its own share of m_c."""

    def __init__(self, gaussians: Gaussians, like: Tensor) -> None:
        """Prepare products in the dtype of ``like``."""
        precision_means = gaussians.times_precision(gaussians.means)
        self.weight = precision_means.to(like)
        self.bias = (-0.5 * (gaussians.means * precision_means).sum(dim=1)).to(like)
        self.totals = gaussians.totals.to(like)
        self.gaussians = gaussians

    def __call__(self, y: Tensor, q: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``(n, c)`` for rows ``y`` ``(n, r)`` that have shares ``q`` ``(n, c)``; ``lengths`` are yᵢᵀS⁻¹yᵢ if known."""
        lengths = self.gaussians.squared_lengths(y) if lengths is None else lengths
        density = torch.addmm(self.bias, y, self.weight.T).sub_(0.5 * lengths[:, None])
        return density.div_((1 - q / self.totals).square_())


def calibrated_weight(log_p: Tensor, density: Tensor) -> float:
    """β₁ ≤ 1 at which softmax(β ``density``) best predicts p⁰, in log-likelihood; both are ``(n, c)``."""
    density = density - density.amax(dim=1, keepdim=True)
    wanted = double((log_p.exp() * density).sum())

    def surplus(log_beta: float) -> Tensor:
        return wanted - double(((math.exp(log_beta) * density).softmax(dim=1) * density).sum())

    return math.exp(falling_root(surplus, math.log(1e-3), 0.0, tolerance=1e-3))


def expectation_maximization(
    rows: Rows,
    start: Start,
    rounds: int,
    prior: Callable[[Tensor], Tensor],
    anchor: float,
    a: float,
    ramp: float = 1.0,
    least_trust: float = 1.0,
) -> Estimate:
    """``rounds`` of (2) and (1) from a start; β rises over ``ramp`` rounds.

    β is at least ``least_trust`` and at most min(1, n/8c); in between, β₁ decides.
    ``prior`` makes γ log π_c ``(c,)`` from Σᵢ q_ic p⁰_ic ``(c,)``. Rounds that change nothing are left out.
    """
    n, c = rows.log_p.shape
    most_trust = min(1.0, n / (8 * c))
    q, soft = start.q.clone(), start.soft
    for step in range(rounds):
        gaussians, lengths = (class_gaussians(rows, soft, a), None) if step else (start.gaussians, start.lengths)
        density = Density(gaussians, q)
        trust = min(least_trust, most_trust)
        if trust < most_trust:
            some = start.sample
            trust = max(trust, most_trust * calibrated_weight(rows.log_p[some], density(rows.y[some], q[some])))
        beta = trust * min(1.0, (step + 1) / ramp)
        log_prior = prior(soft.support)
        for i in range(0, n, ROWS_AT_ONCE):
            place = slice(i, i + ROWS_AT_ONCE)
            scores = density(rows.y[place], q[place], None if lengths is None else lengths[place]).mul_(beta)
            torch.softmax(scores.add_(log_prior.to(q)).add_(rows.log_p[place], alpha=anchor), dim=1, out=q[place])
        before, soft = soft, soft_statistics(rows, q)
        if step >= MAY_STOP and not is_fake(q) and bool((soft.counts - before.counts).abs().max() < NO_CHANGE):
            break
    return Estimate(q, soft, gaussians, log_prior, beta)


def discriminant(rows: Rows, e: Estimate) -> tuple[Tensor, Tensor, Tensor]:
    """Means ``(c, d)``, weight ``(c, d)`` and bias ``(c,)`` of β log N(z; m_c, S) + γ log π_c.

    About E[yᵀS⁻¹y]/n_c of the squared length of an estimated mean is noise, and is taken off the bias.
    """
    totals = e.soft.counts + e.gaussians.kappa
    means = e.soft.sums / totals[:, None]
    precision_means = e.gaussians.times_precision(means)
    length = rows.scatter @ (e.gaussians.diagonal + e.gaussians.factor.square().sum(dim=0)) / len(rows.y)
    squares = (means * precision_means).sum(dim=1) - length * e.soft.counts / totals.square()
    axes = double(rows.axes)
    weight = e.trust * precision_means @ axes.T
    return means @ axes.T + rows.mean, weight, e.log_prior - 0.5 * e.trust * squares - weight @ rows.mean


# -- the whole fit -----------------------------------------------------------------------------------------------------


class GaussianFit(NamedTuple):
    """The adapted classifier, with what it was estimated from; :class:`ConditionalTCA` names its parts."""

    weight: Tensor
    bias: Tensor
    counts: Tensor
    means: Tensor
    overconfidence: Tensor
    trust: Tensor
    disputed: Tensor


def fit_conditional(
    z: Tensor,
    g: LinearClassifier,
    shrinkage: Literal["auto"] | float = "auto",
    anchor: float = 1.0,
    rounds: int = 8,
    shares: Tensor | None = None,
    m: Moments | None = None,
) -> GaussianFit:
    """Estimate the classifier of equation (1) from the unlabeled, prepared rows of ``z`` ``(n, d)``.

    ``shares`` ``(c,)`` are those of the classes if they are known, ``m`` the moments of the rows.
    """
    (n, d), c = z.shape, g.n_classes
    g_weight, g_bias = double(g.weight.to(z.device)), double(g.bias.to(z.device))
    one = torch.ones_like(g_bias[0])
    log_p = log_probabilities(z, g)
    if n < FEWEST_IMAGES:
        p = double(log_p.exp())
        counts = p.sum(dim=0)
        return GaussianFit(
            g_weight, g_bias, counts, p.T @ double(z) / counts.clamp_min(1e-30)[:, None], one, 0 * one, 0 * one
        )
    rows = along_axes(z, log_p, m)
    a = max(0.3, d / (2 * n + d)) if shrinkage == "auto" else float(shrinkage)

    subset = spread_rows(z, max(NEIGHBOUR_ROWS, 8 * c))
    neighbours = nearest(rows.y[subset], NEIGHBOURS)
    t = neighbour_temperature(log_p[subset], neighbours[:, 0])
    excess = max(1.0, t / 2)
    if excess > 1:
        rows = rows._replace(log_p=log_probabilities(z, g, excess))
    rest = t / excess if n >= 8 * c else 1.0  # with fewer images, neighbours are often of other classes
    sample = subset[evenly(len(subset), CALIBRATION_ROWS)]
    start = start_at(rows, rest**3, local_covariance(rows.y[subset], neighbours), a, sample)

    g_labels = rows.log_p.argmax(dim=1)
    if shares is None:
        unequal = imbalance(expectation_maximization(rows, start, 2, torch.zeros_like, anchor, a).soft.support)
        if n >= 8 * c:
            predicted = torch.zeros_like(g_bias).index_add(0, g_labels, torch.ones_like(double(z[:, 0])))
            unequal = torch.where(imbalance_is_artefact(unequal, predicted), 0.0, unequal)
        prior: Callable[[Tensor], Tensor] = partial(agreed_prior, cap=unequal)
    else:
        shares = shares.to(g_bias) / shares.sum()
        known = given_prior(shares, n)
        prior = lambda _: known  # noqa: E731
    doubt = (t / excess - 1) ** 3 * min(1.0, n / (FEW_PER_CLASS * c))
    least_trust = max((FEW_CLASSES / c) ** 3 * min(1.0, n / (8 * c)), doubt)
    ramp = 1 + 4 * min(1.0, FEW_PER_CLASS * c / n)
    estimate = expectation_maximization(rows, start, rounds, prior, anchor, a, ramp, least_trust)

    means, weight, bias = discriminant(rows, estimate)
    weight, bias = weight + anchor / excess * g_weight, bias + anchor / excess * g_bias
    disputed = disputed_confidence(rows.log_p, rest, estimate.q.argmax(dim=1) != g_labels)
    disputed = disputed if shares is None else 0 * disputed  # shares that are not estimated are reason to change
    kept = disputed > MOST_CONFIDENT
    weight, bias = torch.where(kept, g_weight, weight), torch.where(kept, g_bias, bias)
    trust = torch.where(kept, 0.0, estimate.trust * one)
    return GaussianFit(weight, bias, estimate.soft.counts, means, excess * one, trust, disputed)


def disputed_confidence(log_p: Tensor, t: float, changed: Tensor) -> Tensor:
    """Mean confidence ``()`` of g at temperature ``t`` in the rows that are ``changed`` ``(n,)``; 0 if none is."""
    confidence = [(part / t).softmax(dim=1).amax(dim=1) for part in log_p.split(ROWS_AT_ONCE)]
    return (double(torch.cat(confidence)) * changed).sum() / changed.sum().clamp_min(1)


def matching_temperature(z: Tensor, weight: Tensor, bias: Tensor, g: LinearClassifier, overconfidence: float) -> float:
    """The temperature ≥ 1 of the adapted logits at which their mean confidence is that of g without its excess."""
    z = z[evenly(len(z), 8192)]
    goal = double(log_probabilities(z, g, overconfidence).amax(dim=1).exp()).mean()
    logits = torch.addmm(bias.to(z), z, weight.to(z).T)
    gaps = (logits - logits.amax(dim=1, keepdim=True)).split(ROWS_AT_ONCE)

    def surplus(log_t: float) -> Tensor:
        parts = [(part / 2**log_t).exp_().sum(dim=1).reciprocal_() for part in gaps]
        return double(torch.cat(parts)).mean() - goal

    return float(2 ** falling_root(surplus, 0.0, 20.0))


def falling_root(f: Callable[[float], Tensor], low: float, high: float, tolerance: float = 1e-6) -> float:
    """Where the falling function ``f`` is zero between two numbers, or the nearer end; by Ridders' method."""
    first = f(low)
    if is_fake(first):
        return low
    f_low, f_high = float(first), float(f(high))
    if f_low <= 0 or f_high > 0:
        return low if f_low <= 0 else high
    while high - low > tolerance:
        middle = (low + high) / 2
        f_middle = float(f(middle))
        x = middle + (middle - low) * f_middle / math.sqrt(f_middle**2 - f_low * f_high)
        f_x = float(f(x))
        points = sorted([(low, f_low), (middle, f_middle), (x, f_x), (high, f_high)])
        low, f_low = [point for point in points if point[1] > 0][-1]
        high, f_high = next(point for point in points if point[1] <= 0)
        if min(f_low, -f_high) < tolerance * 1e-3:
            break
    return low if f_low < -f_high else high


def least_move(weight: Tensor, bias: Tensor, g: LinearClassifier) -> tuple[Tensor, Tensor]:
    """Matrix ``(d, d)`` and offset ``(d,)`` of the smallest move after which g predicts what ``weight`` predicts.

    The pseudo-inverse comes from the eigenvectors of the smaller of WWᵀ and WᵀW; singular values below 1e-6 of the
    largest count as zero.
    """
    g_weight, g_bias = double(g.weight.to(weight.device)), double(g.bias.to(weight.device))
    w = g_weight - g_weight.mean(dim=0)
    wide = len(w) >= w.shape[1]
    values, vectors = torch.linalg.eigh(w.T @ w if wide else w @ w.T)
    inverses = torch.where(values > 1e-12 * values[-1], values.reciprocal(), 0.0)
    inverse = (vectors * inverses) @ vectors.T
    inverse = w @ inverse if wide else inverse @ w
    difference, gap = bias - g_bias, weight - weight.mean(dim=0) - w
    matrix = gap.T @ inverse
    matrix.diagonal().add_(1.0)
    return matrix, (difference - difference.mean()) @ inverse


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalTCA(Adapter):
    """Class-conditional correlation alignment: soft class means and one shared, shrunk within-class covariance.

    ``fit`` and ``partial_fit`` both estimate the classifier from at most ``memory`` evenly spread rows.

    Attributes:
        classifier: g, a zero-shot classifier or any other linear one.
        shares: How frequent the classes are, the prior π: a number for each class or ``{class name: number}`` if you
            know it, otherwise ``"estimated"``, ``"uniform"`` or ``"predicted"`` (as g predicts).
        shrinkage: a of the within-class covariance: ``"auto"`` or a number from 0 to 1.
        anchor: λ, the weight of the log-probabilities of g.
        rounds: Number of EM rounds.
        memory: Rows kept for the estimate; ``"auto"`` is 8192, or 32 for each class if that is more.
        normalize: Scale embeddings to unit length first; None is True for prompts, False for any other head.
        refresh: New images after which a stream solves again (see :mod:`clip_tca.adapters.base`).

    Learned attributes:
        W_, offset_: ``(d, d)`` and ``(d,)``: ``transform`` is zW + offset.
        weight_, bias_: ``(d, c)`` and ``(c,)`` of the adapted classifier.
        counts_, means_: ``(c,)`` soft class counts in the sample and ``(c, d)`` class means.
        temperature_: What the logits were divided by.
        overconfidence_: What those of g were divided by; 1 unless g is far too sure.
        trust_: β, the weight of the Gaussians; 0 if g was kept.
        disputed_: Mean confidence of g in the predictions that would change, at temperature t.
        n_seen_: Number of embeddings seen.
    """

    shares: Shares = "estimated"
    shrinkage: Literal["auto"] | float = "auto"
    anchor: float = 1.0
    rounds: int = 8
    memory: Literal["auto"] | int = "auto"

    _growth = 0.5

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_shares(self.shares, self.classifier, ("estimated", "uniform", "predicted"))
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_number("anchor", self.anchor)
        check_whole("rounds", self.rounds)
        check_whole("memory", self.memory, 2, also="auto")

    def _start(self) -> EvenSample:
        return EvenSample(max(8192, 32 * self.classifier.n_classes) if self.memory == "auto" else self.memory)

    def _observe(self, observed: EvenSample, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        observed.add(z)

    def _checked_logits(self, logits: Tensor | np.ndarray, rows: Tensor) -> Tensor:
        raise ValueError("logits: ConditionalTCA estimates class by class from its own classifier; use LinearTCA")

    def _solve(self, observed: EvenSample) -> dict[str, Tensor]:
        z, g = observed.rows(), self.classifier
        fitted = fit_conditional(z, g, self.shrinkage, self.anchor, self.rounds, self._shares(z))
        t = 1.0
        if len(z) >= FEWEST_IMAGES:
            excess = 1.0 if is_fake(z) else float(fitted.overconfidence)
            t = matching_temperature(z, fitted.weight, fitted.bias, g, excess)
        weight, bias = fitted.weight / t, fitted.bias / t
        matrix, offset = least_move(weight, bias, g)
        learned = {"W": matrix, "offset": offset, "weight": weight.T.contiguous(), "bias": bias}
        return {**fitted._asdict(), **learned, "temperature": torch.full_like(bias[0], t)}

    def _shares(self, z: Tensor) -> Tensor | None:
        """Class shares ``(c,)``; None if they are estimated."""
        c = self.classifier.n_classes
        if not isinstance(self.shares, str):
            return share_vector(self.shares, self.classifier)
        if self.shares == "predicted":
            return torch.bincount(log_probabilities(z, self.classifier).argmax(dim=1), minlength=c)
        return torch.ones(c, device=z.device) if self.shares == "uniform" else None

    def _warn(self) -> None:
        images = len(self._observed.rows())
        if images < FEWEST_IMAGES:
            log.warning("ConditionalTCA: %d images; with fewer than %d g is kept as it is", images, FEWEST_IMAGES)
