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
from clip_tca.adapters.registry import adapter_classes
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.device import choose_device
from clip_tca.core.files import local_copy, write_tensors
from clip_tca.core.remote import Location, locate

FORMAT = 2
G_NAMES, PROMPT_NAMES = ("weight", "bias", "classes", "normalize"), ("text", "scale")
"""What is saved of a classifier, and of one that was made from prompts."""


def save_adapter(adapter: Adapter, path: str | Location) -> None:
    """Write atomically: the file appears whole under its final name, or not at all."""
    g = adapter.classifier
    learned = {name: getattr(adapter, f"{name}_") for name in adapter._names}
    names = [*G_NAMES, *(PROMPT_NAMES if isinstance(g, ZeroShotClassifier) else ())]
    parts = {
        "classifier": {name: getattr(g, name) for name in names},
        "learned": learned,
        "observed": adapter._observed,
    }
    tensors: dict[str, Tensor] = {}
    values = {name: _split(part, name, tensors) for name, part in parts.items()}
    given = {**adapter.options(), "normalize": adapter.normalize}
    options = {name: _plain(value) for name, value in given.items()}
    record = {"format": FORMAT, "class": type(adapter).__name__, "options": options, "seen": adapter.n_seen_}
    record |= {"solved_at": adapter._solved_at, "values": values}
    text = json.dumps(record)
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
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
        prompts = "scale" in record["values"]["classifier"]
        g = object.__new__(ZeroShotClassifier if prompts else LinearClassifier)
        vars(g).update(_joined("classifier", record["values"], tensors))
        g.classes = None if g.classes is None else tuple(g.classes)
        kinds = {**adapter_classes(), **({} if kind is None else {kind.__name__: kind})}
        adapter = kinds[record["class"]](g, **record["options"])
        adapter._begin(adapter._start(), device, record["seen"])
        _restore(adapter._observed, _joined("observed", record["values"], tensors))
        adapter._learn(_joined("learned", record["values"], tensors))
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


def _split(part: Any, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Put the tensors in an object, or in a dictionary, into ``tensors``; the plain values are returned."""
    values = {}
    for key, value in (part if isinstance(part, dict) else vars(part)).items():
        full = f"{name}.{key}"
        if isinstance(value, list) and value:  # the parts of a sample
            tensors[full] = torch.cat(value)
        elif isinstance(value, Tensor):
            tensors[full] = value
        elif isinstance(value, np.ndarray):
            tensors[full] = torch.from_numpy(value)
        elif hasattr(value, "__dict__"):
            values[key] = _split(value, full, tensors)
        else:
            values[key] = _plain(value)
    return values


def _joined(name: str, values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What :func:`_split` took apart, as nested dictionaries."""
    joined: dict[str, Any] = dict(values[name])
    for full, tensor in tensors.items():
        first, *path, last = full.split(".")
        if first == name:
            place = joined
            for key in path:
                place = place[key]
            place[last] = tensor
    return joined


def _restore(empty: Any, values: dict[str, Any]) -> None:
    """Put values into an object that was made with the same options."""
    for key, value in values.items():
        if isinstance(value, dict):
            _restore(getattr(empty, key), value)
        else:
            before = getattr(empty, key, None)
            if isinstance(before, np.ndarray):
                value = value.cpu().numpy()
            setattr(empty, key, [value] if isinstance(before, list) and isinstance(value, Tensor) else value)


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
