"""Rows that the ``datasets`` library reads, local or on the hub: a saved data set, Parquet files, webdataset shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_tca.core.checks import one_line
from clip_tca.core.files import natural_order
from clip_tca.core.hub_access import hub_address, hub_reachable

if TYPE_CHECKING:
    from datasets import Dataset

WEBDATASET = "wds_"
"""What the names of CLIP_benchmark's copies begin with: ``SPLIT/N.tar``, with members ``KEY.jpg`` and ``KEY.cls``."""

IN_MEMORY = 256_000_000
"""Bytes of Parquet files up to which they are read whole; larger ones are copied into the cache of ``datasets``."""


def load_table(hub_id: str, revision: str | None, split: str | None = None) -> tuple[Dataset, str | None]:
    """All splits, concatenated, or the one named ``split`` where there is one; and the commit, if it is on the hub."""
    import datasets

    datasets.disable_progress_bars()
    path, commit = Path(hub_id), None
    try:
        if path.is_dir() and any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
            loaded: Any = datasets.load_from_disk(hub_id)
        elif path.is_file() or (path.is_dir() and any(path.rglob("*.parquet"))):
            loaded = _parquet([path] if path.is_file() else sorted(path.rglob("*.parquet")))
        elif path.is_dir() and any(path.rglob("*.tar")):
            loaded = _webdataset(path, split)
        elif path.is_dir():
            raise FileNotFoundError("neither a saved data set nor Parquet files or tar shards inside")
        elif split and path.name.startswith(WEBDATASET):
            snapshot = _snapshot(hub_id, revision, split)
            loaded, commit = _webdataset(snapshot, split), snapshot.name
        else:
            _check_reachable(hub_id)
            loaded = datasets.load_dataset(hub_id, revision=revision)
    except Exception as error:
        raise ValueError(
            f"{hub_id}: could not be loaded as a data set ({_reason(error)}); check the name and the network, "
            "or give a local copy: --data-dir FOLDER, or --hub-id PATH of a saved data set or Parquet file"
        ) from error
    if isinstance(loaded, dict):
        parts = [loaded[name] for name in ([split] if split in loaded else loaded)]
        loaded = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if not len(loaded):
        raise ValueError(f"{hub_id}: the data set has no rows")
    return loaded, commit or _commit(loaded)


def _check_reachable(hub_id: str) -> None:
    """Raise ConnectionError if neither the hub can be reached nor the cache of ``datasets`` has anything of it."""
    import datasets

    if not hub_reachable() and not (Path(datasets.config.HF_DATASETS_CACHE) / hub_id.replace("/", "___")).is_dir():
        raise ConnectionError(f"{hub_address()} can't be reached, and it is not in the cache")


def _commit(table: Dataset) -> str | None:
    """The commit, from the path of the cached files."""
    matches = (re.search(r"[/\\]([0-9a-f]{40})[/\\]", file["filename"]) for file in table.cache_files)
    return next((match.group(1) for match in matches if match), None)


def _snapshot(hub_id: str, revision: str | None, split: str) -> Path:
    """The folder in the hub's cache with the shards of one split: of ImageNet, the others are 1.2 million images."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    shards = f"{split}/*.tar"
    folder = Path(
        snapshot_download(
            hub_id,
            repo_type="dataset",
            revision=revision,
            allow_patterns=[shards],
            local_files_only=not hub_reachable(),
        )
    )
    if not any(folder.glob(shards)):
        raise FileNotFoundError(f"no {shards} in it")
    return folder


def _webdataset(folder: Path, split: str | None) -> Any:
    """The shards of a split, or all where they are not in folders by split, in the order of their numbers."""
    import datasets

    shards = natural_order(folder.glob(f"{split}/*.tar")) or natural_order(folder.rglob("*.tar"))
    return datasets.load_dataset("webdataset", data_files={"test": list(map(str, shards))})


def _reason(error: BaseException) -> str:
    """The message of an error; where ``datasets`` says only that something happened in a file, the cause."""
    from datasets.exceptions import DatasetGenerationError

    while isinstance(error, DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)


def _parquet(files: list[Path]) -> Any:
    """Parquet files: no cache is needed where they fit into memory, so that a home that can't be written is enough."""
    import datasets
    import pyarrow.parquet as pq
    from datasets.table import InMemoryTable

    if sum(file.stat().st_size for file in files) > IN_MEMORY:
        return datasets.load_dataset("parquet", data_files=list(map(str, files)))
    tables = [datasets.Dataset(InMemoryTable(pq.ParquetFile(file).read())) for file in files]
    return datasets.concatenate_datasets(tables)
