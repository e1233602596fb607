"""A block of rows on its way through: embeddings, and whatever else stood beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from clip_tca.core.tensors import to_tensor

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["embeddings", "labels", "scores"]
KINDS: tuple[Kind, ...] = ("embeddings", "labels", "scores")
"""What can be written: adapted embeddings, predicted classes, and the probability of each predicted class."""

ROWS = 8192
"""Rows read, adapted and written together, of embeddings of the usual dimensions."""

VALUES = 1 << 24
"""Numbers in a block at most: a small file can announce very long rows."""

LARGEST = 1 << 20
"""A row that says it is longer than this is not an embedding."""


def block_rows(dim: int) -> int:
    """Rows of a block of ``dim`` dimensions."""
    return min(ROWS, max(VALUES // dim, 1))


@dataclass(frozen=True)
class Block:
    """Rows of a shard.

    Attributes:
        z: ``(n, d)`` embeddings, as stored.
        first: Number of the first row in its shard.
        others: The other columns of a table; None in formats that have none.
    """

    z: np.ndarray
    first: int
    others: pa.RecordBatch | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.z)

    def bad(self) -> np.ndarray:
        """Numbers of the rows that hold NaN or infinity, counted from the start of the block."""
        sums = to_tensor(self.z).sum(dim=1, dtype=torch.float64 if self.z.dtype == np.float64 else torch.float32)
        suspects = np.flatnonzero(~torch.isfinite(sums).numpy())  # or opposite infinities, or an overflow
        bad: np.ndarray = suspects[~np.isfinite(self.z[suspects]).all(axis=1)]
        return bad

    def without(self, rows: np.ndarray) -> Block:
        """The block without the rows of these numbers."""
        keep = np.setdiff1d(np.arange(len(self)), rows)
        return Block(self.z[keep], self.first, None if self.others is None else self.others.take(keep))


@dataclass(frozen=True)
class Result:
    """What becomes of a block: arrays by kind, the columns to carry along, and zero-shot's labels if asked for."""

    arrays: dict[Kind, np.ndarray]
    others: pa.RecordBatch | None = None
    before: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(next(iter(self.arrays.values())))
