"""Tables with a list column of embeddings: Parquet, Arrow IPC (file or stream), and webdataset's tar files.

``pyarrow.dataset`` reads no range of rows and no Arrow stream; row groups and record batches are read by number here.
Columns beside the embeddings are carried through as they came.
"""

from __future__ import annotations

import io
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clip_tca.core.remote import Location
from clip_tca.datasets.formats import base
from clip_tca.datasets.formats.base import LONGEST_ROW, ROWS, Block, Result, Shard, Sink, Target, reading
from clip_tca.datasets.formats.registry import Kind

ADDED: dict[Kind, str] = {"labels": "tca_label", "scores": "tca_score"}
"""Columns that are added to a table."""

ID, EMBEDDING = "id", "embedding"
"""Columns of the table that is written for a tar file."""


class TableFile(ABC):
    """A file of a table: its schema, and its rows in groups of the sizes ``lengths``."""

    def __init__(self, path: Location) -> None:
        """Read schema and lengths; ValueError if the file is damaged, or if two columns have one name."""
        self.path = path
        with reading(path):
            self.schema, self.lengths = self._open()
            names = self.schema.names
            if min(self.lengths, default=0) < 0:
                raise OSError(f"a group of {min(self.lengths)} rows")
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: two columns have the same name; rename one of them")
        self.rows = sum(self.lengths)

    def tables(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[pa.Table]:
        """Rows ``start`` to ``stop`` (None: the end), ``rows`` at a time, from the groups that have them."""
        left = (self.rows if stop is None else min(stop, self.rows)) - start
        if left <= 0:
            return
        ends = np.cumsum(self.lengths)
        group, last = (int(number) for number in np.searchsorted(ends, (start, start + left - 1), side="right"))
        skip = start - int(ends[group]) + self.lengths[group]
        held: list[pa.RecordBatch] = []
        have = 0
        with reading(self.path):
            for batch in self._batches(range(group, last + 1), rows):
                held.append(batch.slice(min(skip, len(batch))))
                skip -= min(skip, len(batch))
                have += len(held[-1])
                while left and have >= (size := min(rows, left)):
                    table = pa.Table.from_batches(held)
                    yield table.slice(0, size)
                    held, have, left = table.slice(size).to_batches(), have - size, left - size
            if left:
                raise EOFError(f"{left} rows are missing")

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, list[int]]:
        """Schema, and number of rows of each group."""

    @abstractmethod
    def _batches(self, groups: range, rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of these groups, in batches of any size, of about ``rows`` where that can be chosen."""

    @abstractmethod
    def writer(self, path: Path, schema: pa.Schema) -> Any:
        """A writer in the same format, with ``write_table`` and ``close``."""


class ParquetFile(TableFile):
    """A ``.parquet`` file."""

    def _open(self) -> tuple[pa.Schema, list[int]]:
        with self._file() as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            for group in groups:
                _check_runs(group)
            return file.schema_arrow, [group.num_rows for group in groups]

    def _batches(self, groups: range, rows: int) -> Iterator[pa.RecordBatch]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=rows, row_groups=list(groups))

    def writer(self, path: Path, schema: pa.Schema) -> Any:
        """A writer of Parquet."""
        return pq.ParquetWriter(path, schema)

    @contextmanager
    def _file(self) -> Iterator[Any]:
        with _opened(self.path) as source, pq.ParquetFile(source) as file:
            yield file


class ArrowFile(TableFile):
    """An Arrow IPC file (``.arrow``, ``.feather``, ``.ipc``); what is written has the same of its two formats."""

    stream = False

    def _open(self) -> tuple[pa.Schema, list[int]]:
        try:
            return self._lengths()
        except pa.ArrowInvalid:
            self.stream = True
            return self._lengths()

    def _lengths(self) -> tuple[pa.Schema, list[int]]:
        with self._reader(mapped=True) as reader:  # a map, of which only the heads of the batches are touched
            batches = reader if self.stream else map(reader.get_batch, range(reader.num_record_batches))
            return reader.schema, [len(batch) for batch in batches]

    def _batches(self, groups: range, rows: int) -> Iterator[pa.RecordBatch]:
        with self._reader() as reader:
            for number, batch in enumerate(reader) if self.stream else ((i, reader.get_batch(i)) for i in groups):
                if number in groups:
                    batch.validate(full=True)  # offsets that point beyond the end would be followed blindly
                    yield batch

    def writer(self, path: Path, schema: pa.Schema) -> Any:
        """A writer of Arrow IPC."""
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
    if group.total_byte_size < 1024 + 64 * group.num_rows:
        most = max((group.column(i).num_values for i in range(group.num_columns)), default=0)
        if most > LONGEST_ROW * max(group.num_rows, 1):
            raise OSError(f"{most} numbers in {group.num_rows} rows; at most {LONGEST_ROW} in each are allowed")


def open_table(path: Location) -> TableFile:
    """A table by its suffix."""
    return ParquetFile(path) if path.suffix.lower() == ".parquet" else ArrowFile(path)


class TableShard(Shard):
    """A table with a list column of embeddings."""

    def __init__(self, path: Location, column: str | None = None) -> None:
        """Choose the column; the first list in it gives the dimension."""
        self.path, self.where, self.file = path, str(path), open_table(path)
        schema, self.rows = self.file.schema, self.file.rows
        kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
        fields = [field for field in schema if any(is_kind(field.type) for is_kind in kinds)]
        lists = [field.name for field in fields if pa.types.is_floating(field.type.value_type)]
        self.name = base.pick_name(path, lists, column, "list column of floats")
        with reading(path):
            list_type = schema.field(self.name).type
        self.dtype = np.dtype(list_type.value_type.to_pandas_dtype())
        self.dim = getattr(list_type, "list_size", None)
        if self.dim is None and self.rows:
            self.dim = self._dimension()

    def _dimension(self) -> int:
        """Length of the first list that is not missing; rows are read up to it."""
        for table in chain(self.file.tables(1, 0, 1), self.file.tables(ROWS, 1)):
            lengths = pc.list_value_length(table.column(self.name)).drop_null()
            if len(lengths) and lengths[0].as_py():
                return int(lengths[0].as_py())
        raise ValueError(f"{self.path}: every embedding in it is missing or empty; choose another column: --column")

    def blocks(self, rows: int = ROWS, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        for table in self.file.tables(rows, start, stop):
            z = matrix(table.column(self.name), self.dim or 0, self.where, start)
            yield Block(z, start, table.drop_columns(self.name))
            start += len(table)

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if a column that would be added exists already."""
        carried = [name for name in self.file.schema.names if name != self.name or "embeddings" in kinds]
        base.check_free(self.where, "a column", [ADDED[kind] for kind in kinds if kind in ADDED], carried)

    def sink(self, target: Target) -> Sink:
        """A writer in the same format."""
        return TableSink(self.file.schema, self.name, target, self.file.writer)


class TableSink:
    """A table: columns that came along, adapted embeddings in their old place, then labels and scores."""

    def __init__(self, schema: pa.Schema, name: str | None, target: Target, open_writer: Any) -> None:
        """``schema`` is the input's, ``name`` its column of embeddings; ``open_writer`` takes a path and a schema."""
        self.dtypes = target.dtypes
        self.kinds = {ADDED.get(kind, name): kind for kind in target.dtypes}
        fields = []
        for field in schema:
            if field.name in self.kinds:
                value = pa.from_numpy_dtype(target.dtypes["embeddings"])
                large = pa.types.is_large_list(field.type)
                kind = pa.large_list(value) if large else pa.list_(value, getattr(field.type, "list_size", -1))
                field = field.with_type(kind)
            if field.name in self.kinds or field.name != name:
                fields.append(field)
        added = [(ADDED[kind], pa.from_numpy_dtype(dtype)) for kind, dtype in target.dtypes.items() if kind in ADDED]
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"huggingface"}  # old types
        self.schema = pa.schema([*fields, *(pa.field(*column) for column in added)], metadata or None)
        self.writer = open_writer(target.path, self.schema)

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        columns = []
        for field in self.schema:
            kind = self.kinds.get(field.name)
            if kind is None:
                columns.append(result.others.column(field.name))  # type: ignore[union-attr]
            elif kind == "embeddings":
                z = np.ascontiguousarray(result.arrays[kind], self.dtypes[kind])
                lists = pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), z.shape[1])
                columns.append(lists.cast(field.type))
            else:
                columns.append(pa.array(result.arrays[kind], field.type))
        self.writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()


