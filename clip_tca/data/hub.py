"""Images through the ``datasets`` library: from the hub, a saved data set, Parquet files or webdataset shards."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_tca.core.checks import one_line
from clip_tca.core.errors import OfflineError, is_offline
from clip_tca.core.files import natural_order, sha256
from clip_tca.core.folders import resource
from clip_tca.core.network import hub_address, hub_reachable
from clip_tca.data.pictures import Domain, ImageSet, Picture, Source, content
from clip_tca.data.registry import BENCHMARKS, Benchmark

if TYPE_CHECKING:
    from datasets import Dataset

CORRUPTION_COLUMNS = ("corruption_name", "corruption_level")  # together the domain of a benchmark of corruptions

WEBDATASET = "wds_"
"""What the names of CLIP_benchmark's copies begin with: ``SPLIT/N.tar``, with members ``KEY.jpg`` and ``KEY.cls``."""

IN_MEMORY = 256_000_000
"""Parquet files up to this size in bytes are read into memory; larger ones go into the cache of ``datasets``."""

SAVED = ("state.json", "dataset_dict.json")
"""Files of a folder that ``save_to_disk`` wrote."""

DEMO = "eval/demo/pictures.parquet"

USUAL_COLUMNS = {
    "image": ("image", "img", "jpg", "png", "webp", "jpeg"),
    "label": ("label", "labels", "class", "cls"),
    "domain": ("domain", "style", "environment"),
}


def demo_set() -> ImageSet:
    """The demo: the same objects as icons, clip art and sketches; ``eval/demo/LICENCES.md`` names their sources."""
    path = resource(DEMO)
    origin = {"kind": "demo", "file": DEMO, "sha256": sha256(path)}
    return replace(load_hub(str(path), None), name="demo", origin=origin)


def load_hub(
    hub_id: str,
    benchmark: Benchmark | None,
    revision: str | None = None,
    columns: tuple[str | None, str | None, str | None] = (None, None, None),
    labelled: bool = True,
) -> ImageSet:
    """A data set by its id on the hub, or a local copy: a folder of ``save_to_disk``, Parquet files or tar shards.

    The ``benchmark`` has the expected domains, classes and counts; None for any other data set. ``columns`` are those
    of images, labels and domains; None takes the first usual name. If it is not ``labelled``, there are no classes, and
    images are named by their rows.
    """
    published = benchmark
    if benchmark is not None and Path(hub_id).name == Path(benchmark.hub_id).name:
        benchmark = benchmark.on_hub()
    table, commit = _table(hub_id, revision, benchmark.split if benchmark else None)
    image = _column(table, "image", columns[0])
    domain = _column(table, "domain", columns[2], optional=True)
    words = _domains(table, domain, benchmark, hub_id)
    known = {word: benchmark.domain(word) if benchmark else word for word in dict.fromkeys(words)}
    rows = [row for row, word in enumerate(words) if known[word] is not None]
    if len(rows) < len(table):  # of other domains nothing is read
        table = table.select(rows)
    classes: list[str] = []
    labels = [-1] * len(rows)
    if labelled:
        classes, labels = _labels(table, _column(table, "label", columns[1]), benchmark, hub_id)
    files = _files(table, image)
    by_domain: dict[str | None, list[Picture]] = {}
    for i, (row, mark) in enumerate(zip(rows, _marks(files, image, hub_id), strict=True)):
        name = f"{classes[labels[i]]}/{row}" if labelled else str(row)
        picture = Picture(name, mark, labels[i], partial(_source, files, i))
        by_domain.setdefault(known[words[row]], []).append(picture)
    order = benchmark.domains if benchmark else sorted(set(words))
    domains = {name: Domain(by_domain[name]) for name in order if name in by_domain}
    local = Path(hub_id).exists()
    if revision and commit and not local and re.fullmatch(r"[0-9a-f]{40}", revision) and commit != revision:
        raise ValueError(f"{hub_id}: revision {revision} is not available; offline, the cache has {commit}")
    origin = {"kind": "local" if local else "hub", "id": hub_id, "revision": None if local else commit or revision}
    if benchmark is None or published is None:
        return ImageSet(Path(hub_id).stem if local else hub_id, classes, domains, origin)
    if not domains:
        where = domain or ", ".join(CORRUPTION_COLUMNS)
        raise ValueError(f"{hub_id}: none of the domains {', '.join(benchmark.domains)} in column {where!r}")
    ignored = [word for word in known if BENCHMARKS[benchmark.name].domain(word) is None]
    data = ImageSet(benchmark.name, classes, domains, origin, benchmark.images, benchmark.class_images, ignored)
    if published is not benchmark and published.hub_split is not None:
        data.origin["split"] = published.hub_split.whose
        data.other_split = (
            f"the hub copy has another split ({published.hub_split.whose}), published results are for CoOp's "
            f"({', '.join(f'{images} images' for images in published.images.values())})"
        )
    return data


