"""Checkpoints of classification networks: read without running code, fitted to a network, known by their content."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from clip_tca.core.checks import one_line

log = logging.getLogger("clip_tca")

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
"""Where training scripts put the weights beside their own state."""


def read_checkpoint(file: Path, trust_pickle: bool = False) -> tuple[dict[str, Tensor], list[str] | None]:
    """Weights by name, and the classes if the file's metadata has them (safetensors: ``classes``, a JSON list).

    ValueError if it is no checkpoint, is damaged, or is a pickle of more than tensors that is not trusted.
    """
    try:
        if file.suffix == ".safetensors":
            with safe_open(str(file), "pt") as opened:
                classes = json.loads((opened.metadata() or {}).get("classes", "null"))
                return {name: opened.get_tensor(name) for name in opened.keys()}, classes  # noqa: SIM118 (no mapping)
        if trust_pickle:
            log.warning("%s is trusted: if it is a pickle, it can run any code", file)
        return _weights(torch.load(file, map_location="cpu", weights_only=not trust_pickle)), None
    except Exception as error:
        raise ValueError(
            f"pretrained: {file} can't be read as a checkpoint ({one_line(error)}); a checkpoint is a state_dict in "
            "safetensors or a plain torch.save; a legacy pickle, which can run any code, needs --trust-pickle"
        ) from None


def _weights(content: Any) -> dict[str, Tensor]:
    """The weights in what ``torch.load`` gave, without the prefix of ``nn.DataParallel``."""
    for name in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError("it holds no state_dict")
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_weights(network: nn.Module, weights: dict[str, Tensor], file: Path, model: str) -> None:
    """Put weights into a network; ValueError that names what is missing, left over or of another shape."""
    wanted = network.state_dict()
    missing = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    extra = [name for name in weights if name not in wanted]
    shaped = [
        f"{name} {tuple(weights[name].shape)} for {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in weights and weights[name].shape != value.shape
    ]
    found = {"without": missing, "also with": extra, "with": shaped}
    if reasons := [f"{how} {_listed(names)}" for how, names in found.items() if names]:
        raise ValueError(
            f"pretrained: {file} does not fit {model}: {', '.join(reasons)}; name the --model of these weights"
        )
    network.load_state_dict(weights, strict=False)


def _listed(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "")


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of all weights by name: the same whichever file they came from."""
    content = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        content.update(name.encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()
