"""Shards that hold arrays: ``.npy``, ``.npz`` and ``.safetensors``.

Files are read in windows by plain reads. (A memory map of the whole file would count as resident memory as it is read,
and a file that is cut short meanwhile would end the process.)
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clip_tca.bulk.block import LARGEST, ROWS, Block

USUAL = ("embeddings", "embedding", "image_embeds", "img_emb", "emb", "arr_0")
"""Names under which embeddings usually stand."""


def damaged(path: Path, reason: object) -> ValueError:
    """The error for a file that can't be read to its end."""
    told = " ".join(str(reason).split())[:200] or type(reason).__name__
    return ValueError(f"{path}: truncated or damaged ({told}); copy or download it again")


def pick(
    path: Path,
    names: list[str],
    column: str | None,
    what: str,
    usual: tuple[str, ...] = USUAL,
    option: str = "--column",
) -> str:
    """Which of the arrays or columns ``names`` holds the embeddings; ``option`` is the one that gives ``column``."""
    if column is not None:
        if column not in names:
            raise ValueError(f"{path}: no {what} {column!r}; there are {', '.join(names) or 'none'}")
        return column
    found = next((name for name in usual if name in names), None) or (names[0] if len(names) == 1 else None)
    if found is None:
        there = f"there are {', '.join(names)}; name it with {option}" if names else "there is none"
        raise ValueError(f"{path}: which {what} holds the embeddings? {there}")
    return found


def check_matrix(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool = False) -> None:
    """Refuse what is not a matrix of floats, row after row."""
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 1:
        raise ValueError(f"{path}: shape {tuple(shape)}; a matrix (rows, dimensions) is needed")
    if shape[1] > LARGEST:
        raise ValueError(f"{path}: shape {tuple(shape)}; at most {LARGEST} dimensions are allowed")
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError(f"{path}: dtype {dtype}; allowed are float16, float32 and float64")
    if fortran:
        raise ValueError(f"{path}: stored column by column (Fortran order); save np.ascontiguousarray of it")


class Npy:
    """A ``.npy`` file; any range of its rows can be read."""

    splittable = True

    def __init__(self, path: Path, column: str | None = None) -> None:
        """Read the header."""
        if column is not None:
            raise ValueError(f"{path}: one array, without a name; leave out --column {column}")
        self.path = path
        try:
            with path.open("rb") as file:
                shape, fortran, dtype = _header(file)
                self._start = file.tell()
        except OSError:
            raise
        except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
            raise damaged(path, error) from None
        check_matrix(path, shape, dtype, fortran)
        (self.rows, self.dim), self.dtype, self._stored = shape, dtype.newbyteorder("="), dtype
        wanted, there = self._start + self.rows * self.dim * dtype.itemsize, path.stat().st_size
        if there < wanted:
            raise damaged(path, f"{there} bytes of {wanted}")

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        with self.path.open("rb") as file:
            file.seek(self._start + start * self.dim * self._stored.itemsize)
            for first in range(start, stop, rows):
                count = (min(first + rows, stop) - first) * self.dim
                values = np.fromfile(file, self._stored, count)
                if len(values) < count:
                    raise damaged(self.path, f"ends before row {stop}")
                yield Block(values.reshape(-1, self.dim).astype(self.dtype, copy=False), first)


class Npz:
    """One array of a ``.npz`` file, compressed or not, read from its beginning to its end."""

    splittable = False

    def __init__(self, path: Path, column: str | None = None) -> None:
        """Read the headers."""
        self.path = path
        headers = npz_headers(path)
        matrices = [name for name, (shape, _, dtype) in headers.items() if len(shape) == 2 and dtype.kind == "f"]
        self.name = pick(path, matrices, column, "array")
        shape, fortran, dtype = headers[self.name]
        check_matrix(path, shape, dtype, fortran)
        (self.rows, self.dim), self.dtype, self._stored = shape, dtype.newbyteorder("="), dtype

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """All rows (``start`` is 0 and ``stop`` their number), ``rows`` at a time."""
        width = self.dim * self._stored.itemsize
        try:
            with zipfile.ZipFile(self.path) as archive:
                opened = archive.open(f"{self.name}.npy")  # stays open when the archive is closed
            _header(opened)
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
            raise damaged(self.path, error) from None
        with opened as file:
            for first in range(start, stop, rows):
                wanted = (min(first + rows, stop) - first) * width
                try:
                    content = file.read(wanted)
                except Exception as error:  # of the archive or of its compression
                    raise damaged(self.path, error) from None
                if len(content) < wanted:
                    raise damaged(self.path, f"ends before row {stop}")
                values = np.frombuffer(content, self._stored).reshape(-1, self.dim)
                yield Block(values.astype(self.dtype, copy=False), first)


class Safetensors:
    """One tensor of a ``.safetensors`` file."""

    splittable = False

    def __init__(self, path: Path, column: str | None = None) -> None:
        """Read the header."""
        self.path = path
        headers = tensor_headers(path)[0]
        matrices = [name for name, (shape, dtype) in headers.items() if len(shape) == 2 and dtype.kind == "f"]
        self.name = pick(path, matrices, column, "tensor")
        shape, self.dtype = headers[self.name]
        check_matrix(path, shape, self.dtype)
        self.rows, self.dim = shape

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        from safetensors import SafetensorError, safe_open

        for first in range(start, stop, rows):
            try:  # opened anew for every block: what the file maps into memory goes away with it
                with safe_open(str(self.path), "pt") as file:
                    z = file.get_slice(self.name)[first : min(first + rows, stop)]
            except (SafetensorError, OSError) as error:
                raise damaged(self.path, error) from None
            yield Block((z.float() if z.dtype == torch.bfloat16 else z).numpy(), first)


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], bool, np.dtype[Any]]]:
    """Shape, whether in Fortran order, and dtype of every array of a ``.npz`` file."""
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in [name for name in archive.namelist() if name.endswith(".npy")]:
                with archive.open(member) as file:
                    headers[member.removesuffix(".npy")] = _header(file)
    except Exception as error:  # of the archive, of its compression, or of a header in it
        raise damaged(path, error) from None
    return headers


def tensor_headers(path: Path) -> tuple[dict[str, tuple[tuple[int, ...], np.dtype[Any]]], dict[str, str]]:
    """Shape and dtype (as NumPy has it) of every tensor of a ``.safetensors`` file, and the file's metadata."""
    from safetensors import SafetensorError, safe_open

    floats = {"F16": np.float16, "BF16": np.float32, "F32": np.float32, "F64": np.float64}
    try:
        with safe_open(str(path), "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            kinds = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None
    return {name: (shape, np.dtype(floats.get(kind, np.int64))) for name, (shape, kind) in kinds.items()}, metadata


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an array in NumPy's format."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran and len(shape) > 1 and min(shape) > 1, dtype
