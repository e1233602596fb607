"""Sharded embeddings: one file or many, in order.

They may be a folder of clip-retrieval: ``img_emb/img_emb_0.npy`` and, row by row beside it,
``metadata/metadata_0.parquet``. The output has the same layout: adapted embeddings in ``img_emb``, and in ``metadata``
all columns as they came, with predicted classes and their probabilities as columns of their own.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clip_tca.core.files import natural_order
from clip_tca.core.remote import Location, RemotePath, locate
from clip_tca.datasets.formats.arrays import ArrayShard, NpyFile
from clip_tca.datasets.formats.base import ROWS, Block, Result, Shard, Sink, Target, check_free
from clip_tca.datasets.formats.registry import FORMATS, TORCH, Kind, open_shard
from clip_tca.datasets.formats.tables import ADDED, ParquetFile, TableSink

EMBEDDINGS, METADATA = "img_emb", "metadata"
"""The folders of clip-retrieval."""


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
    def rows(self) -> int:
        """Number of rows."""
        return sum(shard.rows for shard in self.shards)


def open_embeddings(source: str, column: str | None = None) -> ShardedEmbeddings:
    """A file, a folder of shards, or a glob pattern, on a disk or in a store; shards in the order of their numbers.

    A folder may be one that clip-retrieval wrote (``img_emb`` and ``metadata``). ``column`` is the array, tensor or
    column with the embeddings; None looks for the usual names.

    Raises:
        FileNotFoundError: If there is nothing of that name.
        ValueError: If a file is damaged, if there are no rows, or if shards differ in format, dimension or dtype.
    """
    path = locate(source)
    single = path.is_file()
    shards = [] if single else open_clip_retrieval(path)
    if not shards:
        paths = [path] if single else _shard_paths(path, source)
        shards = [open_one(path, column) for path in paths]
        if len(suffixes := sorted({path.suffix.lower() for path in paths})) > 1:
            raise ValueError(f"{source}: {' and '.join(suffixes)} files; all shards must have one format")
    first = next((shard for shard in shards if shard.dim and shard.rows), None)
    if first is None:
        raise ValueError(f"{source}: no rows; at least one embedding is needed")
    for shard in shards:
        for name, value, expected in (("dimensions", shard.dim, first.dim), ("dtype", shard.dtype, first.dtype)):
            if value not in (None, expected):
                raise ValueError(
                    f"{shard.path}: {name} {value}, but {first.path.name} has {expected}; all shards must agree"
                )
    return ShardedEmbeddings(shards, single)


def open_one(path: Location, column: str | None = None) -> Shard:
    """One file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a {', '.join(FORMATS)} file")
    if path.suffix.lower() not in FORMATS:
        fix = f"; save it as one: np.save('{path.stem}.npy', torch.load('{path.name}'))" * (
            path.suffix.lower() in TORCH
        )
        raise ValueError(f"{path}: not a file of embeddings by its name; allowed are {', '.join(FORMATS)}{fix}")
    return open_shard(path, column)


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
        raise FileNotFoundError(f"{pattern}: {reason}; give {', '.join(FORMATS)} files")
    return natural_order(paths)


class ClipRetrievalShard(Shard):
    """An array of embeddings and the table of its rows."""

    def __init__(self, embeddings: Location, metadata: Location) -> None:
        """Read both headers.

        Raises:
            FileNotFoundError: If there is no table.
            ValueError: If the table has another number of rows, or one of the files is damaged.
        """
        self.vectors, self.metadata = ArrayShard(NpyFile(embeddings)), metadata
        self.path, self.where, self.name = embeddings, str(embeddings), ""
        self.rows, self.dim, self.dtype = self.vectors.rows, self.vectors.dim, self.vectors.dtype
        if not metadata.is_file():
            raise FileNotFoundError(f"{embeddings}: its metadata {metadata} is missing; copy it, or name {EMBEDDINGS}/")
        self.table = ParquetFile(metadata)
        if (rows := self.table.rows) != self.rows:
            raise ValueError(f"{metadata}: {rows} rows, but {embeddings.name} has {self.rows}; they belong row by row")
        if not self.table.schema.names:
            raise ValueError(f"{metadata}: no columns; at least one is needed")

    def blocks(self, rows: int = ROWS, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        pairs = zip(self.vectors.blocks(rows, start, stop), self.table.tables(rows, start, stop), strict=True)
        for block, others in pairs:
            yield Block(block.z, block.first, others)

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if a column that would be added exists already."""
        added = [ADDED[kind] for kind in kinds if kind in ADDED]
        check_free(str(self.metadata), "a column", added, self.table.schema.names)

    def sources(self) -> list[Location]:
        """Both files."""
        return [self.path, self.metadata]

    def outputs(self, kinds: tuple[Kind, ...]) -> dict[Kind, str]:
        """Embeddings beside each other, labels and scores in the table."""
        vectors, table = f"{EMBEDDINGS}/{self.path.name}", f"{METADATA}/{self.metadata.name}"
        return {kind: vectors if kind == "embeddings" else table for kind in kinds}

    def written(self, kinds: tuple[Kind, ...]) -> list[str]:
        """The table is always written."""
        return sorted({*self.outputs(kinds).values(), f"{METADATA}/{self.metadata.name}"})

    def sink(self, target: Target) -> Sink:
        """A writer of both files."""
        return ClipRetrievalSink(self, target)


class ClipRetrievalSink:
    """An array and a table."""

    def __init__(self, shard: ClipRetrievalShard, target: Target) -> None:
        """Open both."""
        folder, dtypes = target.path.parent.parent / METADATA, dict(target.dtypes)
        folder.mkdir(exist_ok=True)
        self.vectors: Sink | None = None
        if dtype := dtypes.pop("embeddings", None):
            paths = Target({"embeddings": target.paths["embeddings"]}, {"embeddings": dtype})
            self.vectors = shard.vectors.sink(paths)
        table = Target({"labels": folder / shard.metadata.name}, dtypes)
        self.table = TableSink(shard.table.schema, None, table, shard.table.writer)

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        if self.vectors is not None:
            self.vectors.write(result)
        self.table.write(result)

    def close(self) -> None:
        """Finish both."""
        if self.vectors is not None:
            self.vectors.close()
        self.table.close()


def open_clip_retrieval(folder: Location) -> list[Shard]:
    """The shards of a folder that clip-retrieval wrote; none if it is another folder."""
    vectors, tables = folder / EMBEDDINGS, folder / METADATA
    if not (vectors.is_dir() and tables.is_dir()):
        return []
    files = [path for path in vectors.iterdir() if path.suffix == ".npy" and not path.name.startswith(".")]
    return [
        ClipRetrievalShard(path, tables / f"{METADATA}_{path.stem.rpartition('_')[2]}.parquet")
        for path in natural_order(files)
    ]
