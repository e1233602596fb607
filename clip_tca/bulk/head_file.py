"""A linear head in a file, the classifier of ``adapt --head``: the last layer of a model, or an exported classifier."""

from __future__ import annotations

import json

from clip_tca.bulk.class_texts import GivenClassifier
from clip_tca.classifier import LinearClassifier
from clip_tca.core.files import sha256
from clip_tca.core.remote import Location
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.safetensors import SafetensorsFile

PREFIXES = ("", "head.")
"""What may stand before ``weight`` and ``bias``; ``head.`` in files of embeddings."""


def read_head(path: Location, device: str) -> GivenClassifier:
    """``weight`` ``(c, d)`` and ``bias`` ``(c,)`` (zero if there is none) of a safetensors file.

    Rows are taken as they are, unless the file's metadata have ``normalize``, as those of ``clip-tca export`` do.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is of another format, or no head is in it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"head: {path} is not a file; give a safetensors file with the tensors weight and bias")
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"head: {path}; allowed is a .safetensors file with the tensors weight and bias")
    file = SafetensorsFile(path)
    prefix = next((prefix for prefix in PREFIXES if f"{prefix}weight" in file.headers), None)
    if prefix is None:
        names = ", ".join(list(file.headers)[:10]) or "none"
        raise ValueError(
            f"head: {path} has no tensor weight or head.weight; there are {names}; rename the last layer's"
        )
    try:
        classes = json.loads(file.metadata.get("classes", "null"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    bias = file.read(f"{prefix}bias").to(device) if f"{prefix}bias" in file.headers else None
    unit = file.metadata.get("normalize") == "true"
    try:
        head = LinearClassifier(file.read(f"{prefix}weight").to(device), bias, classes=classes, normalize=unit)
        head.check_size()
    except (TypeError, ValueError) as error:
        raise ValueError(f"head: {path}: {error}") from None
    about = {"file": path.name, "name": f"{prefix}weight", "sha256": sha256(path), "classes": head.n_classes}
    return GivenClassifier(head, classes, about, kind="head")
