"""Tables with a list column of embeddings, Parquet and Arrow IPC (file or stream), and folders of clip-retrieval.

Columns beside the embeddings are carried through as they came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clip_tca.core.remote import Location
from clip_tca.data.arrays import ArrayShard, NpyFile
from clip_tca.data.formats import Kind
from clip_tca.data.shards import IMG_EMB, LONGEST_ROW, METADATA, ROWS, Arrays, Block, Shard, Writer, pick_name, reading

ADDED: dict[Kind, str] = {"labels": "tca_label", "scores": "tca_score"}  # columns that are added to a table


class TableFile(ABC):
    """The schema of a table and its number of rows."""

    def __init__(self, path: Location) -> None:
        """Raise ValueError if the file is damaged, or if two columns have one name."""
        self.path = path
        with reading(path):
            self.schema, self.rows = self._open()
            names = self.schema.names
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: two columns have the same name; rename one of them")

    def tables(self, rows: int) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        have, left = 0, self.rows
        with reading(self.path):
            for batch in self._batches(rows):
                held.append(batch)
                have += len(batch)
                while have >= rows:
                    table = pa.Table.from_batches(held)
                    yield table.slice(0, rows)
                    held, have, left = table.slice(rows).to_batches(), have - rows, left - rows
            if left != have:
                raise EOFError(f"{left - have} rows are missing")
            if have:
                yield pa.Table.from_batches(held)

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int]: ...

    @abstractmethod
    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of any size, of about ``rows`` where that can be chosen."""

    @abstractmethod
    def writer(self, path: Path, schema: pa.Schema) -> Any:
        """A writer in the same format, with ``write_table`` and ``close``."""


class ParquetFile(TableFile):
    """A ``.parquet`` file."""

    def _open(self) -> tuple[pa.Schema, int]:
        with self._file() as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            for group in groups:
                _check_runs(group)
            return file.schema_arrow, sum(group.num_rows for group in groups)

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=rows)

    def writer(self, path: Path, schema: pa.Schema) -> Any:
        return pq.ParquetWriter(path, schema)

    @contextmanager
    def _file(self) -> Iterator[Any]:
        with _opened(self.path) as source, pq.ParquetFile(source) as file:
            yield file


class ArrowFile(TableFile):
    """An Arrow IPC file (``.arrow``, ``.feather``, ``.ipc``); what is written has the same of its two formats."""

    stream = False

    def _open(self) -> tuple[pa.Schema, int]:
        try:
            return self._counted()
        except pa.ArrowInvalid:
            self.stream = True
            return self._counted()

    def _counted(self) -> tuple[pa.Schema, int]:
        with self._reader(mapped=True) as reader:  # a map, of which only the heads of the batches are touched
            return reader.schema, sum(map(len, self._all(reader)))

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        with self._reader() as reader:
            for batch in self._all(reader):
                batch.validate(full=True)  # offsets that point beyond the end would be followed blindly
                yield batch

    def _all(self, reader: Any) -> Iterator[pa.RecordBatch]:
        return iter(reader) if self.stream else map(reader.get_batch, range(reader.num_record_batches))

    def writer(self, path: Path, schema: pa.Schema) -> Any:
        return (pa.ipc.new_stream if self.stream else pa.ipc.new_file)(str(path), schema)

    @contextmanager
    def _reader(self, mapped: bool = False) -> Iterator[Any]:
        open_reader = pa.ipc.open_stream if self.stream else pa.ipc.open_file
        with _opened(self.path, mapped) as source, open_reader(source) as reader:
            yield reader


def _opened(path: Location, mapped: bool = False) -> Any:
    if not isinstance(path, Path):
        return path.open("rb")
    return (pa.memory_map if mapped else pa.OSFile)(str(path))


def _check_runs(group: Any) -> None:
    """Refuse rows far too long: runs of one number take no room in a file, and a kilobyte could fill the memory.

    Only groups that are small for their rows are looked at: pyarrow ends the process where it is asked for the columns
    of some damaged footers (it does not catch its own exception there).
    """
    if group.num_rows < 0:
        raise OSError(f"a group of {group.num_rows} rows")
    if group.total_byte_size < 1024 + 64 * group.num_rows:
        most = max((group.column(i).num_values for i in range(group.num_columns)), default=0)
        if most > LONGEST_ROW * max(group.num_rows, 1):
            raise OSError(f"{most} numbers in {group.num_rows} rows; at most {LONGEST_ROW} in each are allowed")


