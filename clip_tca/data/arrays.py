"""Files of named arrays: ``.npy``, ``.npz``, ``.safetensors``, and those of ``torch.save``, which are only read.

An array is a place in a stream of bytes, so that a range of its rows is a seek and plain reads, on a disk or in a
store. (A memory map of a whole file would count as resident memory as it is read, and a file that is cut short
meanwhile would end the process. The library of safetensors opens local files alone, and writes what is in memory.)
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.remote import Location
from clip_tca.data.formats import Kind
from clip_tca.data.shards import LONGEST_ROW, ROWS, Arrays, Block, Shard, Writer, pick_name, reading

if TYPE_CHECKING:
    import pyarrow as pa

BFLOAT16 = "BF16"
SAFETENSORS = {
    "F16": "<f2", BFLOAT16: "<u2", "F32": "<f4", "F64": "<f8", "BOOL": "|b1",
    "I8": "|i1", "U8": "|u1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
}  # fmt: skip
"""Dtypes of safetensors as NumPy has them; tensors of others are not seen."""

CODES = {stored: code for code, stored in SAFETENSORS.items()}


class Header(NamedTuple):
    """Shape and dtype of an array, and where its values begin in a stream of bytes."""

    shape: tuple[int, ...]
    stored: np.dtype[Any]
    start: int = 0
    fortran: bool = False
    bfloat16: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array that is read: bfloat16, which NumPy does not have, becomes float32."""
        return np.dtype(np.float32) if self.bfloat16 else self.stored.newbyteorder("=")

    def check(self, size: int) -> Header:
        """Raise EOFError unless it fits into a stream of ``size`` bytes: only then may memory be taken for it."""
        needed = self.start + math.prod(self.shape) * self.stored.itemsize
        if min(self.shape, default=0) < 0 or size < needed:
            raise EOFError(f"shape {self.shape}: {size} bytes of {needed}")
        return self

    def read(self, file: IO[bytes], count: int) -> np.ndarray:
        """The next ``count`` values."""
        values = np.empty(count, self.stored)
        size = file.readinto(values.view(np.uint8))  # type: ignore[attr-defined]
        if size < values.nbytes:
            raise EOFError(f"{size} bytes of {values.nbytes}")
        if self.bfloat16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(self.dtype, copy=False)


