"""Files of embeddings by suffix. Their readers are imported when a file is opened: torch and pyarrow are large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from clip_tca.core.remote import Location
    from clip_tca.data.arrays import ArrayFile
    from clip_tca.data.shards import Shard

Kind = Literal["embeddings", "labels", "scores"]
KINDS: tuple[Kind, ...] = ("embeddings", "labels", "scores")
"""What can be written: adapted embeddings, predicted classes, and the probability of each predicted class."""

ARRAYS = (".npy", ".npz", ".safetensors")
TORCH = (".pt", ".pth")
"""Files of ``torch.save``, which are only read, and as a whole."""

TABLES = (".parquet", ".arrow", ".feather", ".ipc")
FORMATS = (*ARRAYS, *TABLES)  # files that are read in blocks of rows, and written


def open_arrays(path: Location) -> ArrayFile:
    """Read the headers of a file of named arrays, of :data:`ARRAYS` or :data:`TORCH`."""
    from clip_tca.data.arrays import FILES

    return FILES[path.suffix.lower()](path)


def open_shard(path: Location, column: str | None = None) -> Shard:
    """Read the header of a file and choose its array, tensor or column of embeddings; None looks for usual names."""
    if path.suffix.lower() in (*ARRAYS, *TORCH):
        from clip_tca.data.arrays import ArrayShard

        return ArrayShard(open_arrays(path), column)
    from clip_tca.data.tables import TableShard

    return TableShard(path, column)
