"""Class texts for embeddings that are already there: from a file of text embeddings, or names and prompts to encode."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open

from clip_tca.bulk.arrays import damaged, npz_headers, pick, tensor_headers
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.files import sha256
from clip_tca.core.tensors import to_tensor

if TYPE_CHECKING:
    from clip_tca.encoding.base import Encoder
    from clip_tca.encoding.store import Store

USUAL = ("text", "texts", "text_embeds", "text_embeddings", "text_emb", "embeddings", "arr_0", "text.single")
SCALE = 100.0
"""Logit scale where nothing else is known: that of OpenAI's CLIP."""


@dataclass(frozen=True)
class Texts:
    """The classifier, with where it came from.

    Attributes:
        classifier: g.
        classes: Class names, if they are known.
        about: For the record.
    """

    classifier: ZeroShotClassifier
    classes: list[str] | None
    about: dict[str, Any]


def read_texts(path: Path, name: str | None, scale: float | None, device: str) -> Texts:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)`` from ``.npy``, ``.npz`` or ``.safetensors``.

    Args:
        path: The file.
        name: Array or tensor in it; None looks for the usual names.
        scale: Logit scale; None takes that of the file, else 100.
        device: Where to compute.
    """
    if not path.is_file():
        raise FileNotFoundError(f"text: {path} is not a file; give text embeddings, or class names with --model")
    if path.suffix.lower() not in (".npy", ".npz", ".safetensors"):
        raise ValueError(
            f"text: {path}; allowed are text embeddings (.npy, .npz, .safetensors), or class names with --model"
        )
    names, metadata = _names(path)
    key = pick(path, names, name, "array", USUAL, "--text-column")
    try:
        known = float(metadata.get("scale", SCALE))
        classes = json.loads(metadata.get("classes", "null"))
        text = _array(path, key)
    except Exception as error:  # whatever a reader says of a file that is not what its name says
        raise damaged(path, error) from None
    classifier = ZeroShotClassifier(to_tensor(text, "text").to(device), scale or known)
    about = {"file": path.name, "name": key, "sha256": sha256(path), "scale": classifier.scale}
    return Texts(classifier, classes, {**about, "classes": classifier.n_classes})


def _names(path: Path) -> tuple[list[str], dict[str, str]]:
    """Arrays in a file that could be text embeddings, and its metadata; nothing but headers is read."""
    metadata: dict[str, str] = {}
    if path.suffix.lower() == ".npy":
        return ["text"], metadata
    if path.suffix.lower() == ".npz":
        headers = {name: (shape, dtype) for name, (shape, _, dtype) in npz_headers(path).items()}
    else:
        headers, metadata = tensor_headers(path)
    return [name for name, (shape, dtype) in headers.items() if len(shape) in (2, 3) and dtype.kind == "f"], metadata


def _array(path: Path, name: str) -> np.ndarray:
    if path.suffix.lower() == ".safetensors":
        with safe_open(str(path), "pt") as file:
            return np.asarray(file.get_tensor(name).float().numpy())
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[name])
    with path.open("rb") as content:
        return np.asarray(np.lib.format.read_array(content, allow_pickle=False))


def encode_texts(path: Path, prompts: str, encoder: Encoder, store: Store, scale: float | None) -> Texts:
    """Class names, one a line as in :mod:`clip_tca.datasets.prompts`, put into prompts and encoded."""
    from clip_tca.datasets.prompts import load_prompts, read_classes
    from clip_tca.encoding.embedder import Embedder

    names = list(read_classes(path).values())
    chosen = load_prompts(prompts, names)
    text = Embedder(encoder, store).texts(chosen)
    classifier = ZeroShotClassifier(text.to(encoder.device), scale or encoder.scale)
    about = {
        "file": path.name,
        "classes": len(names),
        "scale": classifier.scale,
        "prompts": chosen.name,
        "texts_sha256": chosen.fingerprint(),
        "model": encoder.identity.model,
        "weights": encoder.identity.weights,
    }
    return Texts(classifier, names, about)
