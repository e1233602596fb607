"""Reads shards block by block, and takes out rows that can't be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from clip_tca.bulk.shards import ShardedEmbeddings
from clip_tca.datasets.formats.base import Block, block_rows


@dataclass(frozen=True)
class CheckedBlock:
    """A block of ``read`` rows of shard number ``shard``, without the ``bad`` ones; may have no rows left.

    ``bad`` are indices in the shard, whose first row is number ``start`` of all rows.
    """

    shard: int
    start: int
    block: Block
    bad: np.ndarray
    read: int

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """The labels of the block's rows, out of those of all rows."""
        rows = np.setdiff1d(self.block.first + np.arange(self.read), self.bad)
        selected: np.ndarray = labels[self.start + rows]
        return selected


def checked_blocks(
    source: ShardedEmbeddings, shards: Iterable[int], drop_bad: bool, rows: int | None = None
) -> Iterator[CheckedBlock]:
    """All blocks of the ``shards``, each as soon as it has been read, of ``rows`` rows; None: as many as fit.

    Every shard ends with a block of no rows, so that one without rows is seen too. NaN or infinity is a ValueError with
    file and row, unless ``drop_bad``.
    """
    starts = list(accumulate((shard.rows or 0 for shard in source.shards), initial=0))
    for number in shards:
        shard, start = source.shards[number], starts[number]
        for block in shard.blocks(rows or block_rows(source.dim)):
            bad = block.bad()
            if len(bad) and not drop_bad:
                indices = ", ".join(map(str, (block.first + bad[:5]).tolist())) + (", …" if len(bad) > 5 else "")
                raise ValueError(
                    f"{shard.where}: NaN or infinity in row {indices}; repair it, or leave it out: --drop-bad-rows"
                )
            good = block.without(bad) if len(bad) else block
            yield CheckedBlock(number, start, good, block.first + bad, len(block))
        empty = Block(np.zeros((0, source.dim), source.dtype), shard.rows or 0)
        yield CheckedBlock(number, start, empty, np.zeros(0, np.int64), 0)
