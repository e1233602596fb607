"""Means and covariances of a matrix or a stream of rows, an evenly spread sample of a stream, and nearest neighbours.

The covariance is the paper's, Σ = Σᵢ (xᵢ − μ)(xᵢ − μ)ᵀ / (n − 1). Ledoit and Wolf (2004) shrink it towards a multiple
of the identity, (1 − a)Σ + a (tr Σ / d) I, by the amount a that has the least expected squared error:

    a = min(1, (Σᵢ‖xᵢ − μ‖⁴/n − ‖Σ̄‖²) / n / (‖Σ̄‖² − (tr Σ̄)²/d)) ,    Σ̄ = Σ (n − 1)/n .

For this a stream keeps the count, the first two moments, Σ‖x‖⁴, and Σ‖x‖²x to move the latter to the mean.
:class:`RunningMoments` sums them about the mean of the first rows, which is close enough to the final mean to lose no
precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.tensors import CHUNK, double

COLUMNS_AT_ONCE = 96
"""Columns of a symmetric product that are computed together."""

ROWS_AT_ONCE = 1024
"""Rows whose distances to all others are computed together."""

FEW_ROWS = 1024
"""Up to this number of rows, products are computed in float64, which is cheap for few rows."""


class Moments(NamedTuple):
    """Count, mean ``(d,)`` and unbiased covariance ``(d, d)`` of rows, and the mean ``()`` of ‖x − μ‖⁴."""

    n: float
    mean: Tensor
    covariance: Tensor
    fourth: Tensor


class RunningMoments:
    """The moments of a stream of rows, from sums about the mean of its first rows.

    Rows are multiplied in float32, in chunks, and the products are added up in float64. That loses what is below a
    millionth of the largest variance, so few rows, and rows that float32 can't square, are multiplied in float64.
    """

    def __init__(self, in_double: bool = False) -> None:
        """No rows yet; ``in_double`` multiplies all of them in float64."""
        self.in_double = in_double
        self.n = 0

    def add(self, z: Tensor) -> None:
        """Add the rows of ``z`` ``(n, d)``."""
        if self.n == 0:
            mean = double(z[:CHUNK]).mean(dim=0)
            self.origin = mean.to(z.dtype)
            self.first, self.third, self.fourth = torch.zeros_like(mean), torch.zeros_like(mean), mean.new_zeros(())
            self.second = mean.new_zeros(len(mean), len(mean))
        for part in z.split(CHUNK):
            x = part - self.origin
            lengths = torch.linalg.vector_norm(x, dim=1)
            if self.in_double or len(z) <= FEW_ROWS or not 1e-9 < float(lengths.max()) < 1e9:
                x = double(part) - double(self.origin)
                lengths = torch.linalg.vector_norm(x, dim=1)
            squares = double(lengths).square()
            self.n += len(part)
            self.first += x.sum(dim=0)
            self.second += symmetric_product(x, x)
            self.third += squares.to(x.dtype) @ x
            self.fourth += squares @ squares

    def total(self) -> Moments:
        """The moments about the mean of all rows."""
        n, gap = self.n, self.first / self.n
        square, scatter = gap @ gap, self.second - self.first.outer(gap)
        # ‖x − gap‖⁴ = ‖x‖⁴ − 4‖x‖² x·gap + 4 (x·gap)² + 2‖x‖²‖gap‖² − 4 x·gap ‖gap‖² + ‖gap‖⁴
        fourth = self.fourth - 4 * self.third @ gap + 4 * gap @ (self.second @ gap)
        fourth = fourth + 2 * square * self.second.trace() - 3 * n * square.square()
        return Moments(n, self.origin + gap, scatter / max(n - 1, 1), fourth / n)


def moments(z: Tensor) -> Moments:
    """The moments of the rows of ``z`` ``(n, d)``."""
    running = RunningMoments()
    running.add(z)
    return running.total()


def weighted_moments(z: Tensor, weights: Tensor) -> Moments:
    """The moments of rows ``(n, d)`` with ``weights`` ``(n,)`` that add up to one.

    They count as 1 / Σw² rows of equal weight, which the covariance and its shrinkage take as n.
    """
    z = double(z)
    n = 1 / float(weights.square().sum())
    mean = weights @ z
    x = z - mean
    covariance = symmetric_product(x, weights[:, None] * x) * (n / max(n - 1, 1))
    return Moments(n, mean, covariance, weights @ x.square().sum(dim=1).square())


def ledoit_wolf(m: Moments) -> Tensor:
    """The amount of shrinkage a ``()``, from 0 to 1."""
    n, d = m.n, len(m.mean)
    if n < 2 or d == 1:
        return torch.zeros_like(m.fourth)
    sigma = m.covariance * ((n - 1) / n)
    squares = sigma.square().sum()
    distance = squares - sigma.trace().square() / d
    noise = torch.minimum((m.fourth - squares) / n, distance)
    return torch.where((distance > 0) & (noise > 0), noise / distance, 0.0)


def shrink(sigma: Tensor, amount: Tensor | float) -> Tensor:
    """(1 − a) Σ + a (tr Σ / d) I: the same total variance, better conditioned."""
    shrunk = sigma * (1 - amount)
    shrunk.diagonal().add_(sigma.diagonal().mean() * amount)
    return shrunk


def coral_distance(a: Tensor, b: Tensor) -> Tensor:
    """The paper's correlation distance of two covariances, ‖A − B‖²_F / 4d²."""
    return (a - b).square().sum() / (4 * a.shape[0] ** 2)


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb ``(d, d)`` where it is known to be symmetric: only half of it is computed."""
    product = a.new_empty(a.shape[1], b.shape[1])
    for start in range(0, len(product), COLUMNS_AT_ONCE):
        end = start + COLUMNS_AT_ONCE
        torch.mm(a[:, start:end].T, b[:, start:], out=product[start:end, start:])
        product[end:, start:end] = product[start:end, end:].T
    return product


def neighbour_sample(x: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` rows of ``x`` ``(n, d)``, the same in any order and hardly others after rounding."""
    along = double(x.sum(dim=1))
    phase = 100 * along / along.std(correction=0).clamp_min(1e-300)
    return phase.sin().topk(min(most, len(x))).indices


