"""Embeddings written by other programs, with text embeddings, and labels for scoring.

Labels are in a file of their own, in the folders that :mod:`clip_tca.datasets.embeddings` knows, or in a column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import is_whole
from clip_tca.core.remote import Location, locate
from clip_tca.core.tensors import check_labels, check_rows, to_tensor
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.embeddings import ShardedEmbeddings, open_embeddings
from clip_tca.datasets.formats import ARRAYS, FORMATS, TORCH, open_arrays
from clip_tca.datasets.prompts import read_classes
from clip_tca.datasets.shards import block_rows, reading

SUFFIXES = (*FORMATS, *TORCH)
DOMAIN = "test"
LABEL_COLUMNS = ("label", "labels", "class", "cls", "target")
CACHED_LABELS = "test_l.pt"

SCALE = 100.0
"""Logit scale if the file of texts has none: that of OpenAI's CLIP."""

ScaleSource = Literal["given", "file", "assumed", "model"]


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
    """Paths or addresses of embeddings, text embeddings and labels; None for a column takes the usual name.

    Attributes:
        embeddings: A file, or a folder of files or in one of the known layouts.
        text: Text embeddings ``(c, d)`` or ``(templates, c, d)``; transposed, as TransCLIP has them, if only that fits.
        labels: A file of true classes; None looks beside the embeddings.
        scale: Logit scale; None is the one of the file of texts, else 100.
        class_names: A file of class names, for the tables; None numbers the classes.
        column: Array, tensor or column with the embeddings.
        text_column: Array or tensor with the text embeddings.
        label_column: Column with the labels, of the table of embeddings or of clip-retrieval's metadata.
    """

    embeddings: str | Location
    text: str | Location
    labels: str | Location | None = None
    scale: float | None = None
    class_names: str | Location | None = None
    column: str | None = None
    text_column: str | None = None
    label_column: str | None = None

    def load(self) -> EmbeddingSet:
        """Read everything, and check that it fits together."""
        source, labels_path = open_embeddings(self.embeddings, self.column, SUFFIXES), self._labels_path()
        column = None if labels_path else self._label_column(source.shards[0].columns)
        z, values = _read(source, column)
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
        """Their origin, for the record."""
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


def _read(source: ShardedEmbeddings, column: str | None) -> tuple[Tensor, list[Any]]:
    """All rows, and the values of a column beside them."""
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
