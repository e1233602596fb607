"""The embedding formats, by suffix. Their modules are imported when a file is opened: pyarrow is large."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clip_tca.core.remote import Location
    from clip_tca.datasets.formats.arrays import ArrayFile
    from clip_tca.datasets.formats.base import Shard

ARRAYS = {".npy": "npy.NpyFile", ".npz": "npz.NpzFile", ".safetensors": "safetensors.SafetensorsFile"}
"""Files of named arrays: subclasses of :class:`clip_tca.datasets.formats.arrays.ArrayFile`."""

TABLES = {
    ".parquet": "parquet.ParquetShard",
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow.ArrowShard"),
    ".tar": "webdataset.TarShard",
}
"""Tables with a list column: subclasses of :class:`clip_tca.datasets.formats.columns.TableShard`."""

FORMATS = {**ARRAYS, **TABLES}


def open_arrays(path: Location) -> ArrayFile[Any]:
    """Read the headers of a file of named arrays."""
    file: ArrayFile[Any] = _load(ARRAYS[path.suffix.lower()])(path)
    return file


def open_shard(path: Location, column: str | None = None) -> Shard:
    """Read the header of a file and choose its array, tensor or column of embeddings; None looks for usual names."""
    if path.suffix.lower() in ARRAYS:
        from clip_tca.datasets.formats.arrays import ArrayShard

        return ArrayShard(open_arrays(path), column)
    shard: Shard = _load(TABLES[path.suffix.lower()])(path, column)
    return shard


def _load(name: str) -> Any:
    module, attribute = name.split(".")
    return getattr(import_module(f"{__package__}.{module}"), attribute)
