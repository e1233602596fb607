"""Data sets of embeddings: class texts or a head for g, and image embeddings with labels for each domain.

They are stored in a safetensors file of ours, made up (:func:`synthetic`), or written by other programs
(:class:`ForeignFiles`): embeddings in any files that :mod:`clip_tca.data.shards` lists, with text embeddings, and
labels in a file of their own, in a column, or beside the embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier, told_apart
from clip_tca.core.checks import is_whole
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.files import write_tensors
from clip_tca.core.remote import Location, locate
from clip_tca.core.tensors import check_labels, check_rows, to_tensor
from clip_tca.data.arrays import SafetensorsFile
from clip_tca.data.formats import ARRAYS, FORMATS, TORCH, open_arrays
from clip_tca.data.prompts import read_classes
from clip_tca.data.shards import ShardedEmbeddings, block_rows, open_embeddings, reading

SUFFIXES = (*FORMATS, *TORCH)
DOMAIN = "test"
LABEL_COLUMNS = ("label", "labels", "class", "cls", "target")
CACHED_LABELS = "test_l.pt"

SCALE = 100.0  # logit scale if the file of texts has none: that of OpenAI's CLIP

ScaleSource = Literal["given", "file", "assumed", "model"]


SOURCE = "source"  # the name of source data in a file. They are not a domain to adapt to

EMBEDDING_ENDINGS = (".embeddings", ".features")
"""Suffixes of the embeddings of a domain; ``.features`` are those of a model with a head."""


@dataclass
class EmbeddingSet:
    """A data set of embeddings."""

    text: Tensor | None  # text embeddings (c, d) or (templates, c, d) of the classes; None if there is a head
    scale: float  # logit scale of the model
    domains: dict[str, tuple[Tensor, Tensor]]  # embeddings (n, d) and, for scoring only, labels (n,)
    classes: list[str] | None = None
    about: dict[str, Any] = field(default_factory=dict)  # model and prompts, if they are known; saved in the file
    head: LinearClassifier | None = None  # the model's own linear head, in place of texts
    bias: float = 0.0  # logit bias of the model, with texts
    source: tuple[Tensor, Tensor] | None = None  # source data, for the studies that compare with them

    def classifier(self, device: torch.device | str = "cpu") -> LinearClassifier:
        if self.head is not None:
            return LinearClassifier(self.head.weight.to(device), self.head.bias.to(device), classes=self.head.classes)
        if self.text is None:
            raise ValueError("text: None, and no head; one of them makes the classifier")
        names = None if self.classes is None else told_apart(self.classes)
        return ZeroShotClassifier(self.text.to(device), self.scale, bias=self.bias, classes=names)

    def save(self, path: str | Location, text: str = "text.single") -> None:
        """Write a file for :func:`load_embeddings`; ``text`` is the name of the text embeddings in it."""
        tensors = {} if self.text is None else {text: self.text}
        if self.head is not None:
            tensors = {"head.weight": self.head.weight, "head.bias": self.head.bias}
        if self.source is not None:
            tensors |= {f"{SOURCE}.features": self.source[0], f"{SOURCE}.labels": self.source[1]}
        for name, (z, y) in self.domains.items():
            tensors |= {f"{name}.embeddings": z, f"{name}.labels": y}
        metadata = {"scale": str(self.scale), "classes": json.dumps(self.classes), "about": json.dumps(self.about)}
        metadata |= {"bias": str(self.bias)} if self.bias else {}
        write_tensors(locate(path), {name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)


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
        text: Name of the text embeddings, such as ``text.single``; None is the only one in the file, or ``text.watt``.

    Raises:
        FileNotFoundError: If there is no such file.
        CorruptFileError: If it is truncated or damaged, or if one of the tensors is missing or does not fit the others.
    """
    path = locate(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a safetensors file of stored embeddings")
    if path.suffix.lower() in SUFFIXES and path.suffix.lower() != ".safetensors":
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
        raise CorruptFileError(
            f"{path}: not stored embeddings ({error}); it needs DOMAIN.embeddings, DOMAIN.labels, text.NAME and a "
            "scale, or head.weight"
        ) from None
    if text not in texts and not has_head:
        raise ValueError(f"{path}: no {text}, but {', '.join(texts)}; choose one of those by --prompts")
    return data


def _read(file: SafetensorsFile, text: str | None) -> EmbeddingSet:
    names = {name.rpartition(".")[0]: name for name in file.headers if name.endswith(EMBEDDING_ENDINGS)}
    domains = {}
    for name, tensor in names.items():
        if f"{name}.labels" not in file.headers:  # checked first: embeddings may be large
            raise KeyError(f"{name}.labels")
        domains[name] = file.read(tensor), file.read(f"{name}.labels").long()
    source = domains.pop(SOURCE, None) if names.get(SOURCE) == f"{SOURCE}.features" else None
    classes, about = json.loads(file.metadata.get("classes", "null")), file.metadata.get("about", "{}")
    classes = classes and [name for name in classes if name]  # a list read from a text file may end with an empty name
    data = EmbeddingSet(None, 1.0, domains, classes, source=source)
    data.about = json.loads(about) if about.startswith(("{", "[")) else {"description": about}  # a sentence will do
    if text is None:
        bias = file.read("head.bias") if "head.bias" in file.headers else None
        data.head = LinearClassifier(file.read("head.weight"), bias, classes=classes)
    else:
        data.text, data.scale = file.read(text), float(file.metadata["scale"])
        data.bias = float(file.metadata.get("bias", 0.0))
    return data


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


def synthetic(seed: int = 0, classes: int = 6, dim: int = 64, images: int = 240) -> EmbeddingSet:
    """A small synthetic set with a domain shift; ``images`` is the number for each class (the first of ``skewed``).

    Class means lie around unit text vectors, and embeddings around class means: this is ``clean``. In ``shifted``, each
    embedding is moved along a common direction and stretched in a few others, by different amounts (the paper assumes
    that the least shifted are the most certain). ``skewed`` is ``shifted`` with class counts that fall by a third from
    class to class.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    text = functional.normalize(noise(classes, dim) + noise(1, dim), dim=1)
    shift = functional.normalize(noise(1, classes) @ text + noise(1, dim), dim=1)
    stretch = functional.normalize(noise(4, classes) @ text + noise(4, dim), dim=1)
    even, falling = [images] * classes, [max(2, round(images / 1.5**i)) for i in range(classes)]
    domains = {}
    for name, counts, strength in [("clean", even, 0.0), ("shifted", even, 3.0), ("skewed", falling, 3.0)]:
        y = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
        y = y[torch.randperm(len(y), generator=generator)]
        severity = strength * torch.rand(len(y), 1, generator=generator)
        z = text[y] + 0.1 * noise(len(y), dim) + severity * (shift + 0.5 * noise(len(y), len(stretch)) @ stretch)
        domains[name] = functional.normalize(z, dim=1), y
    return EmbeddingSet(text, 30.0, domains)


@dataclass(frozen=True)
class ClassTexts:
    """Text embeddings ``(c, d)`` or ``(templates, c, d)``, the array's name, and scale and class names, if known."""

    rows: Tensor
    name: str
    scale: float | None = None
    classes: list[str] | None = None

    def scale_for(self, given: float | None) -> float:
        """The logit scale that was ``given``, else that of the file, else 100."""
        return given or (SCALE if self.scale is None else self.scale)

    def scale_from(self, given: float | None) -> ScaleSource:
        """Where :meth:`scale_for` has it from."""
        return "given" if given else "assumed" if self.scale is None else "file"


def read_class_texts(path: Location, name: str | None = None, otherwise: str = "") -> ClassTexts:
    """The text embeddings in a file of arrays or tensors; of several only ``name`` is read, None looks for usual names.

    Error messages end with ``otherwise``, what else may be given.
    """
    if not path.is_file():
        raise FileNotFoundError(f"text: {path} is not a file; give text embeddings{otherwise}")
    if path.suffix.lower() not in (*ARRAYS, *TORCH):
        allowed = ", ".join((*ARRAYS, *TORCH))
        raise ValueError(f"text: {path}; allowed are text embeddings ({allowed}){otherwise}")
    file = open_arrays(path)
    key = file.choose(name, texts=True)
    with reading(path):
        scale = float(file.metadata["scale"]) if "scale" in file.metadata else None
        classes = json.loads(file.metadata.get("classes", "null"))
    return ClassTexts(to_tensor(file.read(key), "text"), key or "text", scale, classes)


def read_labels(path: Location, classes: int) -> Tensor:
    """True classes, for scoring only: whole numbers below ``classes``, in ``.npy``, ``.pt`` or a text file's lines."""
    if not path.is_file():
        raise FileNotFoundError(f"labels: {path} is not a file")
    try:
        if path.suffix.lower() in (".npy", *TORCH):
            file = open_arrays(path)
            (name,) = file.headers
            labels = file.read(name)
        else:
            labels = torch.tensor([int(word) for word in path.read_text(encoding="utf-8").split()], dtype=torch.int64)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"labels: {path} is not a list of whole numbers ({error})") from None
    return check_labels(labels, labels.numel(), classes, torch.device("cpu"))


