"""Shards that are tables: ``.parquet`` and Arrow (``.arrow``, ``.feather``, ``.ipc``), embeddings in a list column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clip_tca.bulk.arrays import damaged, pick
from clip_tca.bulk.block import LARGEST, ROWS, Block

_FAULTS = (pa.ArrowInvalid, pa.ArrowException, OSError)


def list_columns(schema: pa.Schema) -> list[str]:
    """Columns that hold lists of floats."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return [f.name for f in schema if any(k(f.type) for k in kinds) and pa.types.is_floating(f.type.value_type)]


def matrix(column: pa.Array, dim: int | None, where: str, first: int) -> np.ndarray:
    """A list column as ``(n, d)``; a missing list, or a missing number in one, is a row of NaN or has one."""
    lengths = pc.list_value_length(column)
    sizes = lengths.drop_null().unique().to_pylist()
    wanted = dim if dim is not None else (sizes[0] if sizes else 0)
    if wrong := [size for size in sizes if size != wanted]:
        row = first + pc.index(lengths, pa.scalar(wrong[0], lengths.type)).as_py()
        raise ValueError(f"{where}: row {row} has {wrong[0]} dimensions, the rows before it {wanted}")
    dtype = column.type.value_type.to_pandas_dtype()
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values = column.drop_null().flatten()
    flat = (pc.fill_null(values, float("nan")) if values.null_count else values).to_numpy(zero_copy_only=False)
    if there.all():
        return np.asarray(flat, dtype).reshape(-1, wanted)
    z: np.ndarray = np.full((len(column), wanted), np.nan, dtype)
    z[there] = flat.reshape(-1, wanted)
    return z


def dimension(columns: Iterable[pa.Array], where: str) -> int:
    """Length of the first list that is there; ``columns`` are looked at up to it."""
    for column in columns:
        if len(lengths := pc.list_value_length(column).drop_null()):
            if lengths[0].as_py():
                return int(lengths[0].as_py())
            raise ValueError(f"{where}: its first embedding is an empty list; at least one dimension is needed")
    raise ValueError(f"{where}: every embedding in it is missing; leave it out, or choose another column: --column")


class Table(ABC):
    """What both kinds share: which column, and batches into blocks."""

    splittable = False

    def __init__(self, path: Path, column: str | None = None) -> None:
        """Read the schema, and the first row for the dimension."""
        self.path = path
        try:
            self.schema, self.rows = self._open()
            names = self.schema.names
        except (*_FAULTS, UnicodeError) as error:
            raise damaged(path, error) from None
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: two columns have the same name; rename one of them")
        self.name = pick(path, list_columns(self.schema), column, "list column of floats")
        if self.schema.get_field_index(self.name) < 0:
            raise damaged(path, f"its column {self.name!r} can't be found")
        kind = self.schema.field(self.name).type
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        self.dim: int | None = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        if self.dim is None:
            self.dim = dimension((batch.column(self.name) for batch in self._heads()), str(path)) if self.rows else None

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """All rows (``start`` is 0 and ``stop`` their number), ``rows`` at a time."""
        first = 0
        for batch in self._read(rows):
            yield block(batch, self.name, self.dim, str(self.path), first)
            first += len(batch)

    def _heads(self) -> Iterator[pa.RecordBatch]:
        """The first row; after it, all of them."""
        yield from islice(self._read(1), 1)
        yield from self._read(ROWS)

    def _read(self, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from regrouped(self._batches(rows), rows)
        except _FAULTS as error:
            raise damaged(self.path, error) from None

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int]:
        """Schema and number of rows."""

    @abstractmethod
    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of any size."""


def block(batch: pa.RecordBatch, name: str, dim: int | None, where: str, first: int) -> Block:
    """A batch with its list column as a matrix, and the other columns beside it."""
    others = batch.select([column for column in batch.schema.names if column != name])
    return Block(matrix(batch.column(name), dim, where, first), first, others)


def regrouped(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``rows``, the last one (and any that would be too large) smaller."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        start = 0
        while start < len(batch):
            part = batch.slice(start, rows - sum(map(len, held)))
            held.append(part)
            start += len(part)
            if sum(map(len, held)) == rows:
                yield from _joined(held)
                held = []
    if held:
        yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch; more of them where a column is too large for one (2 GB of text)."""
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class Parquet(Table):
    """A Parquet file."""

    def _open(self) -> tuple[pa.Schema, int]:
        with pq.ParquetFile(self.path) as file:
            _check_runs(file.metadata)
            return file.schema_arrow, file.metadata.num_rows

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.path) as file:
            yield from file.iter_batches(batch_size=rows)


def _check_runs(metadata: Any) -> None:
    """Refuse rows far too long: runs of one number take no room in a file, and a kilobyte could fill the memory.

    Only groups that are small for their rows are looked at: pyarrow ends the process where it is asked for the columns
    of some damaged footers (it does not catch its own exception there).
    """
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if group.total_byte_size < 1024 + 64 * group.num_rows:
            most = max((group.column(i).num_values for i in range(group.num_columns)), default=0)
            if most > LARGEST * max(group.num_rows, 1):
                raise OSError(f"{most} numbers in {group.num_rows} rows; at most {LARGEST} in each are allowed")


class Arrow(Table):
    """An Arrow file, or a stream of record batches in a file."""

    stream = False

    def _open(self) -> tuple[pa.Schema, int]:
        try:
            with self._reader() as reader:
                return reader.schema, sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            self.stream = True
            with self._reader() as reader:
                return reader.schema, sum(batch.num_rows for batch in reader)

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        with self._reader() as reader:
            batches = reader if self.stream else map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                batch.validate(full=True)  # offsets that point beyond the file would be followed blindly
                yield batch

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        kind = pa.ipc.open_stream if self.stream else pa.ipc.open_file
        with pa.OSFile(str(self.path)) as source, kind(source) as reader:
            yield reader
