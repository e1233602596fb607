"""Mean and covariance: of a matrix, of a stream, of several streams merged.

Σ = (ZᵀZ − n μμᵀ) / (n − 1), the paper's covariance, is formed from centred sums in float64 (Chan's update), so
several processes merged in any order give the one-shot result to rounding. :class:`Moments` also carries what
Ledoit–Wolf shrinkage needs, Σᵢ‖xᵢ−μ‖⁴ and Σᵢ‖xᵢ−μ‖²(xᵢ−μ), so shrinkage streams as exactly as the covariance does.

Products of float64 cost twice those of float32. :class:`StreamMoments` therefore cuts a stream into blocks of
:data:`BLOCK` rows, whatever the batches are, multiplies the rows of a block in float32 about their own mean, and adds
the blocks up in float64: any split gives the same bits. What is lost is below the rounding of float32 rows; it would
matter only for directions with less than a millionth of the largest variance, so a stream of less than :data:`FEW`
rows or than dimensions, rows in float64, and rows too large or too small for float32 to square are multiplied in
float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from clip_tca.adapters.accumulator import Accumulator
from clip_tca.adapters.symmetric import symmetric_product
from clip_tca.core.tensors import chunks, exact, exact_dtype, is_fake

BLOCK = 2048
"""Rows of a stream that are multiplied together."""
FEW = 1024
"""Rows below which a whole stream is multiplied in float64."""


@dataclass
class Moments:
    """Count, mean and centred sums of the rows seen so far.

    Attributes:
        n: Number of rows; of weighted ones, how many equal ones they are worth.
        mean: ``(d,)`` mean μ.
        scatter: ``(d, d)`` Σᵢ (xᵢ−μ)(xᵢ−μ)ᵀ.
        cubes: ``(d,)`` Σᵢ ‖xᵢ−μ‖² (xᵢ−μ).
        quartics: ``()`` Σᵢ ‖xᵢ−μ‖⁴.
    """

    n: float
    mean: Tensor
    scatter: Tensor
    cubes: Tensor
    quartics: Tensor

    @classmethod
    def empty(cls, dim: int, device: torch.device | str = "cpu") -> Moments:
        """Moments of no rows at all."""
        device = torch.device(device)
        zeros = torch.zeros(dim, dim, device=device, dtype=exact_dtype(device))
        return cls(0, zeros[0].clone(), zeros, zeros[0].clone(), zeros[0, 0].clone())

    @classmethod
    def of(cls, z: Tensor) -> Moments:
        """Moments of the rows of ``z`` ``(n, d)``."""
        moments = cls.empty(z.shape[1], z.device)
        moments.update(z)
        return moments

    @classmethod
    def weighted(cls, z: Tensor, weights: Tensor) -> Moments:
        """Moments of the rows of ``z`` ``(n, d)`` with ``weights`` ``(n,)`` that add up to one.

        They are worth 1 / Σw² equal ones, which makes covariance and shrinkage mean what they do for those.
        """
        z, effective = exact(z), 1 / float(weights.square().sum())
        mean = weights @ z
        x = z - mean
        squares, scaled = x.square().sum(dim=1), (weights * effective)[:, None] * x
        scatter = symmetric_product(x, scaled)
        return cls(effective, mean, scatter, squares @ scaled, (squares.square() * weights).sum() * effective)

    def update(self, z: Tensor) -> None:
        """Add the rows of ``z`` ``(n, d)``, any number of them."""
        for part in chunks(z) if len(z) else ():
            mean = part.mean(dim=0)
            x = part - mean
            squares = torch.linalg.vector_norm(x, dim=1).square()  # without a temporary of the size of x
            self._add(
                len(part), mean, symmetric_product(x, x) if len(part) > 1 else None, squares @ x, squares @ squares
            )

    def add_block(self, z: Tensor) -> None:
        """Add the rows of ``z`` ``(n, d)`` as :meth:`update` does, multiplied in float32 where it can square them."""
        if z.dtype != torch.float32:
            return self.update(z)
        mean = z.mean(dim=0)
        x = z - mean
        rounding = x.mean(dim=0)  # of a mean that may be far larger than what the rows differ by
        x -= rounding
        lengths = torch.linalg.vector_norm(x, dim=1)
        if not is_fake(z) and not 1e-4 < float(lengths.max()) < 1e4:
            return self.update(z)
        squares = lengths.square_()
        centre = exact(mean) + exact(rounding)
        self._add(len(z), centre, symmetric_product(x, x), exact(squares @ x), exact(squares @ squares))
        return None

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of rows together; neither operand changes."""
        merged = Moments(self.n, self.mean.clone(), self.scatter.clone(), self.cubes.clone(), self.quartics.clone())
        if other.n:
            merged._add(other.n, other.mean, other.scatter, other.cubes, other.quartics)
        return merged

    def covariance(self) -> Tensor:
        """Unbiased covariance ``(d, d)``; zeros for fewer than two rows."""
        return self.scatter / max(self.n - 1, 1)

    def _add(self, n: float, mean: Tensor, scatter: Tensor | None, cubes: Tensor, quartics: Tensor) -> None:
        """Chan's update: shift both sets of centred sums to the joint mean, then add (``scatter`` None: one row)."""
        total = self.n + n
        gap = mean - self.mean
        own_shift, other_shift = gap * (n / total), gap * (-self.n / total)
        own_cubes, own_quartics = _shifted(self.n, self.scatter, self.cubes, self.quartics, own_shift)
        other_cubes, other_quartics = _shifted(n, scatter, cubes, quartics, other_shift)
        self.cubes, self.quartics = own_cubes + other_cubes, own_quartics + other_quartics
        self.scatter.addr_(gap, gap, alpha=self.n * n / total)
        if scatter is not None:
            self.scatter += scatter
        self.mean = self.mean + own_shift
        self.n = total


