"""Reading a shelf unit by unit, with an eye on rows that can't be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clip_tca.bulk.block import Block, block_rows
from clip_tca.bulk.shards import Shelf, Unit


@dataclass(frozen=True)
class Piece:
    """A block without its bad rows.

    Attributes:
        unit: That it belongs to.
        block: The rows; may be none at all.
        bad: Numbers, in their shard, of rows left out.
        read: Number of rows read.
        last: Whether the unit ends here, with a piece of no rows.
    """

    unit: Unit
    block: Block
    bad: np.ndarray
    read: int
    last: bool = False

    def truth(self, labels: np.ndarray) -> np.ndarray:
        """The labels of the block's rows, out of those of all rows."""
        numbers = np.setdiff1d(self.block.first + np.arange(self.read), self.bad)
        found: np.ndarray = labels[self.unit.first - self.unit.start + numbers]
        return found


def pieces(shelf: Shelf, units: list[Unit], drop_bad: bool, rows: int | None = None) -> Iterator[Piece]:
    """All blocks of ``units``, each as soon as it has been read, of ``rows`` rows; None: as many as fit.

    Raises:
        ValueError: For NaN or infinity, with file and row, unless ``drop_bad``.
    """
    for unit in units:
        shard = shelf.shards[unit.shard]
        for block in shard.blocks(unit.start, unit.stop, rows or block_rows(shelf.dim)):
            bad = block.bad()
            if len(bad) and not drop_bad:
                shown = ", ".join(map(str, (block.first + bad[:5]).tolist())) + (", …" if len(bad) > 5 else "")
                raise ValueError(
                    f"{shard.path}: NaN or infinity in row {shown}; mend it, or go on without: --drop-bad-rows"
                )
            kept = block.without(bad) if len(bad) else block
            yield Piece(unit, kept, block.first + bad, len(block))
        nothing = Block(np.zeros((0, shelf.dim), shelf.dtype), unit.stop)
        yield Piece(unit, nothing, np.zeros(0, np.int64), 0, last=True)
