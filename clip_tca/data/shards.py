"""Embeddings in one file or many, on a disk or in a store: listed in order, read in blocks of rows, and written.

Besides files and folders of shards there are two known folders: ``cache`` of TransCLIP, StatA and OGA (``test_f.pt``,
``test_l.pt``), and that of clip-retrieval (``img_emb/img_emb_N.npy``, ``metadata/metadata_N.parquet``).
"""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.files import natural_order
from clip_tca.core.remote import Location, RemotePath, locate, stamp
from clip_tca.core.tensors import to_tensor
from clip_tca.data.formats import FORMATS, TORCH, Kind, open_shard

if TYPE_CHECKING:
    import pyarrow as pa

Arrays = dict[Kind, np.ndarray]
"""Output for some rows: an array for each kind."""

ROWS = 8192  # rows read, adapted and written together, of embeddings of the usual dimensions
VALUES = 1 << 24  # numbers in a block at most
LONGEST_ROW = 1 << 20  # A row that says it is longer than this is not an embedding

EMBEDDING_NAMES = ("embeddings", "embedding", "image_embeds", "img_emb", "emb", "arr_0")
TEXT_NAMES = ("text", "texts", "text_embeds", "text_embeddings", "text_emb", "embeddings", "arr_0", "text.single")
"""Usual names of an array or column of (text) embeddings, in order of preference."""

CACHED = "test_f.pt"  # TransCLIP's file of test embeddings

IMG_EMB, METADATA = "img_emb", "metadata"
"""The folders of clip-retrieval."""


