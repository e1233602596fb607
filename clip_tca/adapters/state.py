"""Saved adapters: one safetensors file with the classifier, what was learned and what was observed.

Tensors are named ``classifier.…``, ``learned.…`` and ``observed.…``; plain values, such as the options, are JSON in the
header. A checksum covers everything: a wrong number in such a file would be silent and harmful.

A folder for the Hugging Face hub holds that file, a ``config.json`` and a model card.
"""

from __future__ import annotations

import hashlib
import json
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.adapters.stream import Stream
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier, reader
from clip_tca.core.checks import counted, one_line, visible
from clip_tca.core.errors import CorruptFileError, OfflineError
from clip_tca.core.files import local_copy, scratch, write_tensors, write_text
from clip_tca.core.machine import choose_device
from clip_tca.core.network import cached_file, hub_address, hub_reachable
from clip_tca.core.remote import Location, is_url, locate
from clip_tca.core.version import __version__
from clip_tca.explanation import ORACLE

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter

S = TypeVar("S", bound="Saving")

FORMAT = 5
HOMES = {"LinearTCA": "linear", "MLPTCA": "mlp", "ConditionalTCA": "conditional"}  # modules of the saved classes
G_NAMES, PROMPT_NAMES = ("weight", "bias", "classes", "normalize"), ("text", "scale")
"""What is saved of a classifier, and of one that was made from prompts."""

STATE = "adapter.safetensors"
"""The state in a folder or on the hub."""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

MOST_CLASSES = 50  # whose names a model card lists


class Saving:
    """Saving and loading: one file, a folder for the Hugging Face hub, or a model on the hub."""

    def save(self: Any, path: str | Location) -> None:
        """Write options, classifier and everything learned to one safetensors file; a stream can continue from it."""
        stream = self._fitted()
        self._settle()
        g = None if self.classifier is None else self.own_classifier
        names = [*G_NAMES, *(PROMPT_NAMES if isinstance(g, ZeroShotClassifier) else ())]
        content = {} if g is None else {f"classifier.{name}": getattr(g, name) for name in names}
        content |= {f"learned.{name}": value for name, value in self.learned().items()}
        content |= _attributes(stream.observed, "observed")
        tensors = {
            name: value.detach().contiguous().clone() for name, value in content.items() if isinstance(value, Tensor)
        }
        record = {
            "format": FORMAT,
            "class": type(self).__name__,
            "options": {**self.options(), "normalize": self.normalize},
            "paired": None if self._head is None else [self.n_features_in_, self.g.n_classes],
            "seen": stream.seen,
            "solved_at": stream.solved_at,
            "values": {name: value for name, value in content.items() if name not in tensors},
        }
        text = json.dumps(record, default=lambda value: value.tolist())  # of NumPy or torch
        write_tensors(locate(path), tensors, {"clip_tca": text, "checksum": checksum(text, tensors)})

    def save_pretrained(
        self: Any, folder: str | Path, *, model: str | None = None, data: str | None = None, results: str | None = None
    ) -> None:
        """Write a folder for the Hugging Face hub: the state, ``config.json`` and a model card (``README.md``).

        Args:
            folder: It is made if it does not exist.
            model: The model that made the embeddings, for the card.
            data: The data that the adapter was fitted to, for the card.
            results: Figures for the card, in Markdown, such as ``clip_tca.render(record, "markdown")``.
        """
        folder = Path(folder)
        _write_folder(self, folder, folder.resolve().name, model, data, results)

    def push_to_hub(
        self: Any,
        hub_id: str,
        *,
        model: str | None = None,
        data: str | None = None,
        results: str | None = None,
        private: bool = False,
    ) -> str:
        """Upload the files of :meth:`save_pretrained` to the hub as ``OWNER/NAME``, and return their address.

        You have to be logged in (``hf auth login``). The state holds a sample of the embeddings; they become public
        unless the model is ``private``.
        """
        from huggingface_hub import HfApi

        self._fitted()
        if not HUB_ID.fullmatch(hub_id):
            raise ValueError(f"hub id: {hub_id!r}; write OWNER/NAME, such as me/pets-head")
        if not hub_reachable():
            raise OfflineError(f"{hub_address()} can't be reached; save_pretrained writes the same files to a folder")
        with scratch() as folder:
            _write_folder(self, folder, hub_id, model, data, results)
            try:
                api = HfApi()
                api.create_repo(hub_id, private=private, exist_ok=True)
                api.upload_folder(repo_id=hub_id, folder_path=folder, commit_message="An adapter of clip-tca")
            except OSError as error:
                raise ConnectionError(
                    f"{hub_id} could not be uploaded ({one_line(error)}); log in with a token that may write: "
                    "hf auth login"
                ) from None
        return f"{hub_address()}/{hub_id}"

    @classmethod
    def from_pretrained(
        cls: type[S], source: str | Location, device: str | torch.device | None = None, *, revision: str | None = None
    ) -> S:
        """Read a saved adapter of this class, as :func:`clip_tca.from_pretrained` reads one of any class."""
        adapter: Any = load(state_file(source, revision), device, cls)
        if not isinstance(adapter, cls):
            kind = type(adapter).__name__
            raise ValueError(f"{source}: holds a {kind}, not a {cls.__name__}; use clip_tca.from_pretrained")
        return adapter


