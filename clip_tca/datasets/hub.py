"""Images through the ``datasets`` library: from the hub, a saved data set, Parquet files or webdataset shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_tca.datasets.hub_table import load_table
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import Picture, mark
from clip_tca.datasets.registry import BENCHMARKS, Benchmark

if TYPE_CHECKING:
    from datasets import Dataset

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp", "jpeg")
LABEL_COLUMNS = ("label", "labels", "class", "cls")
DOMAIN_COLUMNS = ("domain", "style", "environment")
CORRUPTION_COLUMNS = ("corruption_name", "corruption_level")
"""Together the domain of a benchmark of corruptions."""


@dataclass(frozen=True)
class Rows:
    """Images as rows of a data set, not yet decoded."""

    table: Dataset
    column: str
    indices: tuple[int, ...]

    def __call__(self, index: int) -> Picture:
        """Bytes or path of image ``index``."""
        return _content(self.table[self.indices[index]][self.column])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Columns:
    """Names of the columns; None takes the first usual name."""

    image: str | None = None
    label: str | None = None
    domain: str | None = None


def load_hub(
    hub_id: str, benchmark: Benchmark | None, revision: str | None = None, columns: Columns | None = None
) -> ImageSet:
    """A data set by its id on the hub, or a local copy: a folder of ``save_to_disk``, Parquet files or tar shards.

    The ``benchmark`` has the expected domains, classes and counts; None for any other data set.
    """
    published = benchmark
    if benchmark is not None and Path(hub_id).name == Path(benchmark.hub_id).name:
        benchmark = benchmark.on_hub()
    table, commit = load_table(hub_id, revision, benchmark.split if benchmark else None)
    from datasets import ClassLabel, Image

    columns = columns or Columns()
    image = _column(table, columns.image, IMAGE_COLUMNS, "image")
    label = _column(table, columns.label, LABEL_COLUMNS, "label")
    domain = _column(table, columns.domain, DOMAIN_COLUMNS, "domain", optional=True)
    ignored: list[str] = []
    by_domain = _domains(table, domain, benchmark, hub_id, ignored)
    used = sorted(row for rows in by_domain.values() for row in rows)
    if 0 < len(used) < len(table):  # of other domains nothing is read
        table, places = table.select(used), {row: place for place, row in enumerate(used)}
        by_domain = {name: [places[row] for row in rows] for name, rows in by_domain.items()}
    if isinstance(table.features[image], Image):
        table = table.cast_column(image, Image(decode=False))
    feature = table.features[label]
    names = feature.names if isinstance(feature, ClassLabel) else None
    classes, labels = _labels(table[label], names, benchmark, f"{hub_id}, column {label}")
    marks = _marks(table, image, hub_id)
    domains = {
        name: Domain(
            [f"{classes[labels[i]]}/{used[i]}" for i in rows],
            [marks[i] for i in rows],
            [labels[i] for i in rows],
            Rows(table, image, tuple(rows)),
        )
        for name, rows in by_domain.items()
    }
    local = Path(hub_id).exists()
    commit = None if local else commit
    if revision and commit and re.fullmatch(r"[0-9a-f]{40}", revision) and commit != revision:
        raise ValueError(f"{hub_id}: revision {revision} is not available; offline, the cache has {commit}")
    origin = {"kind": "local" if local else "hub", "id": hub_id, "revision": None if local else commit or revision}
    if benchmark is None:
        return ImageSet(Path(hub_id).stem if local else hub_id, classes, domains, origin)
    if not domains:
        where = domain or ", ".join(CORRUPTION_COLUMNS)
        raise ValueError(f"{hub_id}: none of the domains {', '.join(benchmark.domains)} in column {where!r}")
    data = ImageSet(benchmark.name, classes, domains, origin, benchmark.images, benchmark.class_images, ignored)
    if published is not None and published is not benchmark and published.hub_split is not None:
        data.origin["split"] = published.hub_split.whose
        data.other_split = (
            f"the hub copy has another split ({published.hub_split.whose}), published results are for CoOp's "
            f"({', '.join(f'{images} images' for images in published.images.values())})"
        )
    return data


def _column(table: Dataset, given: str | None, usual: tuple[str, ...], what: str, optional: bool = False) -> str:
    names = table.column_names
    if given is not None and given not in names:
        raise ValueError(f"--{what}-column {given!r}: no such column; there are {', '.join(names)}")
    column = given or next((name for name in usual if name in names), "")
    if not column and not optional:
        raise ValueError(f"no {what} column among {', '.join(names)}; name it with --{what}-column")
    return column


def _labels(
    values: Sequence[Any], names: list[str] | None, benchmark: Benchmark | None, where: str
) -> tuple[list[str], list[int]]:
    """Class names and the label of every row."""
    for row, value in enumerate(values):
        if value is None or (names and not 0 <= value < len(names)):
            raise ValueError(f"{where}: row {row} has no label" + (f" ({value})" if names else ""))
    words = [names[value] if names else str(value) for value in values]
    if benchmark is None:
        classes = names or sorted(
            set(words), key=lambda word: (not word.isdecimal(), int(word) if word.isdecimal() else 0, word)
        )
        return list(classes), [classes.index(word) for word in words]
    labels = {word: benchmark.label(word) for word in set(words)}
    if unknown := sorted(word for word, label in labels.items() if label is None):
        count = len(benchmark.classes)
        raise ValueError(
            f"{where}: {unknown[0]!r} is not a class of {benchmark.title}; allowed are its {count} names, and their "
            f"numbers from 0 to {count - 1}"
        )
    return benchmark.classes, [labels[word] or 0 for word in words]


def _domains(
    table: Dataset, column: str, benchmark: Benchmark | None, hub_id: str, ignored: list[str]
) -> dict[str, list[int]]:
    """Rows of every domain, in the order of the benchmark or of the names."""
    columns = [column] if column else []
    if not column and benchmark is not None and benchmark.corrupted:
        columns = [name for name in CORRUPTION_COLUMNS if name in table.column_names]
    if not columns and benchmark is not None and len(benchmark.domains) == 1:
        return {name: list(range(len(table))) for name in benchmark.domains}
    if not columns and benchmark is not None:
        raise ValueError(
            f"{hub_id}: no domain column among {', '.join(table.column_names)}; name it by --domain-column"
        )
    if not columns:
        return {Path(hub_id).stem: list(range(len(table)))}
    known = None if benchmark is None else BENCHMARKS[benchmark.name]
    words = _words(table, columns, hub_id)
    names = {word: word if benchmark is None else benchmark.domain(word) for word in dict.fromkeys(words)}
    ignored += [word for word, name in names.items() if name is None and known and known.domain(word) is None]
    rows: dict[str, list[int]] = {}
    for row, word in enumerate(words):
        if (name := names[word]) is not None:
            rows.setdefault(name, []).append(row)
    return {name: rows[name] for name in (benchmark.domains if benchmark else sorted(rows)) if name in rows}


def _words(table: Dataset, columns: list[str], hub_id: str) -> list[str]:
    """The domain of every row, as written; of two columns ``corruption:severity``."""
    from datasets import ClassLabel

    parts = []
    for name in columns:
        feature, values = table.features[name], table[name]
        for row, value in enumerate(values):
            if value is None:
                raise ValueError(f"{hub_id}, column {name}: row {row} has no domain")
        parts.append([feature.int2str(v) if isinstance(feature, ClassLabel) else str(v) for v in values])
    return [":".join(words) for words in zip(*parts, strict=True)]


def _marks(table: Dataset, image: str, hub_id: str) -> list[str]:
    """The mark of each encoded image; refuses rows that name a file that did not come with the data set."""
    import pyarrow as pa

    column = table.with_format("arrow")[:][image]
    kind = column.type
    inner = {kind.field(i).name for i in range(kind.num_fields)} if pa.types.is_struct(kind) else set()
    plain = any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string))
    if not plain and "bytes" not in inner:
        raise ValueError(f"column {image!r} holds {kind}, not images; name the image column by --image-column")
    marks: list[str] = []
    for chunk in column.chunks:
        for value in chunk:
            content = _content(value.as_py())
            if isinstance(content, str) and not _own(content, hub_id):
                raise ValueError(
                    f"{hub_id}, column {image}: row {len(marks)} names {content!r}, which is not in the data set's own "
                    "folder; save the data set with its images inside"
                )
            marks.append("none" if content is None else mark(content))
    return marks


def _content(value: Any) -> Any:
    """Bytes or path of an image, alone or in a table of both."""
    if isinstance(value, dict):
        return value["bytes"] if value.get("bytes") is not None else value.get("path")
    return value


def _own(file: str, hub_id: str) -> bool:
    """Whether a file named by a row is inside the local copy, or inside the hub's caches."""
    from datasets import config
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(hub_id)
    roots = [place.parent if place.is_file() else place] if place.exists() else [config.HF_DATASETS_CACHE, HF_HUB_CACHE]
    return any(Path(file).resolve().is_relative_to(Path(root).resolve()) for root in roots)
