"""clip-retrieval's folders: ``img_emb/img_emb_0.npy`` and, row by row beside it, ``metadata/metadata_0.parquet``.

The output has the same layout: adapted embeddings in ``img_emb``, and in ``metadata`` all columns as they came, with
predicted classes and their probabilities as columns of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clip_tca.core.remote import Location
from clip_tca.datasets.formats import base
from clip_tca.datasets.formats.arrays import ArrayShard
from clip_tca.datasets.formats.base import ROWS, Block, Result, Shard, Sink, Target
from clip_tca.datasets.formats.columns import ADDED, FAULTS, regrouped
from clip_tca.datasets.formats.kinds import Kind
from clip_tca.datasets.formats.npy import NpyFile
from clip_tca.datasets.formats.parquet import open_parquet

EMBEDDINGS, METADATA = "img_emb", "metadata"


class ClipRetrievalShard(Shard):
    """An array of embeddings and the table of its rows."""

    def __init__(self, embeddings: Location, metadata: Location) -> None:
        """Read both headers.

        Raises:
            FileNotFoundError: If there is no table.
            ValueError: If the table has another number of rows, or one of the files is damaged.
        """
        self.vectors, self.metadata = ArrayShard(NpyFile(embeddings)), metadata
        self.path, self.where = embeddings, str(embeddings)
        self.rows, self.dim, self.dtype = self.vectors.rows, self.vectors.dim, self.vectors.dtype
        if not metadata.is_file():
            raise FileNotFoundError(f"{embeddings}: its metadata {metadata} is missing; copy it, or name {EMBEDDINGS}/")
        try:
            with open_parquet(metadata) as file:
                self.schema, rows = file.schema_arrow, file.metadata.num_rows
        except (*FAULTS, UnicodeError) as error:
            raise base.damaged(metadata, error) from None
        if rows != self.rows:
            raise ValueError(f"{metadata}: {rows} rows, but {embeddings.name} has {self.rows}; they belong row by row")
        if not self.schema.names:
            raise ValueError(f"{metadata}: no columns; at least one is needed")
        if len(set(self.schema.names)) < len(self.schema.names):
            raise ValueError(f"{metadata}: two columns have the same name; rename one of them")

    def blocks(self, rows: int = ROWS) -> Iterator[Block]:
        """All rows, ``rows`` at a time."""
        tables = self._tables(rows)
        for block in self.vectors.blocks(rows):
            others = next(tables, None)
            if others is None or len(others) != len(block):
                raise base.damaged(self.metadata, f"ends at row {block.first}")
            yield Block(block.z, block.first, others)

    def _tables(self, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            with open_parquet(self.metadata) as file:
                yield from regrouped(file.iter_batches(batch_size=rows), rows)
        except FAULTS as error:
            raise base.damaged(self.metadata, error) from None

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if a column that would be added exists already."""
        added = [ADDED[kind] for kind in kinds if kind in ADDED]
        base.check_free(str(self.metadata), "a column", added, self.schema.names)

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
        self.added: dict[Kind, str] = {kind: ADDED[kind] for kind in target.dtypes if kind in ADDED}
        fields = [pa.field(name, pa.from_numpy_dtype(target.dtypes[kind])) for kind, name in self.added.items()]
        self.schema = pa.schema([*shard.schema, *fields], shard.schema.metadata)
        folder = target.path.parent.parent / METADATA
        folder.mkdir(exist_ok=True)
        self.table = pq.ParquetWriter(folder / shard.metadata.name, self.schema)
        alone: dict[Kind, Path] = {kind: path for kind, path in target.paths.items() if kind == "embeddings"}
        self.vectors = shard.vectors.sink(Target(alone, target.dtypes, target.rows)) if alone else None

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        if self.vectors is not None:
            self.vectors.write(result)
        added = [pa.array(result.arrays[kind], self.schema.field(name).type) for kind, name in self.added.items()]
        columns = [*result.others.columns, *added]  # type: ignore[union-attr]
        self.table.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self) -> dict[Path, int]:
        """Finish both; the checksum of the array."""
        checksums = {} if self.vectors is None else self.vectors.close()
        self.table.close()
        return checksums


def open_clip_retrieval(folder: Location) -> list[Shard]:
    """The shards of a folder that clip-retrieval wrote, in any order; none if it is another folder."""
    vectors, tables = folder / EMBEDDINGS, folder / METADATA
    if not (vectors.is_dir() and tables.is_dir()):
        return []
    files = [path for path in vectors.iterdir() if path.suffix == ".npy" and not path.name.startswith(".")]
    numbers = [path.stem.rpartition("_")[2] for path in files]
    pairs = zip(files, numbers, strict=True)
    return [ClipRetrievalShard(path, tables / f"{METADATA}_{number}.parquet") for path, number in pairs]
