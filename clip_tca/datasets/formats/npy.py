"""``.npy`` files: any range of rows can be read and written by itself, so that processes can share one file."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from clip_tca.core.remote import Location
from clip_tca.datasets.formats.arrays import ArrayFile, ArrayHeader
from clip_tca.datasets.formats.base import Kind, Result, Target, damaged

HEAD = 128
"""Bytes before the rows of a ``.npy`` file of ours, however many rows it has."""


def read_header(file: Any) -> ArrayHeader:
    """The header of an array in NumPy's format; the file is left at the first value."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return ArrayHeader(shape, dtype, fortran and len(shape) > 1 and min(shape) > 1)


def read_rows(file: IO[bytes], header: ArrayHeader, firsts: range, path: Location) -> Iterator[np.ndarray]:
    """The matrix from where ``file`` is, in windows that begin at the rows ``firsts``."""
    (_, dim), dtype, _ = header
    for first in firsts:
        size = (min(first + firsts.step, firsts.stop) - first) * dim * dtype.itemsize
        try:
            content = file.read(size)
        except Exception as error:  # of an archive or of its compression
            raise damaged(path, error) from None
        if len(content) < size:
            raise damaged(path, f"ends before row {firsts.stop}")
        yield np.frombuffer(content, dtype).reshape(-1, dim).astype(dtype.newbyteorder("="), copy=False)


class NpyWriter:
    """A ``.npy`` file from row ``start`` on; several processes may each write a range of the same file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int | None, start: int = 0) -> None:
        """Open or create it; ``width`` None is a vector."""
        self.dtype, self.width, self.row = dtype, width, start
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.file: IO[bytes] = os.fdopen(handle, "r+b", buffering=0)
        self.file.seek(HEAD + start * dtype.itemsize * (width or 1))

    def write(self, values: np.ndarray) -> None:
        """Append rows."""
        left = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        while left:  # a raw write may stop early, at the edge of a full disk for one
            left = left[self.file.write(left) :]
        self.row += len(values)

    def close(self, rows: int | None = None) -> None:
        """Write the header, for ``rows`` rows in all (by default those up to here)."""
        rows = self.row if rows is None else rows
        shape = f"({rows},)" if self.width is None else f"({rows}, {self.width})"
        text = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        self.file.seek(0)
        self.file.write(
            b"\x93NUMPY\x01\x00" + (HEAD - 10).to_bytes(2, "little") + text.ljust(HEAD - 11).encode() + b"\n"
        )
        self.file.close()


class NpySink:
    """One ``.npy`` file for each kind."""

    def __init__(self, target: Target, name: str, dim: int) -> None:
        """Open the files; the array of embeddings has no name in them."""
        self.rows = target.rows
        self.files = {
            kind: NpyWriter(path, target.dtypes[kind], dim if kind == "embeddings" else None, target.start)
            for kind, path in target.paths.items()
        }

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        for kind, file in self.files.items():
            file.write(result.arrays[kind])

    def close(self) -> None:
        """Finish the files."""
        for file in self.files.values():
            file.close(self.rows)


class PackedSink(NpySink, ABC):
    """What the writers of ``.npz`` and ``.safetensors`` share: arrays are written apart and packed at the end."""

    def __init__(self, target: Target, name: str, dim: int) -> None:
        """``name`` is that of the array of embeddings; labels and scores have their own."""
        self.path = target.path
        self.names: dict[Kind, str] = {kind: name if kind == "embeddings" else kind for kind in target.paths}
        self.parts = {kind: self.path.with_name(f".{self.path.name}.{kind}") for kind in target.paths}
        super().__init__(Target(self.parts, target.dtypes), name, dim)

    def close(self) -> None:
        """Pack, and remove the parts."""
        super().close()
        self._pack()
        for part in self.parts.values():
            part.unlink()

    @abstractmethod
    def _pack(self) -> None:
        """Write the file from its parts."""


class NpyFile(ArrayFile[np.ndarray]):
    """A ``.npy`` file: one array, whose name is empty."""

    splittable = True
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

    def windows(self, name: str, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        (_, dim), dtype, _ = self.headers[name]
        with self.path.open("rb") as file:
            file.seek(self._start + start * dim * dtype.itemsize)
            yield from read_rows(file, self.headers[name], range(start, stop, rows), self.path)
