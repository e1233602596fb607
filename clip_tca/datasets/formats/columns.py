"""What tables share (Parquet, Arrow, the hub): embeddings in a list column, and columns that are carried along."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clip_tca.core.remote import Location
from clip_tca.datasets.formats import base
from clip_tca.datasets.formats.base import ROWS, Block, Result, Shard, Sink, Target
from clip_tca.datasets.formats.kinds import Kind

FAULTS = (pa.ArrowInvalid, pa.ArrowException, OSError)
"""What pyarrow raises for a file that is damaged."""

ADDED: dict[Kind, str] = {"labels": "tca_label", "scores": "tca_score"}
"""Columns that are added to a table."""


class TableShard(Shard):
    """A table with a list column of embeddings."""

    remedy = "copy or download it again"

    def __init__(self, path: Location, column: str | None = None, where: str | None = None) -> None:
        """Read the schema, and the first row for the dimension; error messages call the table ``where``."""
        self.path, self.where = path, where or str(path)
        try:
            self.schema, self.rows = self._open()
            names = self.schema.names
        except (*FAULTS, UnicodeError) as error:
            raise self._damaged(error) from None
        if len(set(names)) < len(names):
            raise ValueError(f"{self.where}: two columns have the same name; rename one of them")
        self.name = base.pick_name(self.where, list_columns(self.schema), column, "list column of floats")
        if self.schema.get_field_index(self.name) < 0:
            raise self._damaged(f"its column {self.name!r} can't be found")
        list_type = self.schema.field(self.name).type
        self.dtype = np.dtype(list_type.value_type.to_pandas_dtype())
        self.dim = list_type.list_size if pa.types.is_fixed_size_list(list_type) else None
        if self.dim is None and self.rows != 0:
            self.dim = dimension((batch.column(self.name) for batch in self._heads()), self.where)

    def blocks(self, rows: int = ROWS) -> Iterator[Block]:
        """All rows, ``rows`` at a time."""
        first = 0
        for batch in self._regrouped(rows):
            others = batch.select([name for name in batch.schema.names if name != self.name])
            yield Block(matrix(batch.column(self.name), self.dim, self.where, first), first, others)
            first += len(batch)

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if a column that would be added exists already."""
        carried = [name for name in self.schema.names if name != self.name or "embeddings" in kinds]
        base.check_free(self.where, "a column", [ADDED[kind] for kind in kinds if kind in ADDED], carried)

    def sink(self, target: Target) -> Sink:
        """A writer in the same format."""
        return TableSink(self.schema, self.name, target, self._writer)

    def _heads(self) -> Iterator[pa.RecordBatch]:
        """The first row; after it, all of them."""
        yield from islice(self._regrouped(1), 1)
        yield from self._regrouped(ROWS)

    def _regrouped(self, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from regrouped(self._batches(rows), rows)
        except FAULTS as error:
            raise self._damaged(error) from None

    def _damaged(self, reason: object) -> ValueError:
        return base.damaged(self.where, reason, self.remedy)

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int | None]:
        """Schema and number of rows; None if only the end will tell."""

    @abstractmethod
    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of any size."""

    @abstractmethod
    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        """A writer of record batches, with ``write_batch`` and ``close``."""


class TableSink:
    """A table: columns that came along, adapted embeddings in their old place, then labels and scores."""

    def __init__(
        self, schema: pa.Schema, name: str, target: Target, writer: Callable[[Target, pa.Schema], Any]
    ) -> None:
        """``schema`` is the input's, ``name`` its column of embeddings; ``writer`` opens a writer of record batches."""
        self.file, self.dtypes = target.file, target.dtypes
        dtypes = target.dtypes
        self.kinds: dict[str, Kind] = {ADDED.get(kind, name): kind for kind in dtypes}
        fields = list(schema)
        place = schema.get_field_index(name)
        if "embeddings" in dtypes:
            fields[place] = pa.field(name, _list_type(fields[place].type, pa.from_numpy_dtype(dtypes["embeddings"])))
        else:
            del fields[place]
        fields += [pa.field(ADDED[kind], pa.from_numpy_dtype(dtypes[kind])) for kind in dtypes if kind in ADDED]
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"huggingface"}  # old types
        self.schema = pa.schema(fields, metadata or None)
        self.writer = writer(target, self.schema)

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        columns = []
        for field in self.schema:
            kind = self.kinds.get(field.name)
            if kind is None:
                columns.append(result.others.column(field.name))  # type: ignore[union-attr]
            elif kind == "embeddings":
                columns.append(_list_array(result.arrays[kind], self.dtypes[kind], field.type))
            else:
                columns.append(pa.array(result.arrays[kind], field.type))
        self.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        if self.file is not None:
            self.file.flush()

    def close(self) -> dict[Path, int]:
        """Finish the file; one that came open stays open. No checksum."""
        self.writer.close()
        if self.file is not None:
            self.file.flush()
        return {}


