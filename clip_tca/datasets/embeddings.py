"""Embeddings in one file or many, in order, on a disk or in a store: the one list of shards that every command reads.

They may be the folder ``cache`` of TransCLIP, StatA and OGA (``test_f.pt``, ``test_l.pt``), or a folder of
clip-retrieval: ``img_emb/img_emb_0.npy`` and, row by row beside it, ``metadata/metadata_0.parquet``. Adapted, such a
folder keeps its layout: embeddings in ``img_emb``, and in ``metadata`` all columns as they came, with predicted classes
and their probabilities as columns of their own.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clip_tca.core.files import natural_order
from clip_tca.core.remote import Location, RemotePath, locate
from clip_tca.datasets.arrays import ArrayShard, NpyFile
from clip_tca.datasets.formats import FORMATS, TORCH, Kind, open_shard
from clip_tca.datasets.shards import ROWS, Arrays, Block, Shard, Writer
from clip_tca.datasets.tables import ADDED, ParquetFile, TableWriter

if TYPE_CHECKING:
    import pyarrow as pa

CACHED = "test_f.pt"
"""TransCLIP's file of test embeddings."""

EMBEDDINGS, METADATA = "img_emb", "metadata"
"""The folders of clip-retrieval."""


@dataclass(frozen=True)
class ShardedEmbeddings:
    """Shards in order; ``single`` if they are one file that was named as such."""

    shards: list[Shard]
    single: bool

    @property
    def dim(self) -> int:
        return next(shard.dim for shard in self.shards if shard.dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.shards[0].dtype

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


def open_embeddings(
    source: str | Location, column: str | None = None, formats: Sequence[str] = FORMATS
) -> ShardedEmbeddings:
    """A file, a folder of shards, or a glob pattern, on a disk or in a store; shards in the order of their numbers.

    ``column`` is the array, tensor or column with the embeddings; None looks for the usual names. Files end with one of
    ``formats``.

    Raises:
        FileNotFoundError: If there is nothing of that name.
        ValueError: If a file is damaged, if there are no rows, or if shards differ in format, dimension or dtype.
    """
    path = locate(source)
    single = path.is_file()
    shards = [] if single else _clip_retrieval(path)
    if not shards:
        paths = [path] if single else _shard_paths(path, str(source), formats)
        shards = [open_one(path, column, formats) for path in paths]
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


def open_one(path: Location, column: str | None = None, formats: Sequence[str] = FORMATS) -> Shard:
    """One file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a {', '.join(formats)} file")
    if (suffix := path.suffix.lower()) not in formats:
        fix = f"; save it as one: np.save('{path.stem}.npy', torch.load('{path.name}'))" if suffix in TORCH else ""
        raise ValueError(f"{path}: not a file of embeddings by its name; allowed are {', '.join(formats)}{fix}")
    return open_shard(path, column)


def _shard_paths(path: Location, pattern: str, formats: Sequence[str]) -> list[Location]:
    paths: list[Location]
    if path.is_dir():
        if CACHED.endswith(tuple(formats)) and (path / CACHED).is_file():
            return [path / CACHED]
        folder = path / EMBEDDINGS if (path / EMBEDDINGS).is_dir() else path
        paths = [file for file in folder.iterdir() if file.suffix.lower() in formats and not file.name.startswith(".")]
    elif isinstance(path, RemotePath):
        paths = [*path.matches()]
    else:
        paths = [Path(name) for name in glob.glob(pattern) if Path(name).is_file()]
    if not paths:
        reason = "no embeddings in this folder" if path.is_dir() else "no such file, folder or pattern"
        raise FileNotFoundError(f"{pattern}: {reason}; give {', '.join(formats)} files")
    return natural_order(paths)


def _clip_retrieval(folder: Location) -> list[Shard]:
    """The shards of a folder that clip-retrieval wrote; none if it is another folder."""
    vectors, tables = folder / EMBEDDINGS, folder / METADATA
    if not (vectors.is_dir() and tables.is_dir()):
        return []
    files = [path for path in vectors.iterdir() if path.suffix == ".npy" and not path.name.startswith(".")]
    return [
        ClipRetrievalShard(path, tables / f"{METADATA}_{path.stem.rpartition('_')[2]}.parquet")
        for path in natural_order(files)
    ]


class ClipRetrievalShard(Shard):
    """An array of embeddings and the table of its rows."""

    added = ADDED

    def __init__(self, embeddings: Location, metadata: Location) -> None:
        """Raise FileNotFoundError if there is no table, ValueError if it has another number of rows."""
        self.vectors, self.metadata = ArrayShard(NpyFile(embeddings)), metadata
        self.path, self.name = embeddings, ""
        self.rows, self.dim, self.dtype = self.vectors.rows, self.vectors.dim, self.vectors.dtype
        if not metadata.is_file():
            raise FileNotFoundError(f"{embeddings}: its metadata {metadata} is missing; copy it, or name {EMBEDDINGS}/")
        self.table = ParquetFile(metadata)
        self.columns = self.table.schema.names
        if (rows := self.table.rows) != self.rows:
            raise ValueError(f"{metadata}: {rows} rows, but {embeddings.name} has {self.rows}; they belong row by row")
        if not self.columns:
            raise ValueError(f"{metadata}: no columns; at least one is needed")

    def blocks(self, rows: int = ROWS) -> Iterator[Block]:
        for block, others in zip(self.vectors.blocks(rows), self.table.tables(rows), strict=True):
            yield Block(block.z, block.first, others)

    def runs(self, firsts: Sequence[int], length: int) -> Iterator[Block]:
        return self.vectors.runs(firsts, length)

    def sources(self) -> list[Location]:
        return [self.path, self.metadata]

    def outputs(self, kinds: tuple[Kind, ...]) -> dict[Kind, str]:
        """Embeddings in their folder, labels and scores in the table."""
        vectors, table = f"{EMBEDDINGS}/{self.path.name}", f"{METADATA}/{self.metadata.name}"
        return {kind: vectors if kind == "embeddings" else table for kind in kinds}

    def written(self, kinds: tuple[Kind, ...]) -> list[str]:
        """The table is always written."""
        return sorted({*self.outputs(kinds).values(), f"{METADATA}/{self.metadata.name}"})

    def writer(self, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> Writer:
        return ClipRetrievalWriter(self, paths, dtypes)


class ClipRetrievalWriter:
    """An array and a table."""

    def __init__(self, shard: ClipRetrievalShard, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> None:
        """Open both."""
        folder = next(iter(paths.values())).parent.parent / METADATA
        folder.mkdir(exist_ok=True)
        own: dict[Kind, Path] = {kind: path for kind, path in paths.items() if kind == "embeddings"}
        rest: dict[Kind, np.dtype[Any]] = {kind: dtype for kind, dtype in dtypes.items() if kind != "embeddings"}
        self.vectors = shard.vectors.writer(own, dtypes) if own else None
        self.table = TableWriter(shard.table, None, folder / shard.metadata.name, rest)

    def write(self, arrays: Arrays, others: pa.Table | None = None) -> None:
        """Append rows."""
        if self.vectors is not None:
            self.vectors.write(arrays)
        self.table.write(arrays, others)

    def close(self) -> None:
        """Finish both."""
        if self.vectors is not None:
            self.vectors.close()
        self.table.close()
