"""Embeddings of a data set on the hub, streamed: nothing is downloaded whole, every pass streams again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clip_tca.bulk.shards import ShardedEmbeddings, check_agreement
from clip_tca.core.checks import one_line
from clip_tca.core.hub_access import hub_address, hub_reachable
from clip_tca.datasets.formats.base import ROWS, Target
from clip_tca.datasets.formats.columns import TableShard, regrouped


class HubShard(TableShard):
    """One of the files of a streamed data set; its output is a Parquet file."""

    def __init__(self, source: Any, number: int, hub_id: str, column: str | None) -> None:
        """Read the first row, for the schema."""
        self._source, where = source.with_format("arrow"), f"{hub_id}, shard {number}"
        self._head: Any = next(iter(self._source.iter(batch_size=1)), None)
        if self._head is None:
            raise ValueError(f"{where}: no rows")
        super().__init__(Path(f"{number:05d}.parquet"), column, where)

    def stamp(self) -> None:
        """None: what a name on the hub stands for may change."""

    def _open(self) -> tuple[pa.Schema, None]:
        return self._head.schema, None

    def _heads(self) -> Iterator[pa.RecordBatch]:
        yield from self._head.to_batches()
        yield from self._regrouped(ROWS)

    def _regrouped(self, rows: int) -> Iterator[pa.RecordBatch]:
        yield from regrouped(self._batches(rows), rows)  # what fails here is the network, not a file

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        return (batch for table in self._source.iter(batch_size=rows) for batch in table.to_batches())

    def _writer(self, target: Target, schema: pa.Schema) -> Any:
        return pq.ParquetWriter(target.path, schema)


def open_hub(
    hub_id: str, revision: str | None = None, split: str = "train", column: str | None = None
) -> ShardedEmbeddings:
    """The shards of a split of ``owner/name``, in order; ``revision`` is a commit or tag, ``column`` as for files."""
    import datasets

    datasets.disable_progress_bars()
    try:
        if not hub_reachable():
            raise ConnectionError(f"{hub_address()} can't be reached")
        source = datasets.load_dataset(hub_id, revision=revision, split=split, streaming=True)
        parts = [source.shard(source.num_shards, i) for i in range(source.num_shards)]
        shards = [HubShard(part, i, hub_id, column) for i, part in enumerate(parts)]
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(hub_id):  # one of ours, about its content
            raise
        reason = one_line(error)
        raise ValueError(
            f"{hub_id}: could not be streamed ({reason}); check the name, the split and the network"
        ) from error
    check_agreement(shards)
    return ShardedEmbeddings(list(shards), single=False)
