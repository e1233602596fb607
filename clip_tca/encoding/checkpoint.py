"""Weights: read from files without running code in them, downloaded, and known by their content.

What goes wrong on the way is one line, whichever library loads the weights: no such model, tag or file, no network.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError, OfflineError, is_offline
from clip_tca.core.network import hub_or_cache

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")

LEGACY = (
    "a checkpoint is a state_dict in safetensors or torch.save; other pickles can run any code and are not read: save "
    "the state_dict alone"
)

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")  # where training scripts put the weights


def local_file(pretrained: str) -> Path | None:
    """The file that ``pretrained`` names; None if it is a tag; ValueError if it can only be a file and is none."""
    if Path(pretrained).is_file() and not pretrained.isidentifier():
        return Path(pretrained).absolute()
    if pretrained.endswith(SUFFIXES) or "/" in pretrained:
        raise ValueError(f"pretrained: {pretrained}: no such file")
    return None


def refuse_torchscript(file: Path) -> None:
    """Raise ValueError if ``file`` is a TorchScript archive.

    It is a program, and versions of torch before 2.6 run parts of it even if told to load weights only.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.namelist()
    except Exception:  # no archive; or a damaged one, which torch reports
        return
    if any(name.split("/")[-1] == "constants.pkl" for name in members):
        raise ValueError(
            f"pretrained: {file} is a TorchScript archive, a program that is not run; use --pretrained openai for "
            "OpenAI's weights, or a state_dict in a .safetensors or .pt file"
        )


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], list[str] | None]:
    """Weights by name, and the classes if the file's metadata has them (safetensors: ``classes``, a JSON list).

    ValueError if it is no checkpoint, is damaged, or is a pickle of more than tensors.
    """
    refuse_torchscript(file)
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


def unknown_model(model: str, library: str, models: Sequence[str]) -> ValueError:
    """The error for a name that the library does not have."""
    near = ", ".join(difflib.get_close_matches(model.rpartition(":")[2], models, 3, 0.3)) or "none"
    return ValueError(f"model: {model!r} is not one of {library}'s {len(models)}; near are {near}")


def unknown_tag(model: str, tag: str | None, tags: Sequence[str]) -> ValueError:
    """The error for weights that the library does not have."""
    known = ", ".join(tags) or "none"
    return ValueError(f"pretrained: {tag!r} is neither a file nor a tag of {model}; tags are {known}")


@contextmanager
def downloads(
    name: str, cache: str = "HF_HOME", instead: str = "a local file with --pretrained FILE"
) -> Iterator[None]:
    """Let a library download weights, or find them in its cache, which the variable ``cache`` names.

    Whatever it raises becomes a ValueError that says what to do ``instead``.
    """
    try:
        with hub_or_cache() if cache == "HF_HOME" else nullcontext():
            yield
    except Exception as error:
        offline = is_offline(error) or is_offline(error.__context__)  # libraries raise their own errors meanwhile
        raise (OfflineError if offline else ValueError)(
            f"the weights of {name} could not be downloaded ({one_line(error)}); give {instead}, "
            f"point {cache} at a cache that has them, or use the small model that needs no download: --model demo"
        ) from error
