"""Embeddings on a pipe: an Arrow IPC stream or a ``.npy`` file in, an Arrow IPC stream out.

A pipe is read once, in order. Its record batches may have any size; every answer is one record batch, written and
flushed as soon as its rows have come.
"""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

import numpy as np
import pyarrow as pa

from clip_tca.datasets.formats.arrays import check_matrix
from clip_tca.datasets.formats.arrow import validated
from clip_tca.datasets.formats.base import STANDARD, Target
from clip_tca.datasets.formats.columns import FAULTS, TableShard
from clip_tca.datasets.formats.npy import read_header

WHERE = "standard input"
NEEDED = "send an Arrow IPC stream or a .npy file"
NO_ROWS = f"{WHERE}: no rows; at least one embedding is needed"
_NPY, _ARROW = b"\x93NUMPY", b"\xff\xff\xff\xff"


def standard_input() -> IO[bytes]:
    """Standard input with a buffer of our own, which never reads more than it is asked for.

    A thread that waits for rows holds the lock of the buffer that it reads, and Python wants that of ``sys.stdin``
    before it ends.
    """
    if sys.stdin is None:
        raise ValueError(f"{WHERE}: closed; {NEEDED}, or give files")
    return io.BufferedReader(io.FileIO(0, closefd=False), buffer_size=1)


def open_stream(column: str | None = None, source: IO[bytes] | None = None) -> PipeShard:
    """Wait for the first rows (None: of standard input), and choose the column as for a file."""
    pipe = Pipe(source or standard_input())
    if pipe.head.startswith(_ARROW):
        return ArrowStream(pipe, column)
    if pipe.head == _NPY:
        return NpyStream(pipe, column)
    if not pipe.head:
        raise ValueError(f"{WHERE}: empty; {NEEDED}")
    raise ValueError(
        f"{WHERE}: begins with {pipe.head.hex()}, neither an Arrow IPC stream nor a .npy file; name other files"
    )


class Pipe:
    """A binary file of which the first bytes can be seen before they are read."""

    closed = False

    def __init__(self, source: IO[bytes]) -> None:
        """Wait for the first bytes."""
        self._source = source
        self.head = self._unread = source.read(len(_NPY))

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer at the end."""
        start, self._unread = self._unread[:size], self._unread[size:]
        return start + self._source.read(size - len(start)) if len(start) < size else start

    def check_end(self) -> None:
        """Refuse a second stream or file after the first, as ``cat A B`` sends it.

        Only what has come already is seen: whoever sends may wait for the last answer before closing the pipe.
        """
        try:
            ready = select.select([self._source], [], [], 0)[0]
        except (OSError, ValueError):  # it has no descriptor, or the system can't ask
            return
        if ready and self._source.read(1):
            raise ValueError(f"{WHERE}: goes on after the end of the first stream or file; send one")


class PipeShard(TableShard):
    """A table on a pipe; its output is an Arrow IPC stream."""

    remedy = NEEDED

    def __init__(self, source: Pipe, column: str | None = None) -> None:
        """Wait for the first embedding."""
        self._source = source
        super().__init__(STANDARD, column, WHERE)

    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        return pa.ipc.new_stream(target.file, schema)  # writes nothing before the first batch


class ArrowStream(PipeShard):
    """An Arrow IPC stream."""

    def _open(self) -> tuple[pa.Schema, None]:
        reader = pa.ipc.open_stream(self._source)
        self._rest = validated(reader)
        self._first = list(islice((batch for batch in self._rest if len(batch)), 1))
        if not self._first:
            raise ValueError(NO_ROWS)
        return reader.schema, None

    def _heads(self) -> Iterator[pa.RecordBatch]:
        yield from self._first
        try:
            for batch in self._rest:
                self._first.append(batch)
                yield batch
        except FAULTS as error:
            raise self._damaged(error) from None

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        while self._first:
            yield self._first.pop(0)
        yield from self._rest
        self._source.check_end()


class NpyStream(PipeShard):
    """A ``.npy`` file, as a table with the one column ``embeddings``."""

    def _open(self) -> tuple[pa.Schema, None]:
        try:
            self._header = read_header(self._source)
        except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
            raise self._damaged(error) from None
        check_matrix(WHERE, self._header)
        (count, dim), dtype, _ = self._header
        if not count:
            raise ValueError(NO_ROWS)
        return pa.schema([("embeddings", pa.list_(pa.from_numpy_dtype(dtype.newbyteorder("=")), dim))]), None

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        (count, dim), dtype, _ = self._header
        for first in range(0, count, rows):
            size = min(rows, count - first) * dim * dtype.itemsize
            content = self._source.read(size)
            if len(content) < size:
                raise OSError(f"{first + len(content) // (dim * dtype.itemsize)} rows of {count}")
            values = pa.array(np.frombuffer(content, dtype).astype(self.dtype, copy=False))
            lists = pa.FixedSizeListArray.from_arrays(values, type=self.schema.field(0).type)
            yield pa.RecordBatch.from_arrays([lists], schema=self.schema)
        self._source.check_end()
