"""Arrow IPC files (``.arrow``, ``.feather``, ``.ipc``), in the file format or in the stream format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from clip_tca.datasets.formats.base import Target
from clip_tca.datasets.formats.columns import TableShard


class ArrowShard(TableShard):
    """An Arrow IPC file; what is written has the same of the two formats."""

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
            yield from validated(reader if self.stream else map(reader.get_batch, range(reader.num_record_batches)))

    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        return (pa.ipc.new_stream if self.stream else pa.ipc.new_file)(str(target.path), schema)

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        open_reader = pa.ipc.open_stream if self.stream else pa.ipc.open_file
        local = isinstance(self.path, Path)
        with pa.OSFile(str(self.path)) if local else self.path.open() as source, open_reader(source) as reader:
            yield reader


def validated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, checked: offsets that point beyond the end would be followed blindly."""
    for batch in batches:
        batch.validate(full=True)
        yield batch
