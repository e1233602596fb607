"""Rows on a pipe: each is its length as a 32-bit number and so many 32-bit floats, all little-endian.

    d x₁ x₂ … x_d   d x₁ x₂ … x_d   …

Out goes the same: the adapted row, its label, its score, or several of them behind each other, as ``--write`` says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from clip_tca.bulk.block import LARGEST, ROWS, Block, Kind, Result


def standard_input() -> IO[bytes]:
    """With a buffer of our own.

    A thread that waits for a row holds the lock of the buffer that it reads, and Python wants that of ``sys.stdin``
    before it ends.
    """
    if sys.stdin is None:
        raise ValueError("standard input: closed; send rows on a pipe, or give files")
    return open(0, "rb", closefd=False)


class RowStream:
    """Rows from standard input, once, in order."""

    splittable = False
    path = Path("-")
    rows: int | None = None
    dtype: np.dtype[Any] = np.dtype("<f4")

    def __init__(self, source: IO[bytes] | None = None) -> None:
        """Read the first row, for the dimension."""
        self._source = source or standard_input()
        self._head = self._row(None)
        if self._head is None:
            raise ValueError("standard input: no rows; at least one embedding is needed")
        self.dim: int | None = len(self._head)

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """All rows, ``rows`` at a time, each block as soon as its last row has come."""
        first, held = 0, [] if self._head is None else [self._head]
        self._head = None
        while True:
            while len(held) < rows and (row := self._row(first + len(held))) is not None:
                held.append(row)
            if not held:
                return
            yield Block(np.stack(held), first)
            first, held = first + len(held), []

    def _row(self, number: int | None) -> np.ndarray | None:
        where = f"standard input, row {number or 0}"
        prefix = self._source.read(4)
        if not prefix:
            return None
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 4 or not 0 < length <= LARGEST or (number is not None and length != self.dim):
            wanted = "a length of 4 bytes" if number is None else f"the length {self.dim}"
            raise ValueError(f"{where}: begins with {prefix.hex()}, not with {wanted}; see clip-tca adapt --help")
        content = self._source.read(4 * length)
        if len(content) < 4 * length:
            raise ValueError(f"{where}: ends after {len(content)} of {4 * length} bytes")
        return np.frombuffer(content, "<f4")


class RowSink:
    """Rows to a file or a pipe."""

    def __init__(self, target: IO[bytes], kinds: tuple[Kind, ...]) -> None:
        """Write ``kinds`` to ``target``, flushing after every block."""
        self.target, self.kinds = target, kinds

    def write(self, result: Result) -> None:
        """Append a block."""
        parts = [np.asarray(result.arrays[kind], "<f4").reshape(len(result), -1) for kind in self.kinds]
        values = np.concatenate(parts, axis=1)
        prefix = np.full((len(result), 1), values.shape[1], "<u4").view("<f4")
        self.target.write(np.concatenate([prefix, values], axis=1).tobytes())
        self.target.flush()

    def close(self) -> None:
        """Nothing is left to do: the file is closed by who opened it."""
