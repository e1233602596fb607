"""Reads work units block by block, and takes out rows that can't be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clip_tca.bulk.shards import ShardedEmbeddings, WorkUnit
from clip_tca.datasets.formats.base import Block, block_rows


@dataclass(frozen=True)
class CheckedBlock:
    """A block of ``read`` rows without the ``bad`` ones (indices in their shard); may have no rows left.

    A unit ends with a block of no rows, the ``last``.
    """

    unit: WorkUnit
    block: Block
    bad: np.ndarray
    read: int
    last: bool = False

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """The labels of the block's rows, out of those of all rows."""
        rows = np.setdiff1d(self.block.first + np.arange(self.read), self.bad)
        selected: np.ndarray = labels[self.unit.first - self.unit.start + rows]
        return selected


def checked_blocks(
    source: ShardedEmbeddings, units: list[WorkUnit], drop_bad: bool, rows: int | None = None
) -> Iterator[CheckedBlock]:
    """All blocks of ``units``, each as soon as it has been read, of ``rows`` rows; None: as many as fit.

    NaN or infinity is a ValueError with file and row, unless ``drop_bad``.
    """
    for unit in units:
        shard = source.shards[unit.shard]
        for block in shard.blocks(unit.start, unit.stop, rows or block_rows(source.dim)):
            bad = block.bad()
            if len(bad) and not drop_bad:
                indices = ", ".join(map(str, (block.first + bad[:5]).tolist())) + (", …" if len(bad) > 5 else "")
                raise ValueError(
                    f"{shard.where}: NaN or infinity in row {indices}; repair it, or leave it out: --drop-bad-rows"
                )
            yield CheckedBlock(unit, block.without(bad) if len(bad) else block, block.first + bad, len(block))
        empty = Block(np.zeros((0, source.dim), source.dtype), unit.stop)
        yield CheckedBlock(unit, empty, np.zeros(0, np.int64), 0, last=True)
