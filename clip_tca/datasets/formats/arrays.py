"""What formats of named arrays share (``.npy``, ``.npz``, ``.safetensors``): headers first, then windows of rows.

Files are read in windows by plain reads. (A memory map of the whole file would count as resident memory as it is read,
and a file that is cut short meanwhile would end the process.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple

import numpy as np

from clip_tca.core.remote import Location
from clip_tca.core.tensors import Array
from clip_tca.datasets.formats import base
from clip_tca.datasets.formats.base import LONGEST_ROW, ROWS, Block, Shard, Sink, Target, damaged
from clip_tca.datasets.formats.kinds import Kind


class ArrayHeader(NamedTuple):
    """What is known of an array before it is read; the dtype is that of NumPy (float32 for bfloat16)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False


class ArrayFile(ABC, Generic[Array]):
    """A file of named arrays, and ``metadata`` beside them. Only its headers are read when it is opened."""

    single_array = False
    noun = "array"
    sink: Callable[[Target, str, int], Sink]
    """Opens a writer in the same format: target, name of the array of embeddings, their dimension."""

    def __init__(self, path: Location) -> None:
        """Read the headers; ValueError if the file is truncated, damaged or of another format."""
        self.path = path
        self.metadata: dict[str, str] = {}
        try:
            self.headers = self._open()
        except Exception as error:  # of the archive or of its compression; NumPy's parser of headers raises anything
            if isinstance(error, OSError) and error.filename is not None:  # it could not be opened at all
                raise
            raise damaged(path, error) from None

    def choose(self, name: str | None, texts: bool = False) -> str:
        """The array of embeddings, or of text embeddings (which may be ``(templates, c, d)``); None looks for it."""
        if self.single_array:
            if name is not None:
                option = "--text-column" if texts else "--column"
                raise ValueError(f"{self.path}: one array, without a name; leave out {option} {name}")
            return next(iter(self.headers))
        ndims = (2, 3) if texts else (2,)
        names = [key for key, header in self.headers.items() if len(header.shape) in ndims and header.dtype.kind == "f"]
        return base.pick_name(self.path, names, name, self.noun, texts)

    def read(self, name: str) -> Array:
        """A whole array; ValueError if the file is truncated or damaged."""
        try:
            return self._read(name)
        except Exception as error:
            raise damaged(self.path, error) from None

    @abstractmethod
    def _open(self) -> dict[str, ArrayHeader]:
        """The headers; also sets the metadata."""

    @abstractmethod
    def _read(self, name: str) -> Array:
        """A whole array."""

    @abstractmethod
    def windows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """A matrix, ``rows`` at a time."""


class ArrayShard(Shard):
    """One matrix of a file of named arrays."""

    def __init__(self, file: ArrayFile[Any], column: str | None = None) -> None:
        """Choose the matrix, and check that it holds embeddings."""
        self.file, self.path, self.where = file, file.path, str(file.path)
        self.name, self.single_array = file.choose(column), file.single_array
        header = file.headers[self.name]
        check_matrix(self.where, header)
        (self.rows, self.dim), self.dtype = header.shape, header.dtype.newbyteorder("=")

    def blocks(self, rows: int = ROWS) -> Iterator[Block]:
        """All rows, ``rows`` at a time."""
        first = 0
        for z in self.file.windows(self.name, rows):
            yield Block(z, first)
            first += len(z)

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if the matrix has the name of an array that would be added beside it."""
        added = [kind for kind in kinds if kind != "embeddings"]
        base.check_free(self.where, "an array", added, [self.name] if "embeddings" in kinds else [])

    def sink(self, target: Target) -> Sink:
        """A writer in the same format; the embeddings keep the name of their array."""
        return type(self.file).sink(target, self.name, self.dim or 0)


def check_matrix(where: str, header: ArrayHeader) -> None:
    """Raise ValueError unless the array is a matrix of floats, stored row by row."""
    shape, dtype, fortran = header
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 1:
        raise ValueError(f"{where}: shape {tuple(shape)}; a matrix (rows, dimensions) is needed")
    if shape[1] > LONGEST_ROW:
        raise ValueError(f"{where}: shape {tuple(shape)}; at most {LONGEST_ROW} dimensions are allowed")
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError(f"{where}: dtype {dtype}; allowed are float16, float32 and float64")
    if fortran:
        raise ValueError(f"{where}: stored column by column (Fortran order); save np.ascontiguousarray of it")