def list_columns(schema: pa.Schema) -> list[str]:
    """Columns that hold lists of floats."""
    is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return [f.name for f in schema if any(test(f.type) for test in is_list) and pa.types.is_floating(f.type.value_type)]


def matrix(column: pa.Array, dim: int | None, where: str, first: int) -> np.ndarray:
    """A list column as ``(n, d)``; a missing list, or a missing number in one, is a row of NaN or has one."""
    lengths = pc.list_value_length(column)
    sizes = lengths.drop_null().unique().to_pylist()
    expected = dim if dim is not None else (sizes[0] if sizes else 0)
    if wrong := [size for size in sizes if size != expected]:
        row = first + pc.index(lengths, pa.scalar(wrong[0], lengths.type)).as_py()
        raise ValueError(f"{where}: row {row} has {wrong[0]} dimensions, the rows before it {expected}")
    dtype = column.type.value_type.to_pandas_dtype()
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values = column.drop_null().flatten()
    flat = (pc.fill_null(values, float("nan")) if values.null_count else values).to_numpy(zero_copy_only=False)
    if valid.all():
        return np.asarray(flat, dtype).reshape(-1, expected)
    z: np.ndarray = np.full((len(column), expected), np.nan, dtype)
    z[valid] = flat.reshape(-1, expected)
    return z


def dimension(columns: Iterable[pa.Array], where: str) -> int:
    """Length of the first list that is not missing; ``columns`` are read up to it."""
    for column in columns:
        if len(lengths := pc.list_value_length(column).drop_null()):
            if lengths[0].as_py():
                return int(lengths[0].as_py())
            raise ValueError(f"{where}: its first embedding is an empty list; at least one dimension is needed")
    raise ValueError(f"{where}: every embedding in it is missing; leave it out, or choose another column: --column")


def regrouped(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``rows``, each as soon as it is complete; the last is smaller.

    So is any that would be too large for one batch.
    """
    parts: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        start = 0
        while start < len(batch):
            part = batch.slice(start, missing)
            parts.append(part)
            start, missing = start + len(part), missing - len(part)
            if not missing:
                yield from _joined(parts)
                parts, missing = [], rows
    if parts:
        yield from _joined(parts)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch; more of them where a column is too large for one (2 GB of text)."""
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _list_type(list_type: Any, value_type: Any) -> Any:
    if pa.types.is_fixed_size_list(list_type):
        return pa.list_(value_type, list_type.list_size)
    return pa.large_list(value_type) if pa.types.is_large_list(list_type) else pa.list_(value_type)


def _list_array(z: np.ndarray, dtype: np.dtype[Any], list_type: Any) -> Any:
    values = pa.array(np.ascontiguousarray(z, dtype).reshape(-1))
    if pa.types.is_fixed_size_list(list_type):
        return pa.FixedSizeListArray.from_arrays(values, type=list_type)
    large = pa.types.is_large_list(list_type)
    offsets = pa.array(np.arange(0, z.size + 1, z.shape[1]), pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, type=list_type)
