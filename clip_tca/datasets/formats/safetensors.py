"""``.safetensors`` files: the only place that opens those of embeddings, whether for ``adapt`` or for ``eval``."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.core.remote import RemotePath
from clip_tca.datasets.formats.arrays import ArrayFile, ArrayHeader
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.npy import HEAD, PackedSink

_FLOATS = {"F16": np.float16, "BF16": np.float32, "F32": np.float32, "F64": np.float64}
_TYPES = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool,
    "I8": torch.int8, "U8": torch.uint8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
_LONGEST = 100_000_000
"""Bytes of a header at most, as the library has it."""

_CODES = {"<f2": "F16", "<f4": "F32", "<i8": "I64"}


class SafetensorsSink(PackedSink):
    """One ``.safetensors`` file: length of the header, header as JSON, and the values of one tensor after another.

    (The library of the format writes only what is in memory.)
    """

    def _pack(self) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for kind, file in self.files.items():
            shape = [file.row] if file.width is None else [file.row, file.width]
            size = int(np.prod(shape)) * file.dtype.itemsize
            offsets = [end, end + size]
            header[self.names[kind]] = {"dtype": _CODES[file.dtype.str], "shape": shape, "data_offsets": offsets}
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with self.path.open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for part in self.parts.values():
                with part.open("rb") as source:
                    source.seek(HEAD)
                    shutil.copyfileobj(source, target, 1 << 20)


class Ranges:
    """The tensors of a file in a store, which the library of the format can't open: each is read from its place."""

    def __init__(self, path: RemotePath) -> None:
        """Read and check the header."""
        self.path = path
        whole = path.stat().st_size
        with path.open() as file:
            size = int.from_bytes(file.read(8), "little")
            if not 1 < size <= min(whole - 8, _LONGEST):
                raise ValueError(f"a header of {size} bytes in a file of {whole}")
            header: dict[str, Any] = dict(json.loads(file.read(size)))
        self.metadata = {str(key): str(value) for key, value in dict(header.pop("__metadata__", {})).items()}
        self.entries: dict[str, tuple[str, tuple[int, ...], int]] = {}
        for name, entry in header.items():
            code, shape, (start, stop) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
            needed = math.prod(shape) * _TYPES[code].itemsize
            if min(shape, default=0) < 0 or start < 0 or stop - start != needed or 8 + size + stop > whole:
                raise ValueError(f"{name} of shape {shape} does not fit its place")
            self.entries[name] = (code, shape, 8 + size + start)

    def rows(self, name: str, first: int, stop: int) -> Tensor:
        """Rows ``first`` to ``stop`` of a tensor."""
        code, shape, start = self.entries[name]
        width = math.prod(shape[1:]) * _TYPES[code].itemsize
        return self._tensor(start + first * width, (max(stop - first, 0), *shape[1:]), _TYPES[code])

    def tensor(self, name: str) -> Tensor:
        """A whole tensor."""
        code, shape, start = self.entries[name]
        return self._tensor(start, shape, _TYPES[code])

    def _tensor(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        with self.path.open() as file:
            file.seek(start)
            content = bytearray(file.read(size))
        if len(content) < size:
            raise EOFError(f"{len(content)} bytes of {size}")
        return torch.frombuffer(content, dtype=dtype).reshape(shape)


class SafetensorsFile(ArrayFile[Tensor]):
    """A ``.safetensors`` file."""

    noun = "tensor"
    sink = SafetensorsSink

    @cached_property
    def _ranges(self) -> Ranges | None:
        """How the file is read if it is in a store."""
        return None if isinstance(self.path, Path) else Ranges(self.path)

    def _open(self) -> dict[str, ArrayHeader]:
        if self._ranges is not None:
            self.metadata = self._ranges.metadata
            entries = self._ranges.entries.items()
            return {
                name: ArrayHeader(shape, np.dtype(_FLOATS.get(code, np.int64))) for name, (code, shape, _) in entries
            }
        with safe_open(str(self.path), "pt") as file:
            self.metadata = dict(file.metadata() or {})
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {
                name: ArrayHeader(tuple(part.get_shape()), np.dtype(_FLOATS.get(part.get_dtype(), np.int64)))
                for name, part in slices.items()
            }

    def _read(self, name: str) -> Tensor:
        if self._ranges is not None:
            return self._ranges.tensor(name)
        with safe_open(str(self.path), "pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def windows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """A matrix, ``rows`` at a time."""
        count = self.headers[name].shape[0]
        for first in range(0, count, rows):
            try:
                z = self._rows(name, first, min(first + rows, count))
            except (SafetensorError, OSError, EOFError) as error:
                raise damaged(self.path, error) from None
            yield (z.float() if z.dtype == torch.bfloat16 else z).numpy()

    def _rows(self, name: str, first: int, stop: int) -> Tensor:
        if self._ranges is not None:
            return self._ranges.rows(name, first, stop)
        with safe_open(str(self.path), "pt") as file:  # anew for every window: what it maps into memory goes with it
            rows: Tensor = file.get_slice(name)[first:stop]
            return rows
