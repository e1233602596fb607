"""Saved adapters: one safetensors file with the classifier, what was learned and what was observed.

Tensors are named ``classifier.…``, ``learned.…`` and ``observed.…``; plain values, such as the options, are JSON in the
header. A checksum covers everything: a wrong number in such a file would be silent and harmful.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.device import choose_device
from clip_tca.core.files import local_copy, write_tensors
from clip_tca.core.remote import Location, locate

FORMAT = 3
G_NAMES, PROMPT_NAMES = ("weight", "bias", "classes", "normalize"), ("text", "scale")
"""What is saved of a classifier, and of one that was made from prompts."""


def save_adapter(adapter: Adapter, path: str | Location) -> None:
    """Write atomically: the file appears whole under its final name, or not at all."""
    g = adapter.classifier
    names = [*G_NAMES, *(PROMPT_NAMES if isinstance(g, ZeroShotClassifier) else ())]
    content = {f"classifier.{name}": getattr(g, name) for name in names}
    content |= {f"learned.{name}": getattr(adapter, f"{name}_") for name in adapter._names}
    content |= _attributes(adapter._observed, "observed")
    tensors = {
        name: value.detach().contiguous().clone() for name, value in content.items() if isinstance(value, Tensor)
    }
    record = {
        "format": FORMAT,
        "class": type(adapter).__name__,
        "options": {**adapter.options(), "normalize": adapter.normalize},
        "seen": adapter.n_seen_,
        "solved_at": adapter._solved_at,
        "values": {name: value for name, value in content.items() if name not in tensors},
    }
    text = json.dumps(record, default=lambda value: value.tolist())  # of NumPy or torch
    write_tensors(locate(path), tensors, {"clip_tca": text, "checksum": checksum(text, tensors)})


def load(path: str | Location, device: str | torch.device | None = None, kind: type[Adapter] | None = None) -> Adapter:
    """A saved adapter with its classifier, on ``device`` (default: the CPU); a stream can go on from it.

    ``kind`` is a class that it may be besides those of this package.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a saved adapter of this version, or damaged.
    """
    path = locate(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; save an adapter there first")
    device = choose_device(str(device or "cpu"))
    try:
        with local_copy(path) as local, safe_open(str(local), "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        text = metadata["clip_tca"]
        record: dict[str, Any] = json.loads(text)
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}, this version of clip-tca reads {FORMAT}")
        if metadata["checksum"] != checksum(text, tensors):
            raise ValueError("its checksum is wrong")
        content = {**record["values"], **tensors}
        g = object.__new__(ZeroShotClassifier if "classifier.scale" in content else LinearClassifier)
        vars(g).update(_part(content, "classifier"))
        g.classes = None if g.classes is None else tuple(g.classes)
        kinds = {known.kind.__name__: known.kind for known in ADAPTERS.values()}
        kinds |= {} if kind is None else {kind.__name__: kind}
        adapter = kinds[record["class"]](g, **record["options"])
        adapter._begin(adapter._start(), device, record["seen"])
        for name, value in _part(content, "observed").items():
            _restore(adapter._observed, name, value)
        adapter._learn(_part(content, "learned"))
        adapter._solved_at = record["solved_at"]
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a saved clip-tca state, or damaged ({error}); save it again") from None
    return adapter


def checksum(record: str, tensors: dict[str, Tensor]) -> str:
    """Of everything in the file."""
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # one without numbers may have strides that can't be viewed as bytes
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _attributes(kept: Any, name: str) -> dict[str, Any]:
    """The attributes of an object and of those in it by their full names; the parts of a sample become one tensor."""
    found: dict[str, Any] = {}
    for key, value in vars(kept).items():
        if hasattr(value, "__dict__") and not isinstance(value, Tensor):
            found |= _attributes(value, f"{name}.{key}")
        elif isinstance(value, list) and value:
            found[f"{name}.{key}"] = torch.cat(value)
        else:
            found[f"{name}.{key}"] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    return found


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    """What begins with ``name``, by the rest of its name."""
    return {key.removeprefix(f"{name}."): value for key, value in content.items() if key.startswith(f"{name}.")}


def _restore(kept: Any, name: str, value: Any) -> None:
    """Set an attribute that :func:`_attributes` named, in an object that was made with the same options."""
    *path, last = name.split(".")
    for key in path:
        kept = getattr(kept, key)
    before = getattr(kept, last, None)
    if isinstance(before, np.ndarray):
        value = value.cpu().numpy()
    setattr(kept, last, [value] if isinstance(before, list) and isinstance(value, Tensor) else value)
