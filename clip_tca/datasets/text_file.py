"""Text embeddings of the classes in a file: what ``adapt`` and ``eval`` take as ``--text``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from torch import Tensor

from clip_tca.core.remote import Location
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets import torch_file
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.registry import ARRAYS, open_arrays

SCALE = 100.0
"""Logit scale where the file has none: that of OpenAI's CLIP."""


@dataclass(frozen=True)
class ClassTexts:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)``, the array's name, and scale and class names, if known."""

    rows: Tensor
    name: str
    scale: float | None = None
    classes: list[str] | None = None

    def scale_for(self, given: float | None) -> float:
        """The logit scale that was ``given``, else that of the file, else 100."""
        return given or (SCALE if self.scale is None else self.scale)


def read_class_texts(path: Location, name: str | None = None, otherwise: str = "") -> ClassTexts:
    """The text embeddings in a file of arrays or tensors; of several only ``name`` is read, None looks for usual names.

    Error messages end with ``otherwise``, what else may be given.
    """
    if not path.is_file():
        raise FileNotFoundError(f"text: {path} is not a file; give text embeddings{otherwise}")
    suffix = path.suffix.lower()
    if suffix in torch_file.SUFFIXES:
        return ClassTexts(to_tensor(torch_file.read_tensor(path, name, texts=True), "text"), name or "text")
    if suffix not in ARRAYS:
        allowed = ", ".join((*ARRAYS, *torch_file.SUFFIXES))
        raise ValueError(f"text: {path}; allowed are text embeddings ({allowed}){otherwise}")
    file = open_arrays(path)
    key = file.choose(name, texts=True)
    try:
        scale = float(file.metadata["scale"]) if "scale" in file.metadata else None
        classes = json.loads(file.metadata.get("classes", "null"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return ClassTexts(to_tensor(file.read(key), "text"), key or "text", scale, classes)
