"""Weights files of open_clip: whether they fit the model's activation, and what to do if they can't be loaded."""

from __future__ import annotations

import logging
from pathlib import Path

from clip_tca.core.checks import one_line
from clip_tca.encoding.torchscript import is_torchscript

log = logging.getLogger("clip_tca")

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")
CONFIGURATION = "open_clip_config.json"
"""The configuration beside the weights, in a folder or on the hub."""


def check_gelu(model: str, pretrained: str, quick: bool) -> None:
    """Refuse weights trained with the other activation than the model has, naming the right model.

    OpenAI's weights in a model with plain GELU lose about 4 points of accuracy; open_clip only warns.
    """
    import open_clip

    if bool((open_clip.get_model_config(model) or {}).get("quick_gelu", False)) == quick:
        return
    right = f"{model}-quickgelu" if quick else model.removesuffix("-quickgelu")
    if right == model or right not in open_clip.list_models():
        return  # open_clip has no other model for these weights
    kinds = ("QuickGELU", "GELU") if quick else ("GELU", "QuickGELU")
    raise ValueError(
        f"model: the weights {pretrained} were trained with {kinds[0]}, {model} has {kinds[1]}; use --model {right}"
    )


def other_gelu(model: str, pretrained: str) -> str:
    """A hint, if a tag belongs to the model without QuickGELU."""
    import open_clip

    other = model.removesuffix("-quickgelu")
    belongs = other != model and open_clip.get_pretrained_cfg(other, pretrained)
    return f"; {pretrained} belongs to --model {other}" if belongs else ""


def check_file(model: str, file: Path) -> None:
    """:func:`check_gelu` for a local file, as far as the file shows whose weights it holds."""
    # TorchScript comes from OpenAI alone, and the hub's copies are in folders named *.openai: all with QuickGELU
    if is_torchscript(file) or any(part.endswith(".openai") for part in file.parts):
        check_gelu(model, file.name, quick=True)
    elif "openai" in str(file).lower() and not model.endswith("-quickgelu"):
        log.warning("%s: if these are OpenAI's weights, the model must be %s-quickgelu", file, model)


def offline(
    name: str, error: Exception, cache: str = "HF_HOME", instead: str = "a local file with --pretrained FILE"
) -> str:
    """What to do when weights can't be downloaded; ``cache`` is the variable that names the library's cache."""
    return (
        f"the weights of {name} could not be downloaded ({one_line(error)}); give {instead}, "
        f"point {cache} at a cache that has them, or try --dataset demo, which needs no download"
    )
