"""Sharded embeddings: one file or many, in order."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clip_tca.core.files import natural_key, natural_order
from clip_tca.core.remote import Location, RemotePath, locate
from clip_tca.datasets.formats.base import Shard
from clip_tca.datasets.formats.registry import FORMATS, open_shard


@dataclass(frozen=True)
class ShardedEmbeddings:
    """Shards in order; ``single`` if they are one file that was named as such."""

    shards: list[Shard]
    single: bool

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return next(shard.dim for shard in self.shards if shard.dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the embeddings, as stored."""
        return self.shards[0].dtype

    @property
    def rows(self) -> int | None:
        """Number of rows; None if one of the shards is a stream."""
        counts = [shard.rows for shard in self.shards]
        return None if None in counts else sum(count or 0 for count in counts)


def open_embeddings(source: str, column: str | None = None) -> ShardedEmbeddings:
    """A file, a folder of shards, or a glob pattern, on a disk or in a store; shards in the order of their numbers.

    A folder may be one that clip-retrieval wrote (``img_emb`` and ``metadata``).

    ``column`` is the array, tensor or column with the embeddings; None looks for the usual names.
    """
    path = locate(source)
    single = path.is_file()
    if not single and (path / "img_emb").is_dir():
        from clip_tca.bulk.clip_retrieval import open_clip_retrieval

        if shards := open_clip_retrieval(path):
            return _checked(source, sorted(shards, key=lambda shard: natural_key(shard.path.name)))
    paths = [path] if single else _shard_paths(path, source)
    suffixes = sorted({path.suffix.lower() for path in paths})
    if len(suffixes) > 1 or suffixes[0] not in FORMATS:
        raise ValueError(
            f"{source}: {' and '.join(suffixes)} files; all shards must have one format: {', '.join(FORMATS)}"
        )
    return _checked(source, [open_shard(path, column) for path in paths], single)


def _checked(source: str, shards: list[Shard], single: bool = False) -> ShardedEmbeddings:
    if not any(shard.dim for shard in shards) or all(shard.rows == 0 for shard in shards):
        raise ValueError(f"{source}: no rows; at least one embedding is needed")
    check_agreement(shards)
    return ShardedEmbeddings(shards, single)


def check_agreement(shards: Sequence[Shard]) -> None:
    """Raise ValueError unless all shards have one dimension (unknown without rows) and one dtype."""
    first = next(shard for shard in shards if shard.dim)
    for shard in shards:
        for attribute, name in {"dim": "dimensions", "dtype": "dtype"}.items():
            expected, value = getattr(first, attribute), getattr(shard, attribute)
            if value is not None and value != expected:
                raise ValueError(
                    f"{shard.path}: {name} {value}, but {first.path.name} has {expected}; all shards must agree"
                )


def _shard_paths(path: Location, pattern: str) -> list[Location]:
    paths: list[Location]
    if path.is_dir():
        paths = [file for file in path.iterdir() if file.suffix.lower() in FORMATS and not file.name.startswith(".")]
    elif isinstance(path, RemotePath):
        paths = [*path.matches()]
    else:
        paths = [Path(name) for name in glob.glob(pattern) if Path(name).is_file()]
    if not paths:
        reason = "no embeddings in this folder" if path.is_dir() else "no such file, folder or pattern"
        raise FileNotFoundError(f"{pattern}: {reason}; give {', '.join(FORMATS)} files, or - for standard input")
    return natural_order(paths)
