"""Saved adapters: one safetensors file with the tensors, and options and counters as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.adapters.registry import adapter_classes
from clip_tca.classifier import LinearClassifier
from clip_tca.core.files import local_copy, write_tensors
from clip_tca.core.remote import Location

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter

log = logging.getLogger("clip_tca")

FORMAT = 1

TASK = "task"
"""Counter of a saved part of a fit: which of how many tasks."""


@dataclass(frozen=True)
class SavedState:
    """An adapter's options, counters and tensors.

    Attributes:
        kind: Class of the adapter.
        options: Its options by name.
        counters: Rows seen, rows of the last batch, dtype of the computation.
        shape: Dimensions and classes.
        classifier: Fingerprint of the classifier.
        tensors: Everything learned; ``solution.…`` is the map, the rest what was observed, by accumulator.
        classes: Names of the classes; None if they were not known.
    """

    kind: str
    options: dict[str, Any]
    counters: dict[str, Any]
    shape: tuple[int, int]
    classifier: str
    tensors: dict[str, Tensor]
    classes: tuple[str, ...] | None = None

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``name.``, by the rest of their names."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}

    def check(self, path: str | Location, kind: str, classifier: LinearClassifier) -> None:
        """Raise ValueError unless this is a ``kind`` for as many classes and dimensions as the classifier has."""
        if self.kind != kind:
            raise ValueError(f"{path}: holds a {self.kind}; use {self.kind}.load")
        if self.shape != (classifier.dim, classifier.n_classes):
            raise ValueError(
                f"{path}: made for {self.shape[1]} classes in {self.shape[0]} dimensions, but the classifier has "
                f"{classifier.n_classes} in {classifier.dim}; use the classifier it was fitted with"
            )
        if self.classifier != classifier.fingerprint():
            log.warning("%s was fitted with other class texts, another scale or another head than those given", path)
        if self.classes and classifier.classes and self.classes != classifier.classes:
            log.warning("%s names its classes otherwise (%s, …) than the classifier does", path, self.classes[0])


def save_state(path: Location, state: SavedState) -> None:
    """Write atomically: the file appears whole under its final name, or not at all."""
    record = {
        "format": FORMAT,
        "class": state.kind,
        "options": state.options,
        "counters": state.counters,
        "shape": state.shape,
        "classifier": state.classifier,
        "classes": state.classes,
    }
    whole = {key: tensor.detach().contiguous().clone() for key, tensor in state.tensors.items()}
    text = json.dumps(record, default=int)
    write_tensors(path, whole, {"clip_tca": text, "checksum": checksum(text, whole)})


def checksum(record: str, tensors: dict[str, Tensor]) -> str:
    """Of everything in the file: a wrong number in it would be as silent as it is harmful."""
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # one without numbers may have strides that can't be viewed as bytes
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_state(path: Location, device: torch.device | str = "cpu") -> SavedState:
    """A saved adapter of any class; no classifier is needed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved adapter, or one of another format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; save an adapter there first")
    try:
        with local_copy(path) as local, safe_open(str(local), "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            # copied, because where numbers lie in the file would decide how sums of them are rounded
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata["checksum"] != checksum(metadata["clip_tca"], tensors):
            raise ValueError("its checksum is wrong")
        record: dict[str, Any] = json.loads(metadata["clip_tca"])
        version = record["format"]
        dim, classes = record["shape"]
        counters, options = dict(record["counters"]), dict(record["options"])
        names = _names(record.get("classes"), classes)  # version 0.1 had none
        saved = SavedState(record["class"], options, counters, (dim, classes), record["classifier"], tensors, names)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a saved clip-tca state, or damaged ({error}); save it again") from None
    if version != FORMAT:
        raise ValueError(f"{path}: format {version}, this version of clip-tca reads {FORMAT}; save it again")
    return saved


def _names(names: Any, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{count} class names are needed")
    return tuple(names)


def read_fit(path: Location) -> SavedState:
    """A saved adapter that has learned; a part of a fit is refused."""
    saved = read_state(path)
    if TASK in saved.counters:
        raise ValueError(f"{path}: what one task has seen, not a whole fit; merge all of them first: clip-tca merge")
    return saved


def load_adapter(path: Location, classifier: LinearClassifier, device: torch.device) -> Adapter:
    """A saved adapter, of the class that the file names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved adapter of this package, or belongs to another classifier.
    """
    classes = adapter_classes()
    kind = read_fit(path).kind
    if kind not in classes:
        raise ValueError(f"{path}: holds a {kind!r}; allowed are {', '.join(classes)}")
    return classes[kind].load(path, classifier, str(device))