def _table(hub_id: str, revision: str | None, split: str | None = None) -> tuple[Dataset, str | None]:
    """All splits, concatenated, or the one named ``split`` where there is one; and the commit, if it is on the hub."""
    import datasets

    datasets.disable_progress_bars()
    commit = None
    try:
        if Path(hub_id).exists():
            tables = _local(Path(hub_id), split)
        elif split and Path(hub_id).name.startswith(WEBDATASET):
            snapshot = _snapshot(hub_id, revision, split)
            tables, commit = _local(snapshot, split), snapshot.name
        else:
            cached = Path(datasets.config.HF_DATASETS_CACHE) / hub_id.replace("/", "___")
            if not hub_reachable() and not cached.is_dir():
                raise OfflineError(f"{hub_address()} can't be reached, and it is not in the cache")
            tables = datasets.load_dataset(hub_id, revision=revision)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, datasets.exceptions.DatasetGenerationError) and cause.__cause__ is not None:
            cause = cause.__cause__  # it says only that something happened in a file
        raise (OfflineError if is_offline(error) else ValueError)(
            f"{hub_id}: could not be loaded as a data set ({one_line(cause)}); check the name and the network, "
            "or give a local copy: --data-dir FOLDER, or --hub-id PATH of a saved data set or Parquet file"
        ) from error
    parts = (
        [tables[name] for name in ([split] if split in tables else tables)] if isinstance(tables, dict) else [tables]
    )
    table = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if not len(table):
        raise ValueError(f"{hub_id}: the data set has no rows")
    commits = (re.search(r"[/\\]([0-9a-f]{40})[/\\]", file["filename"]) for file in table.cache_files)
    return table, commit or next((match[1] for match in commits if match), None)


def _local(path: Path, split: str | None) -> Any:
    """A saved data set, Parquet files, or webdataset shards: of a split, where they are in folders by split."""
    import datasets
    import pyarrow.parquet as pq
    from datasets.table import InMemoryTable

    if any((path / name).is_file() for name in SAVED):
        return datasets.load_from_disk(str(path))
    if files := [path] if path.is_file() else sorted(path.rglob("*.parquet")):
        if sum(file.stat().st_size for file in files) > IN_MEMORY:
            return datasets.load_dataset("parquet", data_files=list(map(str, files)))
        # no cache is needed then, so that the demo runs where the home folder can't be written
        tables = [datasets.Dataset(InMemoryTable(pq.ParquetFile(file).read())) for file in files]
        return datasets.concatenate_datasets(tables)
    if shards := natural_order(path.glob(f"{split}/*.tar")) or natural_order(path.rglob("*.tar")):
        return datasets.load_dataset("webdataset", data_files={"test": list(map(str, shards))})
    raise FileNotFoundError("neither a saved data set nor Parquet files or tar shards inside")