def _write_folder(
    adapter: Any, folder: Path, title: str, model: str | None, data: str | None, results: str | None
) -> None:
    g, stream = adapter.g, adapter._fitted()
    folder.mkdir(parents=True, exist_ok=True)
    names = [visible(name) for name in g.class_names()]
    more = f" and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    options = {name: value for name, value in adapter.options().items() if isinstance(value, (str, int, float, bool))}
    card = (
        (Path(__file__).parent / "card.md")
        .read_text(encoding="utf-8")
        .format(
            title=title,
            kind=type(adapter).__name__,
            labels=ORACLE if adapter.uses_labels else "No labels were used.",
            names=g.classes is not None,
            dim=adapter.n_features_in_,
            logits="" if adapter._head is None else ", logits=scores",
            version=__version__,
            model=model or "not stated",
            data=data or "not stated",
            seen=counted(stream.seen, "embedding"),
            count=len(names),
            classes=", ".join(names[:MOST_CLASSES]) + more,
            options=", ".join(f"`{name}={value!r}`" for name, value in options.items()),
            results=results or "Its accuracy was not measured. This is what can be said without labels:",
            explanation=adapter.explain(),
        )
    )
    about: dict[str, Any] = {"library": "clip-tca", "version": __version__, "class": type(adapter).__name__}
    about |= {"model": model, "data": data, "dimensions": adapter.n_features_in_, "classes": names, "options": options}
    adapter.save(folder / STATE)
    write_text(folder / "config.json", json.dumps(about, indent=2) + "\n")
    write_text(folder / "README.md", card)


def from_pretrained(
    source: str | Location, device: str | torch.device | None = None, *, revision: str | None = None
) -> Adapter:
    """A saved adapter with its classifier; a stream can continue from it.

    Args:
        source: A file that ``save`` wrote, a folder that ``save_pretrained`` wrote, a model on the Hugging Face hub
            (``OWNER/NAME``), or a URL that fsspec takes.
        device: Where its tensors go; None is the CPU.
        revision: Commit, branch or tag on the hub.

    Raises:
        FileNotFoundError: If there is no such file, folder or model.
        OfflineError: If the hub can't be reached and the model is not in its cache.
        CorruptFileError: If it is not a saved adapter of this version, or damaged.
    """
    return load(state_file(source, revision), device)


def state_file(source: str | Location, revision: str | None = None) -> Location:
    """The file of a state: itself, in a folder, or loaded from the hub."""
    path = locate(source)
    if path.is_file() or not isinstance(path, Path):
        return path
    if path.is_dir():
        return path / STATE
    if is_url(str(source)) or not HUB_ID.fullmatch(str(source)):
        raise FileNotFoundError(f"{path}: no such file or folder; save an adapter there first")
    if not hub_reachable():
        try:
            return cached_file(str(source), STATE, revision=revision)
        except OfflineError as error:
            raise OfflineError(f"{source}: no such file or folder, and {error}") from None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(str(source), STATE, revision=revision))
    except OSError as error:  # of the hub's client: no such model, no such file in it, no right to read it
        raise FileNotFoundError(
            f"{source}: no such file or folder, and no adapter of that name on the hub ({one_line(error)})"
        ) from None


def load(path: str | Location, device: str | torch.device | None = None, kind: Any = None) -> Adapter:
    """The adapter in a file, with its classifier, on ``device`` (default: the CPU).

    ``kind`` is a class that it may be besides those of this package.

    Raises:
        FileNotFoundError: If there is no such file.
        CorruptFileError: If it is not a saved adapter of this version, or damaged.
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
        g: Any = None
        if "classifier.weight" in content:
            g = object.__new__(ZeroShotClassifier if "classifier.scale" in content else LinearClassifier)
            vars(g).update(_part(content, "classifier"))
            g.classes = None if g.classes is None else tuple(g.classes)
        name = record["class"]
        known = kind is not None and kind.__name__ == name
        saved = kind if known else getattr(import_module(f"clip_tca.adapters.{HOMES[name]}"), name)
        adapter: Adapter = saved(g, **record["options"])
        if record["paired"]:
            dim, classes = record["paired"]
            adapter._head = reader(dim, classes, None if g is None else g.classes, device)
        stream = Stream(adapter._start(), adapter.g.n_classes, device)
        stream.seen, stream.solved_at = record["seen"], record["solved_at"]
        for name, value in _part(content, "observed").items():
            _restore(stream.observed, name, value)
        vars(adapter).update(_part(content, "learned"), _stream=stream)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path}: not a saved clip-tca state, or damaged ({error}); save it again") from None
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
