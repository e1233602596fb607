"""Embeddings of a data set on the hub, streamed: nothing is downloaded whole, every pass streams again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clip_tca.bulk.arrays import pick
from clip_tca.bulk.block import ROWS, Block
from clip_tca.bulk.columns import block, dimension, list_columns, regrouped
from clip_tca.bulk.shards import Shelf, check_agreement
from clip_tca.core.hub_access import go_offline_if_unreachable


class HubShard:
    """One of the files of a streamed data set."""

    splittable = False
    rows: int | None = None
    stream = False

    def __init__(self, source: Any, number: int, hub_id: str, column: str | None) -> None:
        """Look at the first rows, for the schema."""
        self.path = Path(f"{number:05d}.parquet")
        self._source, self._where = source.with_format("arrow"), f"{hub_id}, shard {number}"
        head = next(iter(self._source.iter(batch_size=1)), None)
        if head is None:
            raise ValueError(f"{self._where}: no rows")
        self.schema: pa.Schema = head.schema
        self.name = pick(Path(hub_id), list_columns(self.schema), column, "list column of floats")
        self.dtype: np.dtype[Any] = np.dtype(self.schema.field(self.name).type.value_type.to_pandas_dtype())
        tables = chain([head], self._source.iter(batch_size=ROWS))
        self.dim: int | None = dimension((table.column(self.name) for table in tables), self._where)

    def blocks(self, start: int, stop: int, rows: int = ROWS) -> Iterator[Block]:
        """All rows, ``rows`` at a time."""
        batches = (part for table in self._source.iter(batch_size=rows) for part in table.to_batches())
        first = 0
        for batch in regrouped(batches, rows):
            yield block(batch, self.name, self.dim, self._where, first)
            first += len(batch)


def open_hub(hub_id: str, revision: str | None = None, split: str = "train", column: str | None = None) -> Shelf:
    """The shards of a split, in order.

    Args:
        hub_id: ``owner/name``.
        revision: Commit or tag.
        split: Of the data set.
        column: List column with the embeddings; None looks for the usual names.
    """
    go_offline_if_unreachable()
    import datasets

    datasets.disable_progress_bars()
    try:
        source = datasets.load_dataset(hub_id, revision=revision, split=split, streaming=True)
        parts = [source.shard(source.num_shards, i) for i in range(source.num_shards)]
        shards = [HubShard(part, i, hub_id, column) for i, part in enumerate(parts)]
    except ValueError as error:
        if str(error).startswith((hub_id, str(Path(hub_id)))):
            raise
        raise _unreachable(hub_id, error) from None
    except Exception as error:
        raise _unreachable(hub_id, error) from error
    check_agreement(shards)
    return Shelf(list(shards), single=False)


def _unreachable(hub_id: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ValueError(f"{hub_id}: could not be streamed ({reason}); check the name, the split and the network")