def nearest(y: Tensor, count: int) -> Tensor:
    """Indices ``(n, k)`` of the ``count`` nearest other rows of each row of ``y`` ``(n, r)``, the nearest first."""
    squares, found = y.square().sum(dim=1), []
    for start in range(0, len(y), ROWS_AT_ONCE):
        distance = torch.addmm(squares, y[start : start + ROWS_AT_ONCE], y.T, alpha=-2)
        distance.diagonal(start).fill_(float("inf"))
        found.append(distance.topk(min(count, len(y) - 1), largest=False).indices)
    return torch.cat(found)


def root(f: Callable[[Tensor], Tensor], low: float, high: float, like: Tensor) -> Tensor:
    """Where the falling function ``f`` is zero, or the nearer end, by bisection without a look at values (for GPUs)."""
    lower, upper = like.new_tensor(low), like.new_tensor(high)
    for _ in range(24):
        middle = (lower + upper) / 2
        rising = f(middle) > 0
        lower, upper = torch.where(rising, middle, lower), torch.where(rising, upper, middle)
    return lower


def neighbour_temperature(log_p: Tensor, neighbour: Tensor) -> Tensor:
    """t ≥ 1 at which p ∝ exp(log p / t) predicts best what g says of the neighbours: ``log_p`` and theirs ``(n, c)``.

    There the derivative of the likelihood is zero: E[log p] is the same under p at t as under the neighbour's p.
    """
    wanted = double((neighbour.exp() * log_p).sum())

    def surplus(log_t: Tensor) -> Tensor:
        return double(((log_p / log_t.exp().to(log_p)).softmax(dim=1) * log_p).sum()) - wanted

    return root(surplus, 0.0, math.log(1e4), wanted).exp()


