"""A shelf: one file or many shards of embeddings in order, cut into units of work that processes can share."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from clip_tca.bulk.block import ROWS, Block

UNIT = 8 * ROWS
"""Rows of a unit, where a shard can be cut; otherwise a unit is a whole shard."""

FORMATS = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".ipc")


class Shard(Protocol):
    """Embeddings that are read block by block.

    Attributes:
        path: Where they are; for a stream, what it is called.
        rows: Number of rows; None if only the end will tell.
        dim: Dimension; None if only the first row will tell.
        dtype: As stored.
        splittable: Whether any range of rows can be read and written by itself.
    """

    splittable: bool

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def rows(self) -> int | None: ...  # noqa: D102
    @property
    def dim(self) -> int | None: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""


@dataclass(frozen=True)
class Unit:
    """Rows ``start`` to ``stop`` of shard number ``shard``; ``first`` is the number of the first of all rows."""

    number: int
    shard: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class Shelf:
    """Shards in order; ``single`` if they are one file that was named as such."""

    shards: list[Shard]
    single: bool

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return next(shard.dim for shard in self.shards if shard.dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the embeddings, as stored."""
        return self.shards[0].dtype

    @property
    def rows(self) -> int | None:
        """Number of rows, if it is known."""
        counts = [shard.rows for shard in self.shards]
        return None if None in counts else sum(count or 0 for count in counts)

    def units(self) -> list[Unit]:
        """The work, in order. It depends on the files alone, not on how many processes there are."""
        units: list[Unit] = []
        first = 0
        for number, shard in enumerate(self.shards):
            if shard.rows is None:  # a number far above that of any row of the shards before
                units.append(Unit(len(units), number, 0, 0, number << 40))
                continue
            step = UNIT if shard.splittable else max(shard.rows, 1)
            for start in range(0, max(shard.rows, 1), step):  # an empty shard is a unit, and has an output, too
                units.append(Unit(len(units), number, start, min(start + step, shard.rows), first + start))
            first += shard.rows
        return units


def share(units: list[Unit], rank: int, size: int) -> list[Unit]:
    """The units of process ``rank`` of ``size``: neighbours, about as many rows for each."""
    weights = [max(unit.stop - unit.start, 1) for unit in units]
    ends = np.cumsum(weights)
    middles = ends - np.asarray(weights) / 2
    return [unit for unit, middle in zip(units, middles, strict=True) if int(middle * size / ends[-1]) == rank]


def open_shelf(source: str, column: str | None = None) -> Shelf:
    """A file, a folder of shards, or a glob pattern; shards in the order of the numbers in their names.

    Args:
        source: Path or pattern.
        column: Array, tensor or column with the embeddings; None looks for the usual names.
    """
    path = Path(source)
    single = path.is_file()
    found = [path] if single else _shards(path, source)
    suffixes = sorted({file.suffix.lower() for file in found})
    if len(suffixes) > 1 or suffixes[0] not in FORMATS:
        raise ValueError(f"{source}: {' and '.join(suffixes)} files; a shelf is of one format: {', '.join(FORMATS)}")
    shards = [open_shard(file, column) for file in found]
    if not any(shard.dim for shard in shards) or not any(shard.rows for shard in shards):
        raise ValueError(f"{source}: no rows; at least one embedding is needed")
    check_agreement(shards)
    return Shelf(shards, single)


def check_agreement(shards: Sequence[Shard]) -> None:
    """Refuse shards of several dimensions or dtypes; one without rows may not know its dimension."""
    first = next(shard for shard in shards if shard.dim)
    for shard in shards:
        for what, name in {"dim": "dimensions", "dtype": "dtype"}.items():
            mine, its = getattr(first, what), getattr(shard, what)
            if its is not None and its != mine:
                raise ValueError(f"{shard.path}: {name} {its}, but {first.path.name} has {mine}; all shards must agree")


def open_shard(path: Path, column: str | None = None) -> Shard:
    """A file by its suffix."""
    from clip_tca.bulk import arrays

    suffix = path.suffix.lower()
    if suffix == ".npy":
        return arrays.Npy(path, column)
    if suffix in (".npz", ".safetensors"):
        return (arrays.Npz if suffix == ".npz" else arrays.Safetensors)(path, column)
    from clip_tca.bulk import columns  # its library is large

    return (columns.Parquet if suffix == ".parquet" else columns.Arrow)(path, column)


def _shards(path: Path, pattern: str) -> list[Path]:
    if path.is_dir():
        found = [file for file in path.iterdir() if file.suffix.lower() in FORMATS and not file.name.startswith(".")]
    else:
        found = [Path(name) for name in glob.glob(pattern) if Path(name).is_file()]
    if not found:
        kind = "no embeddings in this folder" if path.is_dir() else "no such file, folder or pattern"
        raise FileNotFoundError(f"{pattern}: {kind}; give {', '.join(FORMATS)} files, or - for standard input")
    return sorted(found, key=lambda file: [*_natural(file.name), *_natural(str(file))])


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key by which shard_2 comes before shard_10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