def block_rows(dim: int) -> int:
    """Rows of a block of ``dim`` dimensions."""
    return min(ROWS, max(VALUES // dim, 1))


@dataclass(frozen=True)
class Block:
    """Rows ``z`` ``(n, d)`` of a shard as stored, from row ``first`` on; ``others`` holds a table's other columns."""

    z: np.ndarray
    first: int
    others: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.z)

    def bad(self) -> np.ndarray:
        """Indices of the rows that hold NaN or infinity, counted from the start of the block."""
        sums = to_tensor(self.z).sum(dim=1)  # in the dtype of the rows: a sum that overflows is one to look into
        suspects = np.flatnonzero(~torch.isfinite(sums).numpy())
        bad: np.ndarray = suspects[~np.isfinite(self.z[suspects]).all(axis=1)]
        return bad

    def without(self, rows: np.ndarray) -> Block:
        """The block without the rows at these indices."""
        keep = np.setdiff1d(np.arange(len(self)), rows)
        return Block(self.z[keep], self.first, None if self.others is None else self.others.take(keep))


class Writer(Protocol):
    """Writes the output for one shard."""

    def write(self, arrays: Arrays, others: pa.Table | None = None) -> None:
        """Append the output for a block, and the columns that it carries along."""

    def close(self) -> None: ...


class Shard(ABC):
    """Embeddings that are read block by block."""

    path: Location
    name: str  # its array or column of embeddings
    rows: int
    dim: int | None  # None for a table without rows
    dtype: np.dtype[Any]  # of the embeddings, as stored
    columns: Sequence[str] = ()  # those of a table, the embeddings among them
    added: dict[Kind, str] = {"labels": "labels", "scores": "scores"}  # noqa: RUF012 (output names)
    single_array = False  # whether a file of this format holds one array only

    @abstractmethod
    def blocks(self, rows: int = ROWS) -> Iterator[Block]: ...

    def runs(self, firsts: Sequence[int], length: int) -> Iterator[Block]:
        """Up to ``length`` rows from each of ``firsts`` on; where a file can't be read in part, it is read whole."""
        for block in self.blocks(block_rows(self.dim or 1)):
            for start in (first - block.first for first in firsts):
                if 0 <= start < len(block):
                    yield Block(block.z[start : start + length], block.first + start)

    @abstractmethod
    def writer(self, paths: dict[Kind, Path], dtypes: dict[Kind, np.dtype[Any]]) -> Writer:
        """A writer in the same format, with a file for each kind: all the same, unless it holds a single array."""

    def sources(self) -> list[Location]:
        return [self.path]

    def stamp(self) -> list[Any]:
        """What changes when the content does."""
        return [self.name, *(stamp(path) for path in self.sources())]

    def outputs(self, kinds: tuple[Kind, ...]) -> dict[Kind, str]:
        """The file for each kind, below the folder of the output."""
        apart = len(kinds) > 1 and self.single_array
        return {kind: f"{kind}/{self.path.name}" if apart else self.path.name for kind in kinds}

    def written(self, kinds: tuple[Kind, ...]) -> list[str]:
        return sorted(set(self.outputs(kinds).values()))

    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if it has an array or column with the name of one that would be added."""
        for name in (self.added[kind] for kind in kinds if kind in self.added):
            if name in (self.columns or [self.name]):
                noun = "a column" if self.columns else "an array"
                raise ValueError(f"{self.sources()[-1]}: has {noun} {name!r} already; rename it")


@contextmanager
def reading(path: object, remedy: str = "copy or download it again") -> Iterator[None]:
    """Whatever a library raises about the content of a file is one line of ours; a file that is missing stays that."""
    try:
        yield
    except Exception as error:  # archives, compression, pickles and NumPy's parser of headers raise anything
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise CorruptFileError(f"{path}: truncated or damaged ({one_line(error)}); {remedy}") from None


def pick_name(path: object, names: list[str], name: str | None, noun: str, texts: bool = False) -> str:
    """The array or column of (text) embeddings: the one of that ``name``, a usual one, or the only one."""
    usual, option = (TEXT_NAMES, "--text-column") if texts else (EMBEDDING_NAMES, "--column")
    if name is not None and name not in names:
        raise ValueError(f"{path}: no {noun} {name!r}; there are {', '.join(names) or 'none'}")
    for candidate in [name] if name is not None else (*usual, *(names if len(names) == 1 else [])):
        if candidate in names:
            return candidate
    choice = f"there are {', '.join(names)}; name it with {option}" if names else "there is none"
    raise ValueError(f"{path}: which {noun} holds the embeddings? {choice}")


@dataclass(frozen=True)
class ShardedEmbeddings:
    """Shards in order; ``single`` if they are one file that was named as such."""

    shards: list[Shard]
    single: bool

    @property
    def dim(self) -> int:
        return next(shard.dim for shard in self.shards if shard.dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.shards[0].dtype

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


def open_embeddings(
    source: str | Location, column: str | None = None, formats: Sequence[str] = FORMATS
) -> ShardedEmbeddings:
    """A file, a folder of shards, or a glob pattern, on a disk or in a store; shards in the order of their numbers.

    ``column`` is the array, tensor or column with the embeddings; None looks for the usual names. Files end with one of
    ``formats``.

    Raises:
        FileNotFoundError: If there is nothing of that name.
        ValueError: If a file is damaged, if there are no rows, or if shards differ in format, dimension or dtype.
    """
    path = locate(source)
    single = path.is_file()
    shards = [] if single else _clip_retrieval(path)
    if not shards:
        paths = [path] if single else _shard_paths(path, str(source), formats)
        shards = [open_one(path, column, formats) for path in paths]
        if len(suffixes := sorted({path.suffix.lower() for path in paths})) > 1:
            raise ValueError(f"{source}: {' and '.join(suffixes)} files; all shards must have one format")
    first = next((shard for shard in shards if shard.dim and shard.rows), None)
    if first is None:
        raise ValueError(f"{source}: no rows; at least one embedding is needed")
    for shard in shards:
        for name, value, expected in (("dimensions", shard.dim, first.dim), ("dtype", shard.dtype, first.dtype)):
            if value not in (None, expected):
                raise ValueError(
                    f"{shard.path}: {name} {value}, but {first.path.name} has {expected}; all shards must agree"
                )
    return ShardedEmbeddings(shards, single)


def open_one(path: Location, column: str | None = None, formats: Sequence[str] = FORMATS) -> Shard:
    """One file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a {', '.join(formats)} file")
    if (suffix := path.suffix.lower()) not in formats:
        fix = f"; save it as one: np.save('{path.stem}.npy', torch.load('{path.name}'))" if suffix in TORCH else ""
        raise ValueError(f"{path}: not a file of embeddings by its name; allowed are {', '.join(formats)}{fix}")
    return open_shard(path, column)


def _shard_paths(path: Location, pattern: str, formats: Sequence[str]) -> list[Location]:
    paths: list[Location]
    if path.is_dir():
        if CACHED.endswith(tuple(formats)) and (path / CACHED).is_file():
            return [path / CACHED]
        folder = path / IMG_EMB if (path / IMG_EMB).is_dir() else path
        paths = [file for file in folder.iterdir() if file.suffix.lower() in formats and not file.name.startswith(".")]
    elif isinstance(path, RemotePath):
        paths = [*path.matches()]
    else:
        paths = [Path(name) for name in glob.glob(pattern) if Path(name).is_file()]
    if not paths:
        reason = "no embeddings in this folder" if path.is_dir() else "no such file, folder or pattern"
        raise FileNotFoundError(f"{pattern}: {reason}; give {', '.join(formats)} files")
    return natural_order(paths)


def _clip_retrieval(folder: Location) -> list[Shard]:
    """The shards of a folder that clip-retrieval wrote; none if it is another folder."""
    vectors, tables = folder / IMG_EMB, folder / METADATA
    if not (vectors.is_dir() and tables.is_dir()):
        return []
    from clip_tca.data.tables import ClipRetrievalShard  # with pyarrow

    files = [path for path in vectors.iterdir() if path.suffix == ".npy" and not path.name.startswith(".")]
    return [
        ClipRetrievalShard(path, tables / f"{METADATA}_{path.stem.rpartition('_')[2]}.parquet")
        for path in natural_order(files)
    ]