def read_header(file: IO[bytes]) -> Header:
    """The header of an array in NumPy's format."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return Header(shape, dtype, file.tell(), fortran and len(shape) > 1 and min(shape) > 1)


class ArrayFile(ABC):
    """A file of named arrays, and ``metadata`` beside them. Only its headers are read when it is opened."""

    single_array = False
    remedy = "copy or download it again"

    def __init__(self, path: Location) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        with reading(path, self.remedy), path.open("rb") as file:
            self.headers = self._open(file, path.stat().st_size)

    def choose(self, name: str | None, texts: bool = False) -> str:
        """The array of embeddings, or of text embeddings (which may be ``(templates, c, d)``); None looks for it."""
        if self.single_array:
            if name is not None:
                option = "--text-column" if texts else "--column"
                raise ValueError(f"{self.path}: one array, without a name; leave out {option} {name}")
            return ""
        ndims = (2, 3) if texts else (2,)
        names = [key for key, header in self.headers.items() if len(header.shape) in ndims and header.dtype.kind == "f"]
        return pick_name(self.path, names, name, "array", texts)

    def read(self, name: str) -> Tensor:
        """A whole array; ValueError if the file is truncated or damaged, or if the array has no numbers."""
        header = self.headers[name]
        if header.dtype.kind not in "biuf" or header.dtype.itemsize > 8:
            raise ValueError(f"{self.path}: dtype {header.dtype}; numbers are needed")
        with reading(self.path), self._stream(name) as file:
            file.seek(header.start)
            values = header.read(file, math.prod(header.shape))
            return torch.from_numpy(values.reshape(header.shape, order="F" if header.fortran else "C"))

    def windows(self, name: str, rows: int, start: int, stop: int) -> Iterator[np.ndarray]:
        """Rows ``start`` to ``stop`` of a matrix, ``rows`` at a time; nothing else of the file is read."""
        header = self.headers[name]
        width = header.shape[1]
        with reading(self.path), self._stream(name) as file:
            file.seek(header.start + start * width * header.stored.itemsize)
            for first in range(start, stop, rows):
                yield header.read(file, min(rows, stop - first) * width).reshape(-1, width)

    @contextmanager
    def _stream(self, name: str) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as file:
            yield file

    @abstractmethod
    def _open(self, file: IO[bytes], size: int) -> dict[str, Header]: ...


class NpyFile(ArrayFile):
    """A ``.npy`` file: one array, whose name is empty."""

    single_array = True

    def _open(self, file: IO[bytes], size: int) -> dict[str, Header]:
        return {"": read_header(file).check(size)}


class NpzFile(ArrayFile):
    """A ``.npz`` file: an archive of ``.npy`` files, compressed or not."""

    def _open(self, file: IO[bytes], size: int) -> dict[str, Header]:
        headers = {}
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    with archive.open(member) as array:
                        headers[member.filename[:-4]] = read_header(array).check(member.file_size)
        return headers

    @contextmanager
    def _stream(self, name: str) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as file, zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
            member.read(self.headers[name].start)  # not a seek, after which a newer Python counts no checksum
            yield member


class SafetensorsFile(ArrayFile):
    """A ``.safetensors`` file: length of the header, header as JSON, and the values of one tensor after another."""

    def _open(self, file: IO[bytes], size: int) -> dict[str, Header]:
        length = int.from_bytes(file.read(8), "little")
        if not 1 < length <= min(size - 8, 100_000_000):  # the limit of its library
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        entries = dict(json.loads(file.read(length)))
        self.metadata = {key: str(value) for key, value in dict(entries.pop("__metadata__", {})).items()}
        headers = {}
        for name, entry in sorted(entries.items()):
            code, shape, (start, stop) = entry["dtype"], tuple(map(index, entry["shape"])), entry["data_offsets"]
            if code in SAFETENSORS:
                header = Header(
                    shape, np.dtype(SAFETENSORS[code]), 8 + length + index(start), bfloat16=code == BFLOAT16
                )
                if start < 0 or stop - start != math.prod(shape) * header.stored.itemsize:
                    raise ValueError(f"{name} of shape {shape} does not fit its place")
                headers[name] = header.check(size)
        return headers


class TorchFile(ArrayFile):
    """A tensor or a dictionary of them, as ``torch.save`` writes them. Nothing in the file is run."""

    remedy = "only tensors are read, and dictionaries of them: save those by torch.save"

    def _open(self, file: IO[bytes], size: int) -> dict[str, Header]:
        content = torch.load(file, map_location="cpu", weights_only=True)
        self.single_array = isinstance(content, Tensor)
        tensors = {"": content} if self.single_array else content if isinstance(content, dict) else {}
        self._tensors = {
            str(key): (value.float() if value.dtype == torch.bfloat16 else value).detach()
            for key, value in tensors.items()
            if isinstance(value, Tensor)
        }
        if not self._tensors:
            raise ValueError(f"it holds a {type(content).__name__}")
        return {name: Header(tuple(value.shape), value.numpy().dtype) for name, value in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def windows(self, name: str, rows: int, start: int, stop: int) -> Iterator[np.ndarray]:
        yield from (part.numpy() for part in self._tensors[name][start:stop].split(rows))


FILES: dict[str, type[ArrayFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
}


class ArrayShard(Shard):
    """One matrix of a file of named arrays."""

    def __init__(self, file: ArrayFile, column: str | None = None) -> None:
        self.file, self.path = file, file.path
        self.name, self.single_array = file.choose(column), file.single_array
        header = file.headers[self.name]
        shape, dtype = header.shape, header.dtype
        if len(shape) != 2 or not 0 < shape[1] <= LONGEST_ROW:
            raise ValueError(f"{self.path}: shape {shape}; a matrix (rows, 1 to {LONGEST_ROW} dimensions) is needed")
        if dtype.kind != "f" or dtype.itemsize > 8:
            raise ValueError(f"{self.path}: dtype {dtype}; allowed are float16, float32 and float64")
        if header.fortran:
            raise ValueError(f"{self.path}: stored column by column (Fortran order); save np.ascontiguousarray of it")
        (self.rows, self.dim), self.dtype = shape, dtype

    def blocks(self, rows: int = ROWS, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Rows ``start`` to ``stop`` (None: the end), ``rows`` at a time; nothing else of the file is read."""
        for z in self.file.windows(self.name, rows, start, min(self.rows, self.rows if stop is None else stop)):
            yield Block(z, start)
            start += len(z)

    def runs(self, firsts: Sequence[int], length: int) -> Iterator[Block]:
        if isinstance(self.file, NpzFile):  # a compressed stream has no seek
            yield from super().runs(firsts, length)
        else:
            for first in firsts:
                yield from self.blocks(length, first, first + length)

    def writer(self, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> Writer:
        return ArrayWriter(self, paths, dtypes)


class ArrayWriter:
    """An array in NumPy's format for each kind, written row by row, then packed into one file where the format has one.

    Headers leave room for any number of rows, and are written again at the end.
    """

    def __init__(self, shard: ArrayShard, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> None:
        """The embeddings keep the name of their array."""
        self.dtypes, self.dim, self.rows = dtypes, shard.dim or 0, 0
        self.path = next(iter(paths.values()))
        self.pack = {NpzFile: self._pack_npz, SafetensorsFile: self._pack_safetensors}.get(type(shard.file))
        self.names: dict[Kind, str] = {kind: shard.name if kind == "embeddings" else kind for kind in paths}
        self.files: dict[Kind, IO[bytes]] = {
            kind: path.open("wb") if self.pack is None else tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
            for kind, path in paths.items()
        }
        self._write_headers()

    def write(self, arrays: Arrays, others: pa.Table | None = None) -> None:
        for kind, file in self.files.items():
            file.write(np.ascontiguousarray(arrays[kind], self.dtypes[kind]).reshape(-1).view(np.uint8).data)
        self.rows += len(next(iter(arrays.values())))

    def close(self) -> None:
        self._write_headers()
        if self.pack is not None:
            self.pack()
        for file in self.files.values():
            file.close()

    def _shape(self, kind: Kind) -> tuple[int, ...]:
        return (self.rows, self.dim) if kind == "embeddings" else (self.rows,)

    def _write_headers(self) -> None:
        for kind, file in self.files.items():
            file.seek(0)
            header = {"descr": self.dtypes[kind].str, "fortran_order": False, "shape": self._shape(kind)}
            np.lib.format.write_array_header_1_0(file, header)

    def _pack_npz(self) -> None:
        with zipfile.ZipFile(self.path, "w", allowZip64=True) as archive:
            for kind, file in self.files.items():  # without the time: a clock before 1980 would be an error
                with archive.open(f"{self.names[kind]}.npy", "w", force_zip64=True) as member:
                    file.seek(0)
                    shutil.copyfileobj(file, member, 1 << 20)

    def _pack_safetensors(self) -> None:
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for kind, name in self.names.items():
            start, end = end, end + math.prod(self._shape(kind)) * self.dtypes[kind].itemsize
            code = CODES[self.dtypes[kind].str]
            entries[name] = {"dtype": code, "shape": self._shape(kind), "data_offsets": [start, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        with self.path.open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for file in self.files.values():  # each is now behind its header
                shutil.copyfileobj(file, target, 1 << 20)
