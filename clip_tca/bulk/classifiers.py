"""The classifier of ``adapt``: a file of text embeddings, class names and prompts to encode, or a head in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.files import sha256
from clip_tca.core.remote import Location
from clip_tca.data.arrays import SafetensorsFile
from clip_tca.data.embeddings import read_class_texts
from clip_tca.data.prompts import load_prompts, read_classes

if TYPE_CHECKING:
    from clip_tca.encoding.base import Encoder
    from clip_tca.encoding.store import Store


CERTAIN, LOST, MOST = 0.99, 0.1, 0.5
"""A scale is doubted if most confidences are above CERTAIN, or within LOST of the way from a guess to certainty. With
CLIP at its own scale, at most a third are that certain on the sets at hand; at 100 in place of 20 to 30, more than half
are."""


@dataclass(frozen=True)
class GivenClassifier:
    """A classifier, and where it came from, for the record."""

    classifier: LinearClassifier
    about: dict[str, Any]
    kind: Literal["text", "head", "state"] = "text"


def read_texts(path: Location, name: str | None, scale: float | None, device: str) -> GivenClassifier:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)`` from ``.npy``, ``.npz``, ``.safetensors`` or ``.pt``.

    Of the arrays only ``name`` is read; None looks for the usual names. A ``scale`` of None takes the file's, else 100.
    """
    texts = read_class_texts(path, name, ", or class names with --model")
    classifier = ZeroShotClassifier(texts.rows.to(device), texts.scale_for(scale), classes=texts.classes)
    about = {"file": path.name, "name": texts.name, "sha256": sha256(path), "scale": classifier.scale}
    source = texts.scale_from(scale)
    return GivenClassifier(classifier, {**about, "scale_from": source, "classes": classifier.n_classes})


def encode_texts(path: Location, prompts: str, encoder: Encoder, store: Store, scale: float | None) -> GivenClassifier:
    """Class names, one a line as in :mod:`clip_tca.data.prompts`, put into prompts and encoded."""
    from clip_tca.encoding.embedder import Embedder

    classes = read_classes(path)
    names = list(classes.values())
    filled = load_prompts(prompts, names, raw=list(classes))
    text = Embedder(encoder, store).texts(filled)
    classifier = ZeroShotClassifier(text.to(encoder.device), scale or encoder.scale, bias=encoder.bias, classes=names)
    about = {
        "file": path.name,
        "classes": len(names),
        "scale": classifier.scale,
        "scale_from": "given" if scale else "model",
        "prompts": filled.name,
        "texts_sha256": filled.fingerprint(),
        "model": encoder.identity.model,
        "weights": encoder.identity.weights,
    }
    return GivenClassifier(classifier, about)


def read_head(path: Location, device: str) -> GivenClassifier:
    """``weight`` ``(c, d)`` and ``bias`` ``(c,)`` (zero if there is none) of a safetensors file.

    Rows are taken as they are, unless the file's metadata have ``normalize``, as those of ``clip-tca export`` do.

    Raises:
        ValueError: If it is of another format, or no head is in it.
    """
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"head: {path}; allowed is a .safetensors file with the tensors weight and bias")
    file = SafetensorsFile(path)
    prefix = "" if "weight" in file.headers else "head."  # as in files of embeddings
    if f"{prefix}weight" not in file.headers:
        names = ", ".join(list(file.headers)[:10]) or "none"
        raise ValueError(
            f"head: {path} has no tensor weight or head.weight; there are {names}; rename the last layer's"
        )
    weight = file.read(f"{prefix}weight").to(device)
    bias = file.read(f"{prefix}bias").to(device) if f"{prefix}bias" in file.headers else None
    unit = file.metadata.get("normalize") == "true"
    try:
        classes = json.loads(file.metadata.get("classes", "null"))
        head = LinearClassifier(weight, bias, classes=classes, normalize=unit)
        head.check_size()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"head: {path}: {error}") from None
    about = {"file": path.name, "name": f"{prefix}weight", "sha256": sha256(path), "classes": head.n_classes}
    return GivenClassifier(head, about, kind="head")


def scale_doubt(g: LinearClassifier, rows: Tensor) -> str | None:
    """What looks wrong about the logit scale: for most of the prepared rows g is certain, or knows nothing."""
    p = torch.cat([part.softmax(dim=1).amax(dim=1) for part in g.logits(rows).split(1024)])
    certain, lost = (
        (p > CERTAIN).double().mean(),
        ((p - 1 / g.n_classes) < LOST * (1 - 1 / g.n_classes)).double().mean(),
    )
    if certain > MOST:
        return f"{certain:.0%} of the confidences are above {CERTAIN}: it may be too large"
    if lost > MOST:
        return f"{lost:.0%} of the confidences are next to those of a guess: it may be too small"
    return None