class TableShard(Shard):
    """A table with a list column of embeddings."""

    added = ADDED

    def __init__(self, path: Location, column: str | None = None) -> None:
        """The first list in the column gives the dimension."""
        self.path = path
        self.file: TableFile = ParquetFile(path) if path.suffix.lower() == ".parquet" else ArrowFile(path)
        schema, self.rows, self.columns = self.file.schema, self.file.rows, self.file.schema.names
        kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
        fields = [field for field in schema if any(is_kind(field.type) for is_kind in kinds)]
        lists = [field.name for field in fields if pa.types.is_floating(field.type.value_type)]
        self.name = pick_name(path, lists, column, "list column of floats")
        with reading(path):
            list_type = schema.field(self.name).type
        self.dtype = np.dtype(list_type.value_type.to_pandas_dtype())
        self.dim = getattr(list_type, "list_size", None)
        if self.dim is None and self.rows:
            self.dim = self._dimension()

    def _dimension(self) -> int:
        """Length of the first list that is not missing; rows are read up to it."""
        for table in self.file.tables(64):
            lengths = pc.list_value_length(table.column(self.name)).drop_null()
            if len(lengths) and lengths[0].as_py():
                return int(lengths[0].as_py())
        raise ValueError(f"{self.path}: every embedding in it is missing or empty; choose another column: --column")

    def blocks(self, rows: int = ROWS) -> Iterator[Block]:
        first = 0
        for table in self.file.tables(rows):
            z = matrix(table.column(self.name), self.dim or 0, self.path, first)
            yield Block(z, first, table.drop_columns(self.name))
            first += len(table)

    def writer(self, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> Writer:
        return TableWriter(self.file, self.name, next(iter(paths.values())), dtypes)


class TableWriter:
    """A table: columns that came along, adapted embeddings in their old place, then labels and scores.

    The embeddings may have a writer of their own, ``vectors``; else ``name`` is their column in the input ``table``.
    """

    def __init__(
        self,
        table: TableFile,
        name: str | None,
        path: Path,
        dtypes: dict[Kind, np.dtype[Any]],
        vectors: Writer | None = None,
    ) -> None:
        self.vectors = vectors
        self.dtypes = dtypes
        self.kinds = {ADDED.get(kind, name): kind for kind in dtypes}
        fields = []
        for field in table.schema:
            if field.name in self.kinds:
                value = pa.from_numpy_dtype(dtypes["embeddings"])
                large = pa.types.is_large_list(field.type)
                kind = pa.large_list(value) if large else pa.list_(value, getattr(field.type, "list_size", -1))
                field = field.with_type(kind)
            if field.name in self.kinds or field.name != name:
                fields.append(field)
        fields += [pa.field(ADDED[kind], pa.from_numpy_dtype(dtypes[kind])) for kind in dtypes if kind in ADDED]
        kept = {
            key: value for key, value in (table.schema.metadata or {}).items() if key != b"huggingface"
        }  # old types
        self.schema = pa.schema(fields, kept or None)
        self.writer = table.writer(path, self.schema)

    def write(self, arrays: Arrays, others: pa.Table | None = None) -> None:
        if self.vectors is not None:
            self.vectors.write(arrays)
        columns = []
        for field in self.schema:
            kind = self.kinds.get(field.name)
            if kind is None:
                columns.append(others.column(field.name))  # type: ignore[union-attr]
            elif kind == "embeddings":
                z = np.ascontiguousarray(arrays[kind], self.dtypes[kind])
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), z.shape[1]).cast(field.type))
            else:
                columns.append(pa.array(arrays[kind], field.type))
        self.writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        if self.vectors is not None:
            self.vectors.close()
        self.writer.close()


class ClipRetrievalShard(Shard):
    """An array of clip-retrieval and the table of its rows, which has labels and scores added when it is written."""

    added = ADDED

    def __init__(self, embeddings: Location, metadata: Location) -> None:
        """Raise FileNotFoundError if there is no table, ValueError if it has another number of rows."""
        self.vectors, self.metadata = ArrayShard(NpyFile(embeddings)), metadata
        self.path, self.name = embeddings, ""
        self.rows, self.dim, self.dtype = self.vectors.rows, self.vectors.dim, self.vectors.dtype
        if not metadata.is_file():
            raise FileNotFoundError(f"{embeddings}: its metadata {metadata} is missing; copy it, or name {IMG_EMB}/")
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
        vectors, table = f"{IMG_EMB}/{self.path.name}", f"{METADATA}/{self.metadata.name}"
        return {kind: vectors if kind == "embeddings" else table for kind in kinds}

    def written(self, kinds: tuple[Kind, ...]) -> list[str]:
        """The table is always written."""
        return sorted({*self.outputs(kinds).values(), f"{METADATA}/{self.metadata.name}"})

    def writer(self, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> Writer:
        table = next(iter(paths.values())).parents[1] / METADATA / self.metadata.name
        table.parent.mkdir(exist_ok=True)
        own: dict[Kind, Path] = {kind: path for kind, path in paths.items() if kind == "embeddings"}
        rest: dict[Kind, np.dtype[Any]] = {kind: dtype for kind, dtype in dtypes.items() if kind != "embeddings"}
        return TableWriter(self.table, None, table, rest, self.vectors.writer(own, dtypes) if own else None)


def matrix(column: pa.ChunkedArray, dim: int, path: Location, first: int) -> np.ndarray:
    """A list column as ``(n, d)``; a missing list, or a missing number in one, is a row of NaN or has one."""
    parts = []
    for chunk in column.chunks:
        lengths = pc.list_value_length(chunk)
        if wrong := [size for size in lengths.drop_null().unique().to_pylist() if size != dim]:
            row = first + pc.index(lengths, pa.scalar(wrong[0], lengths.type)).as_py()
            raise ValueError(f"{path}: row {row} has {wrong[0]} dimensions, the rows before it {dim}")
        values = chunk.drop_null().flatten()
        if values.null_count:
            values = pc.fill_null(values, float("nan"))
        z = values.to_numpy(zero_copy_only=False).reshape(-1, dim)
        if chunk.null_count:
            whole = np.full((len(chunk), dim), np.nan, z.dtype)
            whole[pc.is_valid(chunk).to_numpy(zero_copy_only=False)] = z
            z = whole
        parts.append(z)
        first += len(chunk)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