def matrix(column: pa.ChunkedArray, dim: int, where: str, first: int) -> np.ndarray:
    """A list column as ``(n, d)``; a missing list, or a missing number in one, is a row of NaN or has one."""
    parts = []
    for chunk in column.chunks:
        lengths = pc.list_value_length(chunk)
        if wrong := [size for size in lengths.drop_null().unique().to_pylist() if size != dim]:
            row = first + pc.index(lengths, pa.scalar(wrong[0], lengths.type)).as_py()
            raise ValueError(f"{where}: row {row} has {wrong[0]} dimensions, the rows before it {dim}")
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


class TarShard(Shard):
    """A webdataset shard: a ``.tar`` file with a member ``KEY.npy``, one embedding, for every sample.

    The key is the name up to the first dot after the last slash, as webdataset has it, and the rest is the member's
    kind: ``000017.npy`` is of kind ``npy``, ``000017.img_emb.npy`` of kind ``img_emb.npy``. The output is a Parquet
    file with the columns ``id`` (the keys) and ``embedding``; other members are not copied.
    """

    def __init__(self, path: Location, column: str | None = None) -> None:
        """Find all members of the kind ``column``, such as ``img_emb.npy``; None: the only one of the first sample."""
        self.source, self.path, self.where = path, Path(f"{path.stem}.parquet"), str(path)
        with reading(path):
            members = list(self._scan())
        if not members:
            raise ValueError(f"{path}: no .npy member in it; each sample needs one embedding, KEY.npy")
        first = [kind for key, kind, _, _ in members if key == members[0][0]]
        self.name = base.pick_name(path, first, column, "member")
        self.members = [(key, offset, size) for key, kind, offset, size in members if kind == self.name]
        self.rows = len(self.members)
        with path.open("rb") as file:
            z = self._embedding(file, *self.members[0])
        self.dim, self.dtype = len(z), z.dtype

    def sources(self) -> list[Location]:
        """The tar file."""
        return [self.source]

    def blocks(self, rows: int = ROWS, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Rows ``start`` to ``stop``, ``rows`` at a time."""
        members = self.members[:stop]
        with self.source.open("rb") as file:
            for first in range(start, len(members), rows):
                keys = [key for key, _, _ in members[first : first + rows]]
                parts = [self._embedding(file, *member) for member in members[first : first + rows]]
                for key, z in zip(keys, parts, strict=True):
                    if (len(z), z.dtype) != (self.dim, self.dtype):
                        found, expected = f"{len(z)} numbers of {z.dtype}", f"{self.dim} of {self.dtype}"
                        raise ValueError(f"{self.where}: {key}.{self.name} has {found}, the first one {expected}")
                yield Block(np.stack(parts), first, pa.table({ID: pa.array(keys, pa.string())}))

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """The columns of the output are known, and no other has such a name."""

    def sink(self, target: Target) -> Sink:
        """A writer of Parquet."""
        schema = pa.schema([(ID, pa.string()), (EMBEDDING, pa.list_(pa.from_numpy_dtype(self.dtype), self.dim))])
        return TableSink(schema, EMBEDDING, target, pq.ParquetWriter)

    def _scan(self) -> Iterator[tuple[str, str, int, int]]:
        """Key, kind, place and size of every ``.npy`` member."""
        with self.source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                folder, slash, name = member.name.rpartition("/")
                key, _, kind = name.partition(".")
                if member.isfile() and key and kind.endswith("npy"):
                    yield f"{folder}{slash}{key}", kind, member.offset_data, member.size
            file.seek(archive.offset)  # Python takes an archive that was cut, or a damaged header, for the end
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError(f"no end of the archive at byte {archive.offset}")

    def _embedding(self, file: IO[bytes], key: str, offset: int, size: int) -> np.ndarray:
        """One embedding ``(d,)``."""
        name = f"{key}.{self.name}"
        if size > 8 * LONGEST_ROW + 4096:
            raise ValueError(f"{self.where}: {name} has {size} bytes; it is no embedding")
        try:
            file.seek(offset)
            z = np.lib.format.read_array(io.BytesIO(file.read(size)), allow_pickle=False)
        except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
            raise base.damaged(self.where, f"{name}: {error}") from None
        if z.size < 1 or z.size != max(z.shape, default=0) or z.dtype.kind != "f" or z.dtype.itemsize > 8:
            raise ValueError(f"{self.where}: {name} has shape {z.shape} of {z.dtype}; one embedding (d,) is needed")
        return z.reshape(-1).astype(z.dtype.newbyteorder("="), copy=False)
