"""Where adapted rows go: a file in the format of the shard that they came from, written block after block."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from clip_tca.bulk.block import Kind, Result

HEAD = 128
"""Bytes before the rows of a ``.npy`` file of ours, however many rows it has."""

ADDED: dict[Kind, str] = {"labels": "tca_label", "scores": "tca_score"}
"""Columns that are added to a table."""


class Sink(Protocol):
    """Takes the rows of one shard."""

    def write(self, result: Result) -> None:
        """Append a block."""

    def close(self) -> None:
        """Finish the file."""


class ArrayFile:
    """A ``.npy`` file from row ``start`` on; several processes may each write a range of the same file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int | None, start: int = 0) -> None:
        """Open or create it; ``width`` None is a vector."""
        self.dtype, self.width, self.row = dtype, width, start
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.file: IO[bytes] = os.fdopen(handle, "r+b", buffering=0)
        self.file.seek(HEAD + start * dtype.itemsize * (width or 1))

    def write(self, values: np.ndarray) -> None:
        """Append rows."""
        left = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        while left:  # a raw write may stop early, at the edge of a full disk for one
            left = left[self.file.write(left) :]
        self.row += len(values)

    def close(self, rows: int | None = None) -> None:
        """Write the header, for ``rows`` rows in all (by default those up to here)."""
        rows = self.row if rows is None else rows
        shape = f"({rows},)" if self.width is None else f"({rows}, {self.width})"
        text = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        self.file.seek(0)
        self.file.write(
            b"\x93NUMPY\x01\x00" + (HEAD - 10).to_bytes(2, "little") + text.ljust(HEAD - 11).encode() + b"\n"
        )
        self.file.close()


class NpySink:
    """One ``.npy`` file for each kind."""

    def __init__(
        self,
        paths: dict[Kind, Path],
        dtypes: dict[Kind, np.dtype[Any]],
        dim: int,
        start: int = 0,
        rows: int | None = None,
    ) -> None:
        """Write from row ``start`` on, in files of ``rows`` rows (None: as many as there will be)."""
        self.rows = rows
        self.files = {
            kind: ArrayFile(path, dtypes[kind], dim if kind == "embeddings" else None, start)
            for kind, path in paths.items()
        }

    def write(self, result: Result) -> None:
        """Append a block."""
        for kind, file in self.files.items():
            file.write(result.arrays[kind])

    def close(self) -> None:
        """Finish the files."""
        for file in self.files.values():
            file.close(self.rows)


class PackedSink:
    """What ``.npz`` and ``.safetensors`` share: arrays are written apart and packed into one file at the end."""

    def __init__(self, path: Path, names: dict[Kind, str], dtypes: dict[Kind, np.dtype[Any]], dim: int) -> None:
        """``names`` are those of the arrays inside."""
        self.path, self.names = path, names
        self.parts = {kind: path.with_name(f".{path.name}.{kind}") for kind in names}
        self.sink = NpySink(self.parts, dtypes, dim)

    def write(self, result: Result) -> None:
        """Append a block."""
        self.sink.write(result)

    def close(self) -> None:
        """Pack, and remove the parts."""
        self.sink.close()
        if self.path.suffix.lower() == ".npz":
            with zipfile.ZipFile(self.path, "w", allowZip64=True) as archive:
                for kind, part in self.parts.items():  # without the time: a clock before 1980 would be an error
                    with (
                        part.open("rb") as source,
                        archive.open(f"{self.names[kind]}.npy", "w", force_zip64=True) as to,
                    ):
                        shutil.copyfileobj(source, to, 1 << 20)
        else:
            self._pack_tensors()
        for part in self.parts.values():
            part.unlink()

    def _pack_tensors(self) -> None:
        """The format of safetensors: length of the header, header as JSON, and the values of one tensor after another.

        (Its library writes only what is in memory.)
        """
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        codes = {"<f2": "F16", "<f4": "F32", "<i8": "I64"}
        end = 0
        for kind, file in self.sink.files.items():
            shape = [file.row] if file.width is None else [file.row, file.width]
            size = int(np.prod(shape)) * file.dtype.itemsize
            header[self.names[kind]] = {
                "dtype": codes[file.dtype.str],
                "shape": shape,
                "data_offsets": [end, end + size],
            }
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with self.path.open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for part in self.parts.values():
                with part.open("rb") as source:
                    source.seek(HEAD)
                    shutil.copyfileobj(source, target, 1 << 20)


class TableSink:
    """A Parquet or Arrow file: columns that came along, adapted embeddings in their old place, labels and scores."""

    def __init__(self, path: Path, schema: Any, name: str, dtypes: dict[Kind, np.dtype[Any]], stream: bool) -> None:
        """``schema`` is the input's, ``name`` its column of embeddings; ``stream`` writes Arrow's stream format."""
        import pyarrow as pa

        self.path, self.stream, self.dtypes = path, stream, dtypes
        self.new: dict[str, Kind] = {ADDED.get(kind, name): kind for kind in dtypes}
        fields = list(schema)
        place = schema.get_field_index(name)
        if "embeddings" in dtypes:
            fields[place] = pa.field(name, _list_type(fields[place].type, pa.from_numpy_dtype(dtypes["embeddings"])))
        else:
            del fields[place]
        fields += [pa.field(ADDED[kind], pa.from_numpy_dtype(dtypes[kind])) for kind in dtypes if kind in ADDED]
        kept = {key: value for key, value in (schema.metadata or {}).items() if key != b"huggingface"}  # column types
        self.schema = pa.schema(fields, kept or None)
        self.writer = self._open()

    def _open(self) -> Any:
        import pyarrow as pa

        if self.path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            return pq.ParquetWriter(self.path, self.schema)
        return (pa.ipc.new_stream if self.stream else pa.ipc.new_file)(str(self.path), self.schema)

    def write(self, result: Result) -> None:
        """Append a block."""
        import pyarrow as pa

        columns = []
        for field in self.schema:
            kind = self.new.get(field.name)
            if kind is None:
                columns.append(result.others.column(field.name))  # type: ignore[union-attr]
            elif kind == "embeddings":
                columns.append(_list_array(result.arrays[kind], self.dtypes[kind], field.type))
            else:
                columns.append(pa.array(result.arrays[kind], field.type))
        self.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()


def check_columns(shard: Any, kinds: tuple[Kind, ...]) -> None:
    """Refuse a file that has a column or an array of a name that is to be added."""
    table = hasattr(shard, "schema")
    names = shard.schema.names if table else [getattr(shard, "name", "")]
    carried = [name for name in names if name != getattr(shard, "name", "") or "embeddings" in kinds]
    added = [ADDED[kind] if table else kind for kind in kinds if kind in ADDED]
    if taken := [name for name in added if name in carried]:
        raise ValueError(f"{shard.path}: has {'a column' if table else 'an array'} {taken[0]!r} already; rename it")


def _list_type(kind: Any, value: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def _list_array(z: np.ndarray, dtype: np.dtype[Any], kind: Any) -> Any:
    import pyarrow as pa

    values = pa.array(np.ascontiguousarray(z, dtype).reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    large = pa.types.is_large_list(kind)
    offsets = pa.array(np.arange(0, z.size + 1, z.shape[1]), pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, type=kind)
