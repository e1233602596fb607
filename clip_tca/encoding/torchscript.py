"""Reads the weights of a TorchScript archive, as OpenAI published its models, without running its code.

Such an archive is a program: ``torch.jit.load`` compiles its code and may run parts of it (``__setstate__``), which can
read and write files. Only the numbers are needed here. The archive holds them as a pickle that describes the modules
(``data.pkl``) and one uncompressed member for each storage (``data/0`` …). The pickle is read by an unpickler that
accepts modules, tensors and lists, and refuses every other name.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clip_tca.core.checks import one_line

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}

_TAGS = ("restore_type_tag", "build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")


def is_torchscript(file: Path) -> bool:
    """Whether a file is a TorchScript archive; False for a file that is no archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.split("/")[-1] == "constants.pkl" for name in archive.namelist())
    except Exception:  # whoever reads it as another format reports what is wrong with it
        return False


def read_torchscript(file: Path) -> dict[str, Tensor]:
    """All tensors in the modules of an archive, by their dotted names.

    ValueError if it is damaged, or holds anything but modules, tensors and plain values.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            description = next(name for name in archive.namelist() if name.split("/")[-1] == "data.pkl")
            module = _Reader(archive, description.removesuffix("data.pkl")).load()
            return dict(_tensors(module, ""))
    except Exception as error:
        raise ValueError(f"{file}: not a TorchScript archive of weights, or damaged ({one_line(error)})") from None


class _Module:
    """A module of the archive: its tensors and submodules by name."""

    parts: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.parts = dict(state)


class _Reader(pickle.Unpickler):
    """An unpickler for modules and tensors only."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        """Our own stand-in for a name; nothing is imported."""
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch.jit._pickle" and name in _TAGS:
            return lambda value, *_: value
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, stride, *_: storage.as_strided(shape, stride, offset)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise ValueError(f"it asks for {module}.{name}, which weights do not need")

    def persistent_load(self, pid: Any) -> Tensor:
        """A storage, as a vector."""
        _, dtype, key, _, _ = pid
        member = self._archive.getinfo(f"{self._root}data/{key}")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed, as torch never writes it")
        content = bytearray(self._archive.read(member))
        return torch.frombuffer(content, dtype=dtype) if content else torch.zeros(0, dtype=dtype)


def _tensors(module: _Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in module.parts.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
