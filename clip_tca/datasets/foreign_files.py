"""Embeddings that other programs wrote, with the text embeddings and the labels that score them.

A file or a folder of shards, and two layouts that are known: the folder ``cache`` of TransCLIP, StatA and OGA
(``test_f.pt``, ``test_l.pt``), and that of clip-retrieval (``img_emb/img_emb_N.npy``, ``metadata/metadata_N.parquet``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import one_line
from clip_tca.core.files import natural_order
from clip_tca.core.tensors import check_labels, check_rows, to_tensor
from clip_tca.datasets import torch_file
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.formats.registry import FORMATS, TABLES, open_shard
from clip_tca.datasets.label_file import read_labels
from clip_tca.datasets.prompts import read_classes
from clip_tca.datasets.text_file import read_class_texts

SUFFIXES = (*FORMATS, *torch_file.SUFFIXES)
DOMAIN = "test"
LABEL_COLUMNS = ("label", "labels", "class", "cls", "target")
CACHED, CACHED_LABELS = "test_f.pt", "test_l.pt"


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
        """What the record says of their origin."""
        files = {"path": str(self.embeddings), "text": str(self.text)}
        return {
            "kind": "embeddings",
            **files,
            **({"labels": str(self.labels)} if self.labels else {}),
            "scale": data.scale,
        }

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
        if self.labels is not None:
            return read_labels(self.labels, count)
        if (self.embeddings / CACHED_LABELS).is_file():
            return read_labels(self.embeddings / CACHED_LABELS, count)
        metadata = self.embeddings / "metadata"
        tables = natural_order(list(metadata.glob("*.parquet"))) if metadata.is_dir() else self._shards()
        if not tables or any(path.suffix.lower() not in TABLES for path in tables):
            raise ValueError(
                f"labels: {self.embeddings} has none, and accuracy needs them; give --labels FILE (.npy, .pt or text), "
                "or for a table --label-column NAME"
            )
        return _column(tables, self.label_column, classes)


def _read_rows(path: Path, column: str | None) -> Tensor:
    if path.suffix.lower() in torch_file.SUFFIXES:
        return to_tensor(torch_file.read_tensor(path, column), str(path))
    shard = open_shard(path, column)
    blocks = [block.z for block in shard.blocks()]
    if not blocks:
        raise ValueError(f"{path}: no rows; at least one embedding is needed")
    return to_tensor(np.concatenate(blocks), str(path))


def _upright(text: Tensor, dim: int) -> Tensor:
    """Texts with the dimensions last: TransCLIP keeps them as ``(d, c)`` or ``(templates, d, c)``."""
    turned = text.ndim in (2, 3) and text.shape[-1] != dim and text.shape[-2] == dim
    return text.transpose(-1, -2).contiguous() if turned else text


def _column(tables: list[Path], name: str | None, classes: Sequence[str] | None) -> Tensor:
    """The labels in a column of tables: whole numbers, or class names where the classes are known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values: list[Any] = []
    for path in tables:
        read = pq.read_table if path.suffix.lower() == ".parquet" else _arrow_table
        try:
            table = read(path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path}: can't be read ({one_line(error)}); copy or download it again") from None
        column = name or next((usual for usual in LABEL_COLUMNS if usual in table.column_names), None)
        if column not in table.column_names:
            raise ValueError(
                f"{path}: no column {name or 'of labels'}; there are {', '.join(table.column_names)}; name it with "
                "--label-column, or give --labels FILE"
            )
        values += table.column(column).to_pylist()
    if values and all(isinstance(value, str) for value in values):
        numbers = {word: number for number, word in enumerate(classes or ())}
        unknown = next((value for value in values if value not in numbers), None)
        if unknown is not None:
            hint = "is not a class name" if classes else "is a word, and the class names are not known"
            raise ValueError(f"{tables[0].parent}: label {unknown!r} {hint}; list them in order: --class-names FILE")
        values = [numbers[value] for value in values]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise ValueError(f"{tables[0].parent}: labels are needed in every row, as whole numbers or class names")
    return torch.tensor(values, dtype=torch.int64)


def _arrow_table(path: Path) -> Any:
    from pyarrow import feather

    return feather.read_table(path)
