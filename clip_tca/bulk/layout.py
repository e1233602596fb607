"""Which file every result goes to: the names and formats of the input, below a folder or in one file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from clip_tca.bulk.shards import ShardedEmbeddings
from clip_tca.core.remote import Location, RemotePath
from clip_tca.datasets.formats.base import STANDARD, Result, Shard, Sink, Target
from clip_tca.datasets.formats.kinds import Kind
from clip_tca.datasets.formats.registry import FORMATS

STREAMED = (".arrow", ".ipc")
"""Suffixes under which an Arrow IPC stream is found; a ``.feather`` file has the file format."""


@dataclass(frozen=True)
class Layout:
    """Output files for sharded embeddings: one for everything if ``single``. Embeddings are written as ``dtype``.

    Labels are written as ``names``, if there are any.
    """

    source: ShardedEmbeddings
    kinds: tuple[Kind, ...]
    dtype: np.dtype[Any]
    single: bool
    names: tuple[str, ...] | None = None

    @property
    def dtypes(self) -> dict[Kind, np.dtype[Any]]:
        """Dtype of every kind that is written."""
        labels = np.dtype("<i8") if self.names is None else np.dtype(f"<U{max(map(len, self.names))}")
        dtypes = {"embeddings": self.dtype.newbyteorder("<"), "labels": labels, "scores": np.dtype("<f4")}
        return {kind: dtypes[kind] for kind in self.kinds}

    def row_bytes(self) -> int:
        """Bytes that a row takes."""
        width = {"embeddings": self.source.dim, "labels": 1, "scores": 1}
        return sum(dtype.itemsize * width[kind] for kind, dtype in self.dtypes.items())

    def files(self, out: Path, shard: Shard) -> dict[Kind, Path]:
        """Where each kind of a shard goes; ``out`` is the file, or the folder."""
        if self.single:
            return dict.fromkeys(self.kinds, out)
        return {kind: out / name for kind, name in shard.outputs(self.kinds).items()}

    def written(self, target: Location, shards: Iterable[Shard]) -> dict[str, list[str]]:
        """The files of each shard by its name: below ``target``, or that file if everything goes there."""
        return {s.path.name: [target.name] if self.single else s.written(self.kinds) for s in shards}

    def sink(self, out: Path, shard: Shard, rows: int | None = None) -> Sink:
        """A writer for a shard; ``rows`` is the number of rows that will be written, if it is known."""
        files = self.files(out, shard)
        for path in files.values():
            path.parent.mkdir(exist_ok=True)
        return self._naming(shard.sink(Target(files, self.dtypes, rows)))

    def stream(self, file: IO[bytes]) -> Sink:
        """A writer for the only shard, to an open file."""
        return self._naming(self.source.shards[0].sink(Target({}, self.dtypes, file=file)))

    def _naming(self, sink: Sink) -> Sink:
        return sink if self.names is None else NamedLabels(sink, np.array(self.names))


@dataclass(frozen=True)
class NamedLabels:
    """Writes labels as the names of the classes."""

    sink: Sink
    names: np.ndarray

    def write(self, result: Result) -> None:
        """Append the output for a block."""
        self.sink.write(replace(result, arrays={**result.arrays, "labels": self.names[result.arrays["labels"]]}))

    def close(self) -> dict[Path, int]:
        """Finish the files; their checksums."""
        return self.sink.close()


def lay_out(
    source: ShardedEmbeddings,
    target: Location,
    kinds: tuple[Kind, ...],
    dtype: np.dtype[Any],
    names: tuple[str, ...] | None = None,
) -> Layout:
    """Check that ``target`` suits what is to be written there; ``names`` are written in place of labels."""
    suffix, first = target.suffix.lower(), source.shards[0]
    is_file = suffix in FORMATS
    if first.path == STANDARD:
        if is_file and suffix not in STREAMED:
            raise ValueError(f"output: {target}; a pipe is written as an Arrow IPC stream: name an .arrow file, or -")
        first.check_added(kinds)
        return Layout(source, kinds, dtype, single=True, names=names)
    if is_file and not source.single:
        raise ValueError(f"output: {target} is one file, and there are shards to write; name a folder")
    if is_file and suffix != first.path.suffix.lower():
        raise ValueError(
            f"output: {target}; the output has the format of the input: "
            f"name a {first.path.suffix.lower()} file, or a folder"
        )
    if is_file and first.single_array and len(kinds) > 1:
        raise ValueError(
            f"output: {target} can hold one array, not {' and '.join(kinds)}; name a folder, or write one of them"
        )
    if len({shard.path.name for shard in source.shards}) < len(source.shards):
        raise ValueError("embeddings: two shards have the same file name, and so would their outputs; rename one")
    for shard in source.shards:
        shard.check_added(kinds)
    output = _parts(target)
    if any(output == _parts(path)[: len(output)] for shard in source.shards for path in shard.sources()):
        raise ValueError(f"output: {target} is the input; choose another name")
    if names is not None and any(shard.path.suffix.lower() == ".safetensors" for shard in source.shards):
        raise ValueError("names: a .safetensors file holds numbers alone; leave out --names, or give .npy or .parquet")
    return Layout(source, kinds, dtype, is_file, names)


def _parts(path: Location) -> tuple[object, ...]:
    """A file as its store and the names of all folders above it."""
    if isinstance(path, RemotePath):
        return (path.fs, *PurePosixPath(path.key).parts)
    return Path(os.path.realpath(path)).parts
