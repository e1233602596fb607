"""Weights in files: read without running code, fitted to a network, known by their content.

OpenAI published its models as TorchScript archives. Such an archive is a program: ``torch.jit.load`` compiles its code
and may run parts of it (``__setstate__``), which can read and write files. Only the numbers are needed here. They are
in a pickle that describes the modules (``data.pkl``), and in one uncompressed member for each storage (``data/0`` …).
The pickle is read by an unpickler that accepts modules, tensors and lists, and refuses every other name.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError, OfflineError, is_offline

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")

LEGACY = (
    "a checkpoint is a state_dict in safetensors or torch.save; other pickles can run any code and are not read: save "
    "the state_dict alone"
)

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
"""Where training scripts put the weights beside their own state."""

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Bool")
_TAGS = ("restore_type_tag", "build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")


def local_file(pretrained: str) -> Path | None:
    """The file that ``pretrained`` names; None if it is a tag; ValueError if it can only be a file and is none."""
    if Path(pretrained).is_file() and not pretrained.isidentifier():
        return Path(pretrained).absolute()
    if pretrained.endswith(SUFFIXES) or "/" in pretrained:
        raise ValueError(f"pretrained: {pretrained}: no such file")
    return None


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], list[str] | None]:
    """Weights by name, and the classes if the file's metadata has them (safetensors: ``classes``, a JSON list).

    ValueError if it is no checkpoint, is damaged, or is a pickle of more than tensors.
    """
    try:
        if file.suffix == ".safetensors":
            with safe_open(str(file), "pt") as opened:
                classes = json.loads((opened.metadata() or {}).get("classes", "null"))
                return {name: opened.get_tensor(name) for name in opened.keys()}, classes  # noqa: SIM118 (no mapping)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CorruptFileError(
            f"pretrained: {file} can't be read as a checkpoint ({one_line(error)}); {LEGACY}"
        ) from None
    for name in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"pretrained: {file} holds no state_dict; {LEGACY}")
    return {str(name).removeprefix("module."): value for name, value in content.items()}, None


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of all weights by name: the same whichever file they came from."""
    content = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        content.update(name.encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def offline(
    name: str, error: Exception, cache: str = "HF_HOME", instead: str = "a local file with --pretrained FILE"
) -> ValueError:
    """The error if weights can't be downloaded; ``cache`` is the variable that names the library's cache."""
    return (OfflineError if is_offline(error) else ValueError)(
        f"the weights of {name} could not be downloaded ({one_line(error)}); give {instead}, "
        f"point {cache} at a cache that has them, or use the small model that needs no download: --model demo"
    )


# -- TorchScript ------------------------------------------------------------------------------------------------------


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
        raise CorruptFileError(
            f"{file}: not a TorchScript archive of weights, or damaged ({one_line(error)})"
        ) from None


class _Module:
    """A module of the archive: its tensors and submodules are its attributes."""


class _Reader(pickle.Unpickler):
    """An unpickler for modules and tensors only."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        """Our own stand-in for a name; nothing is imported."""
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in [f"{kind}Storage" for kind in _STORAGES]:
            return getattr(torch, name.removesuffix("Storage").lower())
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
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
