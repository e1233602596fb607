"""``.npy`` files, read and written row by row; what other formats of arrays share with them."""

from __future__ import annotations

import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from clip_tca.core.remote import Location
from clip_tca.datasets.formats.arrays import ArrayFile, ArrayHeader
from clip_tca.datasets.formats.base import Result, Target, damaged
from clip_tca.datasets.formats.kinds import Kind

HEAD = 128
"""Bytes before the rows of a ``.npy`` file of ours, however many rows it has."""

PIECE = 1 << 20
"""Bytes written at a time: few enough to be in the processor's cache for the checksum and the copy."""

BEHIND = 1 << 23
"""Bytes after which the system is told that it need not keep in memory what was written."""


def read_header(file: Any) -> ArrayHeader:
    """The header of an array in NumPy's format; the file is left at the first value."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return ArrayHeader(shape, dtype, fortran and len(shape) > 1 and min(shape) > 1)


def read_rows(file: IO[bytes], header: ArrayHeader, rows: int, path: Location) -> Iterator[np.ndarray]:
    """The matrix from where ``file`` is, ``rows`` at a time."""
    (count, dim), dtype, _ = header
    for first in range(0, count, rows):
        size = min(rows, count - first) * dim * dtype.itemsize
        try:
            content = file.read(size)
        except Exception as error:  # of an archive or of its compression
            raise damaged(path, error) from None
        if len(content) < size:
            raise damaged(path, f"ends before row {count}")
        yield np.frombuffer(content, dtype).reshape(-1, dim).astype(dtype.newbyteorder("="), copy=False)


class NpyWriter:
    """A ``.npy`` file, written row by row.

    Where ``rows``, their number, is known before, the output is not kept in the system's memory
    (that is for the input, which is read twice), and a checksum is counted, so that nobody reads it for that.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int | None, rows: int | None = None) -> None:
        """Open or create it; ``width`` None is a vector."""
        self.path, self.dtype, self.width, self.row, self.rows = path, dtype, width, 0, rows
        self._checksum = None if rows is None else zlib.crc32(self._header(rows))
        self._not_dropped = 0
        self.file = path.open("wb", buffering=0)
        self.file.seek(HEAD)

    def write(self, values: np.ndarray) -> None:
        """Append rows."""
        content = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        for start in range(0, len(content), PIECE):
            left = content[start : start + PIECE]
            if self._checksum is not None:
                self._checksum = zlib.crc32(left, self._checksum)
            while left:  # a raw write may stop early, at the edge of a full disk for one
                left = left[self.file.write(left) :]
        self.row += len(values)
        self._not_dropped += len(content)
        if self.rows is not None and self._not_dropped >= BEHIND and hasattr(os, "posix_fadvise"):
            self._not_dropped = 0
            with suppress(OSError):  # this also has the disk begin to write what it has not written
                os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> dict[Path, int]:
        """Write the header; the checksum, if it was counted."""
        self.file.seek(0)
        self.file.write(self._header(self.row))
        self.file.close()
        return {} if self._checksum is None or self.row != self.rows else {self.path: self._checksum}

    def _header(self, rows: int) -> bytes:
        shape = f"({rows},)" if self.width is None else f"({rows}, {self.width})"
        text = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        return b"\x93NUMPY\x01\x00" + (HEAD - 10).to_bytes(2, "little") + text.ljust(HEAD - 11).encode() + b"\n"


class NpySink:
    """One ``.npy`` file for each kind."""

    def __init__(self, target: Target, name: str, dim: int) -> None:
        """Open the files; the array of embeddings has no name in them."""
        self.files = {
            kind: NpyWriter(path, target.dtypes[kind], dim if kind == "embeddings" else None, target.rows)
            for kind, path in target.paths.items()
        }

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        for kind, file in self.files.items():
            file.write(result.arrays[kind])

    def close(self) -> dict[Path, int]:
        """Finish the files; their checksums."""
        return {path: checksum for file in self.files.values() for path, checksum in file.close().items()}


class PackedSink(NpySink, ABC):
    """What the writers of ``.npz`` and ``.safetensors`` share: arrays are written apart and packed at the end."""

    def __init__(self, target: Target, name: str, dim: int) -> None:
        """``name`` is that of the array of embeddings; labels and scores have their own."""
        self.path = target.path
        self.names: dict[Kind, str] = {kind: name if kind == "embeddings" else kind for kind in target.paths}
        self.parts = {kind: self.path.with_name(f".{self.path.name}.{kind}") for kind in target.paths}
        super().__init__(Target(self.parts, target.dtypes), name, dim)

    def close(self) -> dict[Path, int]:
        """Pack, and remove the parts; no checksum."""
        super().close()
        self._pack()
        for part in self.parts.values():
            part.unlink()
        return {}

    @abstractmethod
    def _pack(self) -> None:
        """Write the file from its parts."""


class NpyFile(ArrayFile[np.ndarray]):
    """A ``.npy`` file: one array, whose name is empty."""

    single_array = True
    sink = NpySink

    def _open(self) -> dict[str, ArrayHeader]:
        with self.path.open("rb") as file:
            header = read_header(file)
            self._start = file.tell()
        size, needed = self.path.stat().st_size, self._start + math.prod(header.shape) * header.dtype.itemsize
        if header.dtype.kind == "f" and size < needed:
            raise EOFError(f"{size} bytes of {needed}")
        return {"": header}

    def _read(self, name: str) -> np.ndarray:
        with self.path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def windows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """The array, ``rows`` at a time."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            yield from read_rows(file, self.headers[name], rows, self.path)
