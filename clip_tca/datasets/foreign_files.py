"""Embeddings written by other programs, with text embeddings, and labels for scoring.

A file, a folder of shards, or one of two known layouts: the folder ``cache`` of TransCLIP, StatA and OGA
(``test_f.pt``, ``test_l.pt``), and that of clip-retrieval (``img_emb/img_emb_N.npy``, ``metadata/metadata_N.parquet``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import is_whole
from clip_tca.core.files import natural_order
from clip_tca.core.remote import Location
from clip_tca.core.tensors import check_labels, check_rows, to_tensor
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.formats.base import ROWS, reading
from clip_tca.datasets.formats.registry import ARRAYS, FORMATS, TORCH, open_arrays, open_shard
from clip_tca.datasets.prompts import read_classes

SUFFIXES = (*FORMATS, *TORCH)
DOMAIN = "test"
LABEL_COLUMNS = ("label", "labels", "class", "cls", "target")
CACHED, CACHED_LABELS = "test_f.pt", "test_l.pt"

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
    """Where embeddings, text embeddings and labels are; None for a column takes the usual name.

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

    embeddings: Path
    text: Path
    labels: Path | None = None
    scale: float | None = None
    class_names: Path | None = None
    column: str | None = None
    text_column: str | None = None
    label_column: str | None = None

    def load(self) -> EmbeddingSet:
        """Read everything, and check that it fits together."""
        z = self._rows()
        texts = read_class_texts(self.text, self.text_column)
        scale = texts.scale_for(self.scale)
        classifier = ZeroShotClassifier(_upright(texts.rows, z.shape[1]), scale)
        check_rows(z, classifier.dim, str(self.embeddings))
        classes = texts.classes if self.class_names is None else list(read_classes(self.class_names).values())
        if classes is not None and len(classes) != classifier.n_classes:
            where = self.class_names or self.text
            raise ValueError(f"{where}: {len(classes)} class names, but {self.text} has {classifier.n_classes} classes")
        labels = check_labels(self._labels(classes, classifier.n_classes), len(z), classifier.n_classes, z.device)
        return EmbeddingSet(classifier.text, scale, {DOMAIN: (z, labels)}, classes)

    def about(self, data: EmbeddingSet) -> dict[str, Any]:
        """Their origin, for the record."""
        files = {"path": self.embeddings, "text": self.text, "labels": self.labels}
        named = {name: str(path) for name, path in files.items() if path is not None}
        return {"kind": "embeddings", **named, "scale": data.scale}

    def _rows(self) -> Tensor:
        """The embeddings of all files, in the order of the numbers in their names."""
        parts = [_read_rows(path, self.column) for path in self._shards()]
        widths = {part.shape[-1] for part in parts}
        if any(part.ndim != 2 for part in parts) or len(widths) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts[:5])
            raise ValueError(f"{self.embeddings}: shapes {shapes}; matrices (rows, dimensions) of one width are needed")
        return torch.cat(parts)

    def _shards(self) -> list[Path]:
        place = self.embeddings
        if not place.exists():
            raise FileNotFoundError(f"{place}: no such file or folder; give embeddings ({', '.join(SUFFIXES)})")
        if place.is_file():
            return [place]
        if (place / CACHED).is_file():
            return [place / CACHED]
        folder = place / "img_emb" if (place / "img_emb").is_dir() else place
        found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
        if len(suffixes := sorted({path.suffix.lower() for path in found})) != 1:
            reason = f"{' and '.join(suffixes)} files; all must have one format" if suffixes else "no embeddings inside"
            raise ValueError(f"{folder}: {reason}: {', '.join(SUFFIXES)}, or {CACHED} as TransCLIP writes it")
        return natural_order(found)

    def _labels(self, classes: Sequence[str] | None, count: int) -> Tensor:
        beside = self.embeddings / CACHED_LABELS
        if self.labels is not None or beside.is_file():
            return read_labels(self.labels or beside, count)
        metadata = self.embeddings / "metadata"
        tables = natural_order(metadata.glob("*.parquet")) if metadata.is_dir() else self._shards()
        if not tables or any(path.suffix.lower() in (*ARRAYS, *TORCH, ".tar") for path in tables):
            raise ValueError(
                f"labels: {self.embeddings} has none, and accuracy needs them; give --labels FILE (.npy, .pt or text), "
                "or for a table --label-column NAME"
            )
        values = [value for path in tables for value in _column(path, self.label_column)]
        numbers = {word: number for number, word in enumerate(classes or ())}
        labels = [numbers.get(value, value) if isinstance(value, str) else value for value in values]
        if wrong := [label for label in labels if not is_whole(label, 0)]:
            raise ValueError(
                f"{self.embeddings}: label {wrong[0]!r}; a whole number or a class name is needed in every row; list "
                "the class names in order: --class-names FILE"
            )
        return torch.tensor(labels, dtype=torch.int64)


def _read_rows(path: Path, column: str | None) -> Tensor:
    if path.suffix.lower() in TORCH:
        file = open_arrays(path)
        return to_tensor(file.read(file.choose(column)), str(path))
    blocks = [block.z for block in open_shard(path, column).blocks()]
    if not blocks:
        raise ValueError(f"{path}: no rows; at least one embedding is needed")
    return to_tensor(np.concatenate(blocks), str(path))


def _upright(text: Tensor, dim: int) -> Tensor:
    """Texts with the dimensions last: TransCLIP keeps them as ``(d, c)`` or ``(templates, d, c)``."""
    turned = text.ndim in (2, 3) and text.shape[-1] != dim and text.shape[-2] == dim
    return text.transpose(-1, -2).contiguous() if turned else text


def _column(path: Path, name: str | None) -> list[Any]:
    """The labels in a column of a table; None looks for a usual name."""
    from clip_tca.datasets.formats.tables import open_table

    table = open_table(path)
    names = table.schema.names
    column = name or next((usual for usual in LABEL_COLUMNS if usual in names), None)
    if column not in names:
        raise ValueError(
            f"{path}: no column {name or 'of labels'}; there are {', '.join(names)}; name it with --label-column, or "
            "give --labels FILE"
        )
    return [value for part in table.tables(ROWS) for value in part.column(column).to_pylist()]
