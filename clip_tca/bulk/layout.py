"""Which file every result goes to: the names and formats of the input, below a folder or in one file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clip_tca.bulk.block import Kind
from clip_tca.bulk.shards import FORMATS, Shard, Shelf
from clip_tca.bulk.sinks import NpySink, PackedSink, Sink, TableSink, check_columns


@dataclass(frozen=True)
class Layout:
    """Output of a shelf.

    Attributes:
        shelf: What is read.
        kinds: What is written.
        dtype: Of embeddings that are written.
        single: Whether everything goes into one file.
    """

    shelf: Shelf
    kinds: tuple[Kind, ...]
    dtype: np.dtype[Any]
    single: bool

    @property
    def dtypes(self) -> dict[Kind, np.dtype[Any]]:
        """Of every kind."""
        every: dict[Kind, np.dtype[Any]] = {
            "embeddings": self.dtype.newbyteorder("<"),
            "labels": np.dtype("<i8"),
            "scores": np.dtype("<f4"),
        }
        return {kind: every[kind] for kind in self.kinds}

    def row_bytes(self) -> int:
        """Bytes that a row takes."""
        width = {"embeddings": self.shelf.dim, "labels": 1, "scores": 1}
        return sum(dtype.itemsize * width[kind] for kind, dtype in self.dtypes.items())

    def files(self, out: Path, shard: Shard) -> dict[Kind, Path]:
        """Where each kind of a shard goes; ``out`` is the file, or the folder."""
        if self.single:
            return dict.fromkeys(self.kinds, out)
        apart = len(self.kinds) > 1 and shard.path.suffix.lower() == ".npy"
        return {kind: out / kind / shard.path.name if apart else out / shard.path.name for kind in self.kinds}

    def sink(self, out: Path, shard: Any, start: int = 0, rows: int | None = None) -> Sink:
        """To write a shard, or the rows from ``start`` on of one that has ``rows`` in all."""
        files = self.files(out, shard)
        for path in files.values():
            path.parent.mkdir(exist_ok=True)  # not what is above: it is gone if the run has failed elsewhere
        path, suffix = next(iter(files.values())), shard.path.suffix.lower()
        if suffix == ".npy":
            return NpySink(files, self.dtypes, self.shelf.dim, start, rows)
        if suffix in (".npz", ".safetensors"):
            names: dict[Kind, str] = {"embeddings": shard.name, "labels": "labels", "scores": "scores"}
            return PackedSink(path, {kind: names[kind] for kind in self.kinds}, self.dtypes, self.shelf.dim)
        return TableSink(path, shard.schema, shard.name, self.dtypes, getattr(shard, "stream", False))


def lay_out(shelf: Shelf, target: Path, kinds: tuple[Kind, ...], dtype: np.dtype[Any]) -> Layout:
    """Check that ``target`` suits what is to be written there."""
    suffix = target.suffix.lower()
    named = suffix in FORMATS
    mine = shelf.shards[0].path.suffix.lower()
    if not mine and not named:  # rows on a pipe
        return Layout(shelf, kinds, dtype, True)
    if named and not shelf.single:
        raise ValueError(f"output: {target} is one file, and there are shards to write; name a folder")
    if named and suffix != mine:
        kind = f"{mine} file" if mine else "file of rows, without such a suffix"
        raise ValueError(f"output: {target}; the output has the format of the input: name a {kind}, or a folder")
    if named and suffix == ".npy" and len(kinds) > 1:
        raise ValueError(
            f"output: {target} can hold one array, not {' and '.join(kinds)}; name a folder, or write one of them"
        )
    if len({shard.path.name for shard in shelf.shards}) < len(shelf.shards):
        raise ValueError("embeddings: two shards have the same file name, and so would their outputs; rename one")
    for shard in shelf.shards:
        check_columns(shard, kinds)
    where = Path(os.path.realpath(target))
    if any(where in (path, path.parent) for path in (Path(os.path.realpath(shard.path)) for shard in shelf.shards)):
        raise ValueError(f"output: {target} is the input; choose another name")
    return Layout(shelf, kinds, dtype, named)