class StreamMoments(Accumulator):
    """Moments of a stream, of which numbered segments may come from several processes.

    Rounding depends on the order of sums. Blocks are counted from the beginning of the stream, or of its segment, and
    rows that do not fill one wait. Segments are merged two by two, 0 with 1, 2 with 3, then those pairs, and so on: the
    order depends on the numbers alone, so the total is the same to the bit whichever process has seen which segments.

    Attributes:
        waiting: ``(w, d)`` rows after the last block.
    """

    shapes: ClassVar = {
        "n": (), "mean": ("d",), "scatter": ("d", "d"), "cubes": ("d",), "quartics": (), "waiting": ("w", "d")
    }  # fmt: skip

    def __init__(self, dim: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """No rows yet; those that come are multiplied in ``dtype``."""
        self.segments: dict[tuple[int, int], Moments] = {}
        self.blocks = Moments.empty(dim, device)
        self.waiting = torch.zeros(0, dim, device=device, dtype=dtype)

    @classmethod
    def of(cls, z: Tensor) -> Moments:
        """Moments of a stream of the rows of ``z`` ``(n, d)``."""
        stream = cls(z.shape[1], z.device, z.dtype)
        stream.update(z)
        return stream.total()

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> StreamMoments:
        """What :meth:`state` gave."""
        stream = cls(len(tensors["mean"]), tensors["mean"].device)
        stream.restore(tensors, {})
        return stream

    def update(self, z: Tensor) -> None:
        """Add the rows of ``z`` ``(n, d)`` to the current segment."""
        missing = BLOCK - len(self.waiting)
        if len(z) >= missing:
            if missing < BLOCK:
                self.blocks.add_block(torch.cat([self.waiting, z[:missing].to(self.waiting)]))
                z = z[missing:]
            whole = len(z) - len(z) % BLOCK
            for block in z[:whole].split(BLOCK) if whole else ():
                self.blocks.add_block(block.to(self.waiting))
            z, self.waiting = z[whole:], self.waiting[:0]
        self.waiting = torch.cat([self.waiting, z.to(self.waiting)])

    def end_segment(self, number: int) -> None:
        """Close the current segment, which is number ``number`` of the whole stream."""
        self._add_segment(number, self._with_waiting(self.blocks))
        self.blocks = Moments.empty(len(self.blocks.mean), self.blocks.mean.device)
        self.waiting = self.waiting[:0]

    def merge(self, other: StreamMoments) -> None:
        """Add the rows of another stream, or the segments of another process."""
        self.blocks = self.blocks.merge(other.blocks)
        self.update(other.waiting)
        for (level, number), moments in other.segments.items():
            self._add_segment(number, moments, level)

    def total(self) -> Moments:
        """Moments of all segments in order, and of the rows after them."""
        return self._with_waiting(self._ended())

    def rows(self) -> Tensor | None:
        """All rows ``(n, d)``, while they are fewer than a block."""
        return None if self.blocks.n or self.segments else self.waiting

    def _ended(self) -> Moments:
        """Moments of all segments in order, and of the blocks after them."""
        in_order = sorted(self.segments.items(), key=lambda item: item[0][1] << item[0][0])
        return reduce(Moments.merge, [*(moments for _, moments in in_order), self.blocks])

    def _with_waiting(self, moments: Moments) -> Moments:
        if not len(self.waiting):
            return moments
        together = moments.merge(Moments.empty(len(moments.mean), moments.mean.device))
        few = not moments.n and len(self.waiting) < max(FEW, len(moments.mean))
        together.update(self.waiting) if few else together.add_block(self.waiting)
        return together

    def _add_segment(self, number: int, moments: Moments, level: int = 0) -> None:
        """Add segment ``number``, or the ``number``-th group of 2^level segments."""
        while (sibling := self.segments.pop((level, number ^ 1), None)) is not None:
            moments = sibling.merge(moments) if number & 1 else moments.merge(sibling)
            level, number = level + 1, number >> 1
        self.segments[level, number] = moments

    def partial_state(self) -> dict[str, Tensor]:
        """The segments one by one, as ``segments`` ``(s, 2)`` and tensors whose first dimension is theirs."""
        parts = [(keys, vars(moments)) for keys, moments in sorted(self.segments.items())]
        numbers = torch.tensor([keys for keys, _ in parts], dtype=torch.int64).reshape(-1, 2)
        rest = {name: torch.as_tensor(value) for name, value in vars(self.blocks).items()}
        stacked = {
            f"segment_{name}": torch.stack([torch.as_tensor(values[name]) for _, values in parts])
            for name in (rest if parts else ())
        }
        return {**rest, **stacked, "segments": numbers, "waiting": self.waiting}

    def restore(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """Put back what :meth:`state` or :meth:`partial_state` gave, or that of version 0.1, where no rows wait."""
        super().restore({"waiting": self.waiting, **tensors}, sizes)
        for i, (level, number) in enumerate(tensors.get("segments", torch.zeros(0, 2)).tolist()):
            sums = {name: tensors[f"segment_{name}"][i] for name in self.shapes if name not in ("n", "waiting")}
            self.segments[int(level), int(number)] = Moments(int(tensors["segment_n"][i]), **sums)

    def _values(self) -> dict[str, Any]:
        return {**vars(self._ended()), "waiting": self.waiting}

    def _put(self, tensors: dict[str, Tensor]) -> None:
        sums = {name: tensor for name, tensor in tensors.items() if name not in ("n", "waiting")}
        self.blocks, self.waiting = Moments(int(tensors["n"]), **sums), tensors["waiting"]


def _shifted(n: float, scatter: Tensor | None, cubes: Tensor, quartics: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Third and fourth centred sums about ``μ + shift`` from those about μ (expand ‖u − shift‖² and use Σu = 0)."""
    square = shift @ shift
    moved = torch.zeros_like(shift) if scatter is None else exact(scatter @ shift.to(scatter.dtype))
    trace = torch.zeros_like(square) if scatter is None else exact(scatter.diagonal()).sum()
    quartics = quartics - 4 * (shift @ cubes) + 4 * (shift @ moved) + 2 * square * trace + n * square**2
    return cubes - shift * trace - 2 * moved - n * square * shift, quartics


def mean(z: Tensor) -> Tensor:
    """Mean of the rows of ``z``, accumulated in float64."""
    return sum((part.sum(dim=0) for part in chunks(z)), exact(z.new_zeros(z.shape[1]))) / len(z)


def covariance(z: Tensor) -> Tensor:
    """Unbiased covariance ``(d, d)`` of the rows of ``z``, accumulated in float64; zeros for one row."""
    return Moments.of(z).covariance()


def shrink(sigma: Tensor, amount: Tensor | float) -> Tensor:
    """(1 − a) Σ + a (tr Σ / d) I: the same total variance, better conditioned."""
    shrunk = sigma * (1 - amount)
    shrunk.diagonal().add_(sigma.diagonal().mean() * amount)
    return shrunk


def ledoit_wolf_shrinkage(moments: Moments) -> Tensor:
    """The amount of shrinkage, in [0, 1], that Ledoit and Wolf (2004) show to be best in expected squared error."""
    n, d = moments.n, len(moments.mean)
    zero = torch.zeros_like(moments.quartics)
    if n < 2 or d == 1:
        return zero
    sigma = moments.scatter / n
    squares = sigma.square().sum()
    distance = squares - sigma.diagonal().sum().square() / d
    noise = torch.minimum((moments.quartics / n - squares) / n, distance)
    return torch.where((distance > 0) & (noise > 0), noise / distance, zero)


def coral_distance(a: Tensor, b: Tensor) -> Tensor:
    """The paper's correlation distance of two covariances, ‖A − B‖²_F / 4d²."""
    return (a - b).square().sum() / (4 * a.shape[0] ** 2)