def matching_temperature(scores: Tensor, confidence: Tensor) -> Tensor:
    """The temperature, from 1/16 on, at which the mean confidence of ``scores`` ``(n, c)`` is ``confidence``."""
    gaps = scores[:4096] - scores[:4096].amax(dim=1, keepdim=True)

    def surplus(log_t: Tensor) -> Tensor:
        return double((gaps / 2 ** log_t.to(gaps)).exp_().sum(dim=1).reciprocal_()).mean() - confidence

    return 2 ** root(surplus, -4.0, 20.0, confidence)


def inverse_of(diagonal: Tensor, added: Tensor | float = 0.0, removed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """S⁻¹ = diag(first) + F Fᵀ as (first, F), for S = diag(``diagonal``) + ``added`` or − ``removed``ᵀ ``removed``.

    If ``removed`` ``(c, d)`` has c < d, F is ``(d, c)``, by Woodbury's identity: n rows then cost n·d·c, not n·d².
    """
    inverse, right = diagonal.reciprocal(), torch.eye(len(diagonal)).to(diagonal)
    if removed is not None and len(removed) < len(diagonal):
        s, right = torch.eye(len(removed)).to(removed) - (removed * inverse) @ removed.T, removed * inverse
    else:
        s, inverse = diagonal.diag() + (added if removed is None else -removed.T @ removed), 0 * inverse
    return inverse, torch.linalg.solve_triangular(torch.linalg.cholesky(s), right, upper=False).T


class EvenSample:
    """At most ``size`` rows of a stream, spread evenly over it, the same for any split into batches.

    Row i has the key i · 2⁶⁴/φ mod 2⁶⁴ (Fibonacci hashing), and the rows with the smallest keys are kept: no random
    state has to be saved, and no value is looked at.
    """

    def __init__(self, size: int) -> None:
        """An empty sample."""
        self.size, self.seen = size, 0
        self.numbers = np.zeros(0, dtype=np.int64)
        self.parts: list[Tensor] = []
        self.limit = 2**64 - 1

    def add(self, z: Tensor) -> None:
        """Offer the rows of ``z`` ``(n, d)``."""
        numbers = np.arange(self.seen, self.seen + len(z))
        self.seen += len(z)
        kept = np.flatnonzero(self._keys(numbers) <= self.limit)
        if len(kept):
            self.parts.append(z if len(kept) == len(z) else z[torch.from_numpy(kept).to(z.device)])
            self.numbers = np.concatenate([self.numbers, numbers[kept]])
        if len(self.numbers) > 2 * self.size:
            self.rows()

    @property
    def full(self) -> bool:
        """Whether rows had to be left out."""
        return self.seen > self.size

    def rows(self, most: int | None = None) -> Tensor:
        """The rows of the sample ``(m, d)``, or at most ``most`` of them, in order of arrival."""
        size = self.size if most is None else min(most, self.size)
        if len(self.numbers) <= size:
            self.parts = [self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)]
            return self.parts[0]
        keys = self._keys(self.numbers)
        limit = int(np.partition(keys, size - 1)[size - 1])
        kept = np.split(keys <= limit, np.cumsum([len(part) for part in self.parts])[:-1])
        chosen = [torch.from_numpy(np.flatnonzero(mask)) for mask in kept]
        rows = torch.cat([part[index.to(part.device)] for part, index in zip(self.parts, chosen, strict=True)])
        if most is None:
            self.parts, self.numbers, self.limit = [rows], self.numbers[keys <= limit], limit
        return rows

    @staticmethod
    def _keys(numbers: np.ndarray) -> np.ndarray:
        keys: np.ndarray = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return keys


def evenly(n: int, most: int) -> slice:
    """A slice of n rows that takes at most ``most`` of them, at equal distances."""
    return slice(None, None, max(1, math.ceil(n / most)))
