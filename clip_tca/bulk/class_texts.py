"""The zero-shot classifier of ``adapt``: from a file of text embeddings, or from class names and prompts to encode."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.files import sha256
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.registry import ARRAYS, open_arrays
from clip_tca.datasets.prompts import read_classes

if TYPE_CHECKING:
    from clip_tca.encoding.base import Encoder
    from clip_tca.encoding.store import Store

SCALE = 100.0
"""Logit scale where the file has none: that of OpenAI's CLIP."""


@dataclass(frozen=True)
class GivenClassifier:
    """The classifier, its class names if they are known, and where it came from, for the record."""

    classifier: LinearClassifier
    classes: list[str] | None
    about: dict[str, Any]
    kind: Literal["text", "head"] = "text"

    def named(self, path: Path) -> GivenClassifier:
        """The same with the class names of a file, one a line."""
        names = list(read_classes(path).values())
        return replace(self, classifier=self.classifier.named(names), classes=names)


def read_texts(path: Path, name: str | None, scale: float | None, device: str) -> GivenClassifier:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)`` from ``.npy``, ``.npz`` or ``.safetensors``.

    Of the arrays only ``name`` is read; None looks for the usual names. A ``scale`` of None takes the file's, else 100.
    """
    if not path.is_file():
        raise FileNotFoundError(f"text: {path} is not a file; give text embeddings, or class names with --model")
    if path.suffix.lower() not in ARRAYS:
        raise ValueError(
            f"text: {path}; allowed are text embeddings ({', '.join(ARRAYS)}), or class names with --model"
        )
    file = open_arrays(path)
    key = file.choose(name, texts=True)
    try:
        stored_scale = float(file.metadata.get("scale", SCALE))
        classes = json.loads(file.metadata.get("classes", "null"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    text = to_tensor(file.read(key), "text").to(device)
    classifier = ZeroShotClassifier(text, scale or stored_scale, classes=classes)
    about = {"file": path.name, "name": key or "text", "sha256": sha256(path), "scale": classifier.scale}
    return GivenClassifier(classifier, classes, {**about, "classes": classifier.n_classes})


def encode_texts(path: Path, prompts: str, encoder: Encoder, store: Store, scale: float | None) -> GivenClassifier:
    """Class names, one a line as in :mod:`clip_tca.datasets.prompts`, put into prompts and encoded."""
    from clip_tca.datasets.prompts import load_prompts
    from clip_tca.encoding.embedder import Embedder

    names = list(read_classes(path).values())
    filled = load_prompts(prompts, names)
    text = Embedder(encoder, store).texts(filled)
    classifier = ZeroShotClassifier(text.to(encoder.device), scale or encoder.scale, bias=encoder.bias, classes=names)
    about = {
        "file": path.name,
        "classes": len(names),
        "scale": classifier.scale,
        "prompts": filled.name,
        "texts_sha256": filled.fingerprint(),
        "model": encoder.identity.model,
        "weights": encoder.identity.weights,
    }
    return GivenClassifier(classifier, names, about)