@dataclass(frozen=True)
class ForeignFiles:
    """Paths or addresses of embeddings, text embeddings and labels; None for a column takes the usual name."""

    embeddings: str | Location  # a file, or a folder of files or in one of the known layouts
    text: str | Location  # text embeddings (c, d) or (templates, c, d), or transposed, as TransCLIP has them
    labels: str | Location | None = None  # a file of true classes; None looks beside the embeddings
    scale: float | None = None  # logit scale; None is the one of the file of texts, else 100
    class_names: str | Location | None = None  # a file of class names, for the tables; None numbers the classes
    column: str | None = None  # array, tensor or column with the embeddings
    text_column: str | None = None  # array or tensor with the text embeddings
    label_column: str | None = None  # of the table of embeddings or of clip-retrieval's metadata

    def load(self) -> EmbeddingSet:
        source, labels_path = open_embeddings(self.embeddings, self.column, SUFFIXES), self._labels_path()
        column = None if labels_path else self._label_column(source.shards[0].columns)
        z, values = _rows(source, column)
        texts = read_class_texts(locate(self.text), self.text_column)
        scale = texts.scale_for(self.scale)
        classifier = ZeroShotClassifier(_upright(texts.rows, z.shape[1]), scale)
        check_rows(z, classifier.dim, str(self.embeddings))
        classes = texts.classes if self.class_names is None else list(read_classes(locate(self.class_names)).values())
        if classes is not None and len(classes) != classifier.n_classes:
            names = self.class_names or self.text
            raise ValueError(f"{names}: {len(classes)} class names, but {self.text} has {classifier.n_classes} classes")
        labels = read_labels(labels_path, classifier.n_classes) if labels_path else self._numbers(values, classes)
        labels = check_labels(labels, len(z), classifier.n_classes, z.device)
        return EmbeddingSet(classifier.text, scale, {DOMAIN: (z, labels)}, classes)

    def about(self, data: EmbeddingSet) -> dict[str, Any]:
        files = {"path": self.embeddings, "text": self.text, "labels": self.labels}
        named = {name: str(path) for name, path in files.items() if path is not None}
        return {"kind": "embeddings", **named, "scale": data.scale}

    def _labels_path(self) -> Location | None:
        if self.labels is not None:
            return locate(self.labels)
        beside = locate(self.embeddings) / CACHED_LABELS
        return beside if beside.is_file() else None

    def _label_column(self, columns: Sequence[str]) -> str:
        if not columns:
            raise ValueError(
                f"labels: {self.embeddings} has none, and accuracy needs them; give --labels FILE (.npy, .pt or text), "
                "or for a table --label-column NAME"
            )
        column = self.label_column or next((usual for usual in LABEL_COLUMNS if usual in columns), None)
        if column is None or column not in columns:
            raise ValueError(
                f"{self.embeddings}: no column {column or 'of labels'}; there are {', '.join(columns)}; name it with "
                "--label-column, or give --labels FILE"
            )
        return column

    def _numbers(self, values: list[Any], classes: Sequence[str] | None) -> Tensor:
        numbers = {word: number for number, word in enumerate(classes or ())}
        labels = [numbers.get(value, value) if isinstance(value, str) else value for value in values]
        if wrong := [label for label in labels if not is_whole(label, 0)]:
            raise ValueError(
                f"{self.embeddings}: label {wrong[0]!r}; a whole number or a class name is needed in every row; list "
                "the class names in order: --class-names FILE"
            )
        return torch.tensor(labels, dtype=torch.int64)


def _rows(source: ShardedEmbeddings, column: str | None) -> tuple[Tensor, list[Any]]:
    rows: list[Tensor] = []
    values: list[Any] = []
    for shard in source.shards:
        if column is not None and column not in shard.columns:
            raise ValueError(f"{shard.path}: no column {column}; there are {', '.join(shard.columns)}")
        for block in shard.blocks(block_rows(source.dim)):
            rows.append(to_tensor(block.z))
            values += [] if column is None or block.others is None else block.others.column(column).to_pylist()
    return torch.cat(rows), values


def _upright(text: Tensor, dim: int) -> Tensor:
    """Texts with the dimensions last: TransCLIP keeps them as ``(d, c)`` or ``(templates, d, c)``."""
    turned = text.ndim in (2, 3) and text.shape[-1] != dim and text.shape[-2] == dim
    return text.transpose(-1, -2).contiguous() if turned else text
