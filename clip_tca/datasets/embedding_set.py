"""A data set of embeddings: class texts or a head for g, and image embeddings with labels for each domain."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier, told_apart
from clip_tca.core.files import write_tensors
from clip_tca.core.remote import Location, locate
from clip_tca.core.tensors import check_labels, check_rows, to_tensor
from clip_tca.datasets.arrays import SafetensorsFile
from clip_tca.datasets.formats import FORMATS, TORCH

OTHERS = {*FORMATS, *TORCH} - {".safetensors"}
"""Suffixes of files with embeddings alone."""

SOURCE = "source"
"""The name of source data in a file. They are not a domain to adapt to."""

EMBEDDING_ENDINGS = (".embeddings", ".features")
"""Suffixes of the embeddings of a domain; ``.features`` are those of a model with a head."""


@dataclass
class EmbeddingSet:
    """A data set of embeddings.

    Attributes:
        text: ``(c, d)`` or ``(templates, c, d)`` text embeddings of the classes; None if there is a head.
        scale: Logit scale of the model.
        domains: For each domain the embeddings ``(n, d)`` and, for scoring only, the labels ``(n,)``.
        classes: Class names, if they are known.
        about: Model and prompts of the embeddings, if they are known; saved in the file.
        head: The model's own linear head; None if texts build the classifier.
        bias: Logit bias of the model, with texts.
        source: Embeddings ``(m, d)`` and labels ``(m,)`` of source data, for the studies that compare with them.
    """

    text: Tensor | None
    scale: float
    domains: dict[str, tuple[Tensor, Tensor]]
    classes: list[str] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    head: LinearClassifier | None = None
    bias: float = 0.0
    source: tuple[Tensor, Tensor] | None = None

    def classifier(self, device: torch.device | str = "cpu") -> LinearClassifier:
        """Build the classifier g on a device."""
        if self.head is not None:
            weight, bias = self.head.weight.to(device), self.head.bias.to(device)
            return LinearClassifier(weight, bias, classes=self.head.classes)
        if self.text is None:
            raise ValueError("text: None, and no head; one of them makes the classifier")
        names = None if self.classes is None else told_apart(self.classes)
        return ZeroShotClassifier(self.text.to(device), self.scale, bias=self.bias, classes=names)

    def save(self, path: str | Location, text: str = "text.single") -> None:
        """Write a file for :func:`load_embeddings`; ``text`` is the name of the text embeddings in it."""
        tensors = {} if self.text is None else {text: self.text.contiguous()}
        if self.head is not None:
            tensors = {"head.weight": self.head.weight.contiguous(), "head.bias": self.head.bias.contiguous()}
        if self.source is not None:
            features, labels = self.source
            tensors |= {f"{SOURCE}.features": features.contiguous(), f"{SOURCE}.labels": labels.contiguous()}
        for name, (z, y) in self.domains.items():
            tensors |= {f"{name}.embeddings": z.contiguous(), f"{name}.labels": y.contiguous()}
        metadata = {"scale": str(self.scale), "classes": json.dumps(self.classes), "about": json.dumps(self.about)}
        metadata |= {"bias": str(self.bias)} if self.bias else {}
        write_tensors(locate(path), tensors, metadata)


def load_embeddings(path: str | Location, text: str | None = None) -> EmbeddingSet:
    """Read a data set of embeddings from a safetensors file, as ``clip-tca embed --output`` writes it.

    The file contains

    * ``DOMAIN.embeddings`` ``(n, d)`` and ``DOMAIN.labels`` ``(n,)`` for each domain (``DOMAIN.features`` also works);
    * ``text.NAME``, the text embeddings of the classes, for each set of prompts;
    * the logit ``scale`` of the model in the metadata, and optionally ``bias``, ``classes`` and ``about``;
    * instead of texts and scale, the head of the model: ``head.weight`` ``(c, d)`` and ``head.bias`` ``(c,)``;
    * optionally source data, which are not a domain: ``source.features`` and ``source.labels``.

    Args:
        path: The file, or a URL that fsspec understands.
        text: Name of the text embeddings to use, such as ``text.single``. The default is the only one in the file, or
            ``text.watt`` if there are several.

    Returns:
        An object with ``domains`` (a dictionary of embeddings and labels), ``text``, ``scale`` and ``classes``. Its
        method ``classifier()`` builds the zero-shot classifier.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is truncated or damaged, or if one of the tensors is missing or does not fit the others.
    """
    path = locate(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a safetensors file of stored embeddings")
    if path.suffix.lower() in OTHERS:
        raise ValueError(
            f"{path}: not a .safetensors file with embeddings, labels and texts; if it holds embeddings alone, use "
            f"them as they are: LinearTCA(g).fit(z), or clip-tca eval --dataset {path} --text FILE --labels FILE"
        )
    file = SafetensorsFile(path)
    texts = [name for name in file.headers if name.startswith("text.")]
    text = text or (texts[0] if len(texts) == 1 else "text.watt")
    has_head = "head.weight" in file.headers
    try:
        data = _read(file, None if has_head else text if text in texts else texts[0])
        _check(data)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: not stored embeddings ({error}); it needs DOMAIN.embeddings, DOMAIN.labels, text.NAME and a "
            "scale, or head.weight"
        ) from None
    if text not in texts and not has_head:
        raise ValueError(f"{path}: no {text}, but {', '.join(texts)}; choose one of those by --prompts")
    return data


def _read(file: SafetensorsFile, text: str | None) -> EmbeddingSet:
    found = {name.rpartition(".")[0]: name for name in file.headers if name.endswith(EMBEDDING_ENDINGS)}
    for tensor in (f"{name}.labels" for name in found):
        if tensor not in file.headers:
            raise KeyError(tensor)
    domains = {name: (file.read(tensor), file.read(f"{name}.labels").long()) for name, tensor in found.items()}
    source = domains.pop(SOURCE, None) if found.get(SOURCE) == f"{SOURCE}.features" else None
    classes, said = json.loads(file.metadata.get("classes", "null")), file.metadata.get("about", "{}")
    about = json.loads(said) if said.startswith(("{", "[")) else {"description": said}  # a sentence will do
    classes = classes and [name for name in classes if name]  # a list read from a text file may end with an empty name
    if text is None:
        bias = file.read("head.bias") if "head.bias" in file.headers else None
        head = LinearClassifier(file.read("head.weight"), bias, classes=classes)
        return EmbeddingSet(None, 1.0, domains, classes, about, head, source=source)
    scale, offset = float(file.metadata["scale"]), float(file.metadata.get("bias", 0.0))
    return EmbeddingSet(file.read(text), scale, domains, classes, about, bias=offset, source=source)


def _check(data: EmbeddingSet) -> None:
    """Raise ValueError or TypeError if texts, embeddings, labels and names do not match."""
    classifier = data.classifier()
    if not data.domains:
        raise ValueError("no domain in it")
    for name, (z, y) in (data.domains | ({} if data.source is None else {SOURCE: data.source})).items():
        check_rows(to_tensor(z, name), classifier.dim, name)
        check_labels(y, len(z), classifier.n_classes, y.device)
    if any(not isinstance(data.about.get(key) or {}, dict) for key in ("model", "prompts")):
        raise ValueError(f"about: {data.about!r}; model and prompts are tables")
