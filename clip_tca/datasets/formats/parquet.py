"""``.parquet`` files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clip_tca.core.remote import Location
from clip_tca.datasets.formats.base import LONGEST_ROW, Target
from clip_tca.datasets.formats.columns import TableShard


class ParquetShard(TableShard):
    """A Parquet file."""

    def _open(self) -> tuple[pa.Schema, int]:
        with open_parquet(self.path) as file:
            _check_runs(file.metadata)
            return file.schema_arrow, file.metadata.num_rows

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        with open_parquet(self.path) as file:
            yield from file.iter_batches(batch_size=rows)

    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        return pq.ParquetWriter(target.path, schema)


@contextmanager
def open_parquet(path: Location) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``."""
    if isinstance(path, Path):
        with pq.ParquetFile(path) as file:
            yield file
    else:
        with path.open() as source, pq.ParquetFile(source) as file:
            yield file


def _check_runs(metadata: Any) -> None:
    """Refuse rows far too long: runs of one number take no room in a file, and a kilobyte could fill the memory.

    Only groups that are small for their rows are looked at: pyarrow ends the process where it is asked for the columns
    of some damaged footers (it does not catch its own exception there).
    """
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if group.total_byte_size < 1024 + 64 * group.num_rows:
            most = max((group.column(i).num_values for i in range(group.num_columns)), default=0)
            if most > LONGEST_ROW * max(group.num_rows, 1):
                raise OSError(f"{most} numbers in {group.num_rows} rows; at most {LONGEST_ROW} in each are allowed")