def _snapshot(hub_id: str, revision: str | None, split: str) -> Path:
    """The folder in the hub's cache with the shards of one split: of ImageNet, the others are 1.2 million images."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    shards, only_cached = f"{split}/*.tar", not hub_reachable()
    folder = snapshot_download(
        hub_id, repo_type="dataset", revision=revision, allow_patterns=[shards], local_files_only=only_cached
    )
    if not any(Path(folder).glob(shards)):
        raise FileNotFoundError(f"no {shards} in it")
    return Path(folder)


def _column(table: Dataset, what: str, given: str | None, optional: bool = False) -> str:
    names = table.column_names
    if given is not None and given not in names:
        raise ValueError(f"--{what}-column {given!r}: no such column; there are {', '.join(names)}")
    column = given or next((name for name in USUAL_COLUMNS[what] if name in names), "")
    if not column and not optional:
        raise ValueError(f"no {what} column among {', '.join(names)}; name it with --{what}-column")
    return column


def _words(table: Dataset, column: str, what: str, hub_id: str) -> list[str]:
    names = getattr(table.features[column], "names", None)  # of a ClassLabel
    values: list[Any] = list(table[column])
    for row, value in enumerate(values):
        if value is None or (names and not 0 <= value < len(names)):
            reason = "" if value is None else f" ({value})"
            raise ValueError(f"{hub_id}, column {column}: row {row} has no {what}{reason}")
    return [names[value] if names else str(value) for value in values]


def _labels(table: Dataset, column: str, benchmark: Benchmark | None, hub_id: str) -> tuple[list[str], list[int]]:
    words = _words(table, column, "label", hub_id)
    if benchmark is None:
        names = getattr(table.features[column], "names", None)
        numbers_first = sorted(set(words), key=lambda word: (int(word) if word.isdecimal() else math.inf, word))
        classes = list(names or numbers_first)
        places = {word: place for place, word in enumerate(classes)}
        return classes, [places[word] for word in words]
    labels = {word: benchmark.label(word) for word in set(words)}
    if unknown := sorted(word for word, label in labels.items() if label is None):
        count = len(benchmark.classes)
        raise ValueError(
            f"{hub_id}, column {column}: {unknown[0]!r} is not a class of {benchmark.title}; allowed are its {count} "
            f"names, and their numbers from 0 to {count - 1}"
        )
    return benchmark.classes, [labels[word] or 0 for word in words]


def _domains(table: Dataset, column: str, benchmark: Benchmark | None, hub_id: str) -> list[str]:
    """The domain of every row, as written; of two columns ``corruption:severity``."""
    columns = [column] if column else []
    if not column and benchmark is not None and benchmark.corrupted:
        columns = [name for name in CORRUPTION_COLUMNS if name in table.column_names]
    if columns:
        words = [_words(table, name, "domain", hub_id) for name in columns]
        return [":".join(parts) for parts in zip(*words, strict=True)]
    names = [Path(hub_id).stem] if benchmark is None else list(benchmark.domains)
    if len(names) > 1:
        there = ", ".join(table.column_names)
        raise ValueError(f"{hub_id}: no domain column among {there}; name it by --domain-column")
    return names * len(table)


def _files(table: Dataset, image: str) -> Dataset:
    """The column of images alone, as the files that they are, not decoded."""
    from datasets import Image

    try:
        return table.select_columns([image]).cast_column(image, Image(decode=False))
    except Exception:  # of pyarrow, whatever the column holds
        kind = getattr(table.features[image], "dtype", table.features[image])
        raise ValueError(f"column {image!r} holds {kind}, not images; name the column by --image-column") from None


def _marks(files: Dataset, image: str, hub_id: str) -> list[str]:
    """The mark of each image; refuses rows that name a file that did not come with the data set."""
    from datasets import config
    from huggingface_hub.constants import HF_HUB_CACHE

    path, caches = Path(hub_id), (Path(config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE))
    own = [(path.parent if path.is_file() else path).resolve()] if path.exists() else [c.resolve() for c in caches]
    marks = []
    for row, values in enumerate(files):
        source = _content(values)
        if isinstance(source, str) and not any(map(Path(source).resolve().is_relative_to, own)):
            raise ValueError(
                f"{hub_id}, column {image}: row {row} names {source!r}, which is not in the data set's own folder; "
                "save the data set with its images inside"
            )
        marks.append("none" if source is None else content(source))
    return marks


def _source(files: Dataset, row: int) -> Source:
    return _content(files[row])


def _content(values: dict[str, Any]) -> Source:
    """Bytes or path of the image in a row of one column."""
    (value,) = values.values()
    source: Source = None if value is None else value["bytes"] if value["bytes"] is not None else value["path"]
    return source
