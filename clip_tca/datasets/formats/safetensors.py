"""``.safetensors`` files: the only place that opens those of embeddings, whether for ``adapt`` or for ``eval``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.datasets.formats.arrays import ArrayFile, ArrayHeader
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.npy import HEAD, PackedSink

_FLOATS = {"F16": np.float16, "BF16": np.float32, "F32": np.float32, "F64": np.float64}
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


class SafetensorsFile(ArrayFile[Tensor]):
    """A ``.safetensors`` file."""

    noun = "tensor"
    sink = SafetensorsSink

    def _open(self) -> dict[str, ArrayHeader]:
        with safe_open(str(self.path), "pt") as file:
            self.metadata = dict(file.metadata() or {})
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {
                name: ArrayHeader(tuple(part.get_shape()), np.dtype(_FLOATS.get(part.get_dtype(), np.int64)))
                for name, part in slices.items()
            }

    def _read(self, name: str) -> Tensor:
        with safe_open(str(self.path), "pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def windows(self, name: str, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        for first in range(start, stop, rows):
            try:  # opened anew for every window: what the file maps into memory goes away with it
                with safe_open(str(self.path), "pt") as file:
                    z = file.get_slice(name)[first : min(first + rows, stop)]
            except (SafetensorError, OSError) as error:
                raise damaged(self.path, error) from None
            yield (z.float() if z.dtype == torch.bfloat16 else z).numpy()
