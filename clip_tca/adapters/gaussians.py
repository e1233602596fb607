"""One Gaussian for each class, with a shared covariance, from soft assignments: equation (2) of ConditionalTCA.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clip_tca.adapters.statistics import Moments, StreamMoments, mean
from clip_tca.adapters.symmetric import BLOCK, eigh, symmetric_product
from clip_tca.core.tensors import CHUNK, exact

FEWEST_PRIOR_IMAGES = 2.0


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
    def of(cls, z: Tensor, moments: Moments | None = None, order: Tensor | None = None) -> tuple[Axes, Tensor]:
        """The axes of the rows of ``z`` ``(n, d)``, and the rows along them ``(n, r)``, in the dtype of ``z``.

        The latter come in ``order`` ``(n,)``, if one is given.
        """
        n, d = z.shape
        if n < d:  # in the span of the rows: n dimensions in place of d
            centre = mean(z)
            span, x = torch.linalg.qr((exact(z) - centre).T)
            scatter = x @ x.T
        else:
            moments = moments or StreamMoments.of(z)
            span, centre, scatter = None, moments.mean, moments.scatter
        total = scatter.trace().clamp_min(torch.finfo(scatter.dtype).tiny)
        values, vectors = eigh((scatter / total).to(z.dtype))  # of rows in float32 no more is known than that
        values, vectors = exact(values) * total, exact(vectors)
        directions = vectors if span is None else span @ vectors
        y, turn, shift = z.new_empty(n, len(values)), directions.to(z.dtype), centre.to(z.dtype)
        for start in range(0, n, CHUNK):
            part = z[start : start + CHUNK] if order is None else z[order[start : start + CHUNK]]
            torch.mm(part - shift, turn, out=y[start : start + CHUNK])
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

    def add(self, y: Tensor, posterior: Tensor, zero_shot: Tensor, classes: Tensor | None = None) -> None:
        """Add the rows of ``y`` ``(n, r)`` with q = ``posterior`` and p⁰ = ``zero_shot``, both ``(n, c)``.

        Both may hold the columns of ``classes`` alone; q is zero in the others.
        """
        for total, part in (
            (self.counts, posterior.sum(dim=0)),
            (self.squares, posterior.square().sum(dim=0)),
            (self.sums, posterior.T @ y),
            (self.support, (posterior * zero_shot).sum(dim=0)),
        ):
            if classes is None:
                total += part
            else:
                total.index_add_(0, classes, part.to(total.dtype))

    def same_as(self, other: SoftStatistics, rounding: float) -> bool:
        """Whether the Gaussians of both differ by rounding alone."""
        pairs = ((self.counts, other.counts), (self.squares, other.squares), (self.sums, other.sums))
        return all(bool((a - b).abs().max() <= rounding * b.abs().max()) for a, b in pairs)


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
        triangular: Whether F has zeros above its diagonal.
        towards: ``(c, r)`` S⁻¹m_c.
        log_prior: ``(c,)`` γ log π_c.
        trust: ``()`` β.
    """

    totals: Tensor
    prior_images: Tensor
    means: Tensor
    diagonal: Tensor
    factor: Tensor
    triangular: bool
    towards: Tensor
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
        triangular = shape is not None or len(e) > len(diagonal)
        if not triangular:
            diagonal = diagonal.reciprocal()
            rest = torch.eye(len(e), dtype=e.dtype, device=e.device) - (e * diagonal) @ e.T
            factor = torch.linalg.solve_triangular(torch.linalg.cholesky(rest), e * diagonal, upper=False)
        else:  # S itself, and S⁻¹ = FᵀF
            if shape is not None:
                s = shape * ((1 - shrinkage) * variance * len(axes.centre))
                s.diagonal().add_(variance * (shrinkage + 1e-6))
            else:
                s = diagonal.diag() - symmetric_product(e, e)
            diagonal = torch.zeros_like(diagonal)
            factor = torch.linalg.solve_triangular(torch.linalg.cholesky(s), torch.eye(len(s)).to(s), upper=False)
        towards = precise(diagonal, factor, means)
        return cls(totals, kappa, means, diagonal, factor, triangular, towards, log_prior, trust)

    def same_as(self, other: Gaussians, rounding: float) -> bool:
        """Whether they differ from others, from which they may have been taken, by rounding alone."""
        prior, trust = (self.log_prior - other.log_prior).abs().amax(), (self.trust - other.trust).abs()
        return self.factor is other.factor and bool((prior <= rounding) & (trust <= rounding))

    def mean_length(self, axes: Axes) -> Tensor:
        """Mean ``()`` of ‖yᵢ‖² in the metric S⁻¹, over all rows."""
        return axes.scatter @ (self.diagonal + self.factor.square().sum(dim=0)) / axes.n

    @cached_property
    def squares(self) -> Tensor:
        """m_cᵀS⁻¹m_c ``(c,)``."""
        return (self.means * self.towards).sum(dim=1)

    def precise(self, y: Tensor) -> Tensor:
        """S⁻¹yᵢ ``(n, r)`` of the rows of ``y`` ``(n, r)``."""
        return precise(self.diagonal, self.factor, y)

    def density(self, dtype: torch.dtype) -> Density:
        """β log N(y; m_c, S) of rows of ``dtype``."""
        parts = (
            self.diagonal,
            self.factor,
            self.trust * self.towards,
            -0.5 * self.trust * self.squares,
            -0.5 * self.trust,
            self.totals,
        )
        diagonal, factor, weight, bias, half, totals = (part.to(dtype) for part in parts)
        return Density(diagonal, factor, self.triangular, weight, bias, half, totals)

    def discriminant(self, soft: SoftStatistics, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Final means ``(c, r)``, weight ``(c, r)`` and bias ``(c,)`` of β log N(y; m_c, S) + γ log π_c.

        ``length`` is :meth:`mean_length`: about ``length``/n_c of the squared length of an estimated mean is noise.
        """
        totals = soft.counts + self.prior_images
        means = soft.sums / totals[:, None]
        weight = self.precise(means)
        square = (means * weight).sum(dim=1) - length * soft.counts / totals.square()
        return means, self.trust * weight, self.log_prior - 0.5 * self.trust * square


def precise(diagonal: Tensor, factor: Tensor, y: Tensor) -> Tensor:
    """S⁻¹yᵢ ``(n, r)`` of the rows of ``y`` ``(n, r)``, for S⁻¹ = diag + FᵀF."""
    return y * diagonal + (y @ factor.T) @ factor


@dataclass
class Density:
    """The same Gaussians in the dtype of the rows, for the products that cost the most.

    Attributes:
        diagonal: As in :class:`Gaussians`.
        factor: The same.
        triangular: The same.
        weight: ``(c, r)`` βS⁻¹m_c.
        bias: ``(c,)`` −½β m_cᵀS⁻¹m_c.
        half: ``()`` −½β.
        totals: ``(c,)`` n_c + κ.
    """

    diagonal: Tensor
    factor: Tensor
    triangular: bool
    weight: Tensor
    bias: Tensor
    half: Tensor
    totals: Tensor

    def lengths(self, y: Tensor) -> Tensor:
        """‖yᵢ‖² ``(n,)`` in the metric S⁻¹."""
        step = BLOCK if self.triangular else len(self.factor)
        lengths = y.square() @ self.diagonal
        for start in range(0, len(self.factor), step):
            rows = self.factor[start : start + step, : start + step if self.triangular else None]
            lengths += (rows @ y[:, : rows.shape[1]].T).square_().sum(dim=0)
        return lengths

    def scores(self, y: Tensor, shared: Tensor, classes: Tensor | None = None) -> Tensor:
        """−½β‖yᵢ − m_c‖² ``(n, c)``, or of some ``classes`` ``(k,)`` alone; ``shared`` ``(n,)`` is −½β‖yᵢ‖²."""
        weight, bias = (self.weight, self.bias) if classes is None else (self.weight[classes], self.bias[classes])
        return torch.addmm(bias, y, weight.T).add_(shared[:, None])

    def own_share(self, posterior: Tensor, classes: Tensor | None = None) -> Tensor:
        """How many times :meth:`scores` has to be added to itself where m_c is to be without q_ic yᵢ.

        That is 1 / (1 − q_ic/(n_c+κ))² − 1.
        """
        totals = self.totals if classes is None else self.totals[classes]
        return (posterior / totals).neg_().add_(1).square_().reciprocal_().sub_(1)
