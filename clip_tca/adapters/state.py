"""Saved adapters: one safetensors file with the tensors, and options and counters as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.adapters.registry import adapter_classes
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.files import write_tensors

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter

log = logging.getLogger("clip_tca")

FORMAT = 1


def save_state(path: Path, adapter: Adapter, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
    """Write atomically: the file appears whole under its final name, or not at all."""
    record = {
        "format": FORMAT,
        "class": type(adapter).__name__,
        "options": {name: getattr(adapter, name) for name in adapter.options},
        "counters": counters,
        "shape": [adapter.classifier.dim, adapter.classifier.n_classes],
        "classifier": adapter.classifier.fingerprint(),
    }
    whole = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    text = json.dumps(record, default=int)
    write_tensors(path, whole, {"clip_tca": text, "checksum": checksum(text, whole)})


def checksum(record: str, tensors: dict[str, Tensor]) -> str:
    """Of everything in the file: a wrong number in it would be as silent as it is harmful."""
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_state(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a saved adapter of any class; no classifier is needed.

    The header holds ``class``, ``options``, ``counters``, ``shape`` [dimensions, classes] and the ``classifier``'s
    fingerprint.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved adapter, or one of another format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; save an adapter there first")
    try:
        with safe_open(str(path), "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata["checksum"] != checksum(metadata["clip_tca"], tensors):
            raise ValueError("its checksum is wrong")
        record: dict[str, Any] = json.loads(metadata["clip_tca"])
        for key in ("class", "options", "counters", "shape", "classifier"):
            record[key]
        version = record["format"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a saved clip-tca state, or damaged ({error}); save it again") from None
    if version != FORMAT:
        raise ValueError(f"{path}: format {version}, this version of clip-tca reads {FORMAT}; save it again")
    return record, tensors


def load_state(
    path: Path, expected: str, classifier: ZeroShotClassifier, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Options, counters and tensors of a saved adapter.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved ``expected``, or belongs to another number of classes or dimensions.
    """
    record, tensors = read_state(path, device)
    kind, shape = record["class"], tuple(record["shape"])
    if kind != expected:
        raise ValueError(f"{path}: holds a {kind}; use {kind}.load")
    if shape != (classifier.dim, classifier.n_classes):
        raise ValueError(
            f"{path}: made for {shape[1]} classes in {shape[0]} dimensions, but the classifier has "
            f"{classifier.n_classes} in {classifier.dim}; use the classifier it was fitted with"
        )
    if record["classifier"] != classifier.fingerprint():
        log.warning("%s was fitted with other class texts or another scale than the classifier given", path)
    return record["options"], record["counters"], tensors


def load_adapter(path: Path, classifier: ZeroShotClassifier, device: torch.device) -> Adapter:
    """A saved adapter, of the class that the file names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved adapter of this package, or belongs to another classifier.
    """
    classes = adapter_classes()
    name = str(read_state(path)[0]["class"])
    if name not in classes:
        raise ValueError(f"{path}: holds a {name!r}; allowed are {', '.join(classes)}")
    return classes[name].load(path, classifier, str(device))
