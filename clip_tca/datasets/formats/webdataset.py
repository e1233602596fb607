"""webdataset shards: ``.tar`` files with a member ``KEY.npy``, one embedding, for every sample; keys become ids.

The key is the name up to the first dot after the last slash, as webdataset has it, and the rest is the member's kind:
``000017.npy`` is of kind ``npy``, ``000017.img_emb.npy`` of kind ``img_emb.npy``. The output is a Parquet file with the
columns ``id`` and ``embedding``; other members are not copied.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clip_tca.core.remote import Location
from clip_tca.datasets.formats import base
from clip_tca.datasets.formats.base import LONGEST_ROW, ROWS, Target
from clip_tca.datasets.formats.columns import TableShard
from clip_tca.datasets.formats.npy import read_header

ID, EMBEDDING = "id", "embedding"
MOST_BYTES = 8 * LONGEST_ROW + 4096
"""A member of more bytes than this is not one embedding."""


class TarShard(TableShard):
    """A tar file of single embeddings. How many there are is known at its end only."""

    def __init__(self, path: Location, column: str | None = None) -> None:
        """Read the first sample; ``column`` is the kind of member that is the embedding, such as ``img_emb.npy``."""
        self.source = path
        self.kind = self._choose(column)
        super().__init__(Path(f"{path.stem}.parquet"), EMBEDDING, str(path))

    def sources(self) -> list[Location]:
        """The tar file."""
        return [self.source]

    def stamp(self) -> Any:
        """Also the kind of the members that are read."""
        return [self.kind, *super().stamp()]

    def _choose(self, column: str | None) -> str:
        """The kind of member that holds the embeddings: the one given, or the only one of the first sample with any."""
        sample: str | None = None
        kinds: list[str] = []
        for key, kind, _ in self._members(read=False):
            if kinds and key != sample:
                break
            sample = key
            if kind.endswith("npy"):
                kinds.append(kind)
        if not kinds:
            raise ValueError(f"{self.source}: no .npy member in it; each sample needs one embedding, KEY.npy")
        return base.pick_name(self.source, kinds, column, "member")

    def _open(self) -> tuple[pa.Schema, None]:
        (z,) = (z for _, z in islice(self._samples(), 1))
        value = pa.from_numpy_dtype(z.dtype)
        return pa.schema([(ID, pa.string()), (EMBEDDING, pa.list_(value, len(z)))]), None

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        samples = self._samples()
        list_type = self.schema.field(EMBEDDING).type
        while part := list(islice(samples, min(rows, ROWS))):
            for key, z in part:
                if z.dtype != self.dtype or len(z) != list_type.list_size:
                    expected = f"{list_type.list_size} of {self.dtype}"
                    raise ValueError(
                        f"{self.source}: {key}.{self.kind} has {len(z)} numbers of {z.dtype}, the first one {expected}"
                    )
            values = pa.array(np.concatenate([z for _, z in part]))
            lists = pa.FixedSizeListArray.from_arrays(values, type=list_type)
            yield pa.RecordBatch.from_arrays([pa.array([key for key, _ in part]), lists], schema=self.schema)

    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        return pq.ParquetWriter(target.path, schema)

    def _samples(self) -> Iterator[tuple[str, np.ndarray]]:
        """Key and embedding ``(d,)`` of every sample."""
        for key, kind, content in self._members():
            if kind == self.kind:
                yield key, self._embedding(f"{key}.{kind}", content)

    def _embedding(self, name: str, content: bytes) -> np.ndarray:
        try:
            shape, dtype, _ = read_header(file := io.BytesIO(content))
        except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
            raise base.damaged(self.source, f"{name}: {error}") from None
        count = math.prod(shape)
        if not shape or count < 1 or count != max(shape) or dtype.kind != "f" or dtype.itemsize > 8:
            raise ValueError(f"{self.source}: {name} has shape {shape} of {dtype}; one embedding (d,) is needed")
        if len(values := content[file.tell() :]) < count * dtype.itemsize:
            raise base.damaged(self.source, f"{name}: {len(values)} bytes of {count * dtype.itemsize}")
        return np.frombuffer(values, dtype, count).astype(dtype.newbyteorder("="), copy=False)

    def _members(self, read: bool = True) -> Iterator[tuple[str, str, bytes]]:
        """Key, kind and content of the ``.npy`` members, in order; without reading, of all members and no content."""
        try:
            with self.source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    folder, slash, name = member.name.rpartition("/")
                    key, _, kind = name.partition(".")
                    if not member.isfile() or not key or (read and kind != self.kind):
                        continue
                    if read and member.size > MOST_BYTES:
                        raise ValueError(f"{self.source}: {member.name} has {member.size} bytes; it is no embedding")
                    content = archive.extractfile(member).read() if read else b""  # type: ignore[union-attr]
                    yield f"{folder}{slash}{key}", kind, content
                self._check_end(file, archive.offset)
        except (tarfile.TarError, EOFError, OverflowError, UnicodeError, OSError) as error:
            if isinstance(error, OSError) and error.filename is not None:  # it could not be opened at all
                raise
            raise base.damaged(self.source, error) from None

    def _check_end(self, file: IO[bytes], offset: int) -> None:
        """Refuse an archive without its end mark: Python takes one that was cut, or a damaged header, for the end."""
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError(f"no end of the archive at byte {offset}")
