"""The contract of an embedding format: a shard is read in blocks of rows, and a sink writes what becomes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.remote import Location, stamp
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets.formats.registry import Kind

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 8192
"""Rows read, adapted and written together, of embeddings of the usual dimensions."""

VALUES = 1 << 24
"""Numbers in a block at most."""

LONGEST_ROW = 1 << 20
"""A row that says it is longer than this is not an embedding."""

EMBEDDING_NAMES = ("embeddings", "embedding", "image_embeds", "img_emb", "emb", "arr_0")
"""Usual names of an array or column of embeddings, in order of preference."""

TEXT_NAMES = ("text", "texts", "text_embeds", "text_embeddings", "text_emb", "embeddings", "arr_0", "text.single")
"""Usual names of an array of text embeddings."""


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


@dataclass(frozen=True)
class Result:
    """The output for a block: arrays by kind, and columns to carry along."""

    arrays: dict[Kind, np.ndarray]
    others: pa.Table | None = None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


@dataclass(frozen=True)
class Target:
    """Where the output for a shard goes: a file for each kind, the same one unless the format holds a single array."""

    paths: dict[Kind, Path]
    dtypes: dict[Kind, np.dtype[Any]]

    @property
    def path(self) -> Path:
        """The file, where there is one."""
        return next(iter(self.paths.values()))


class Sink(Protocol):
    """Writes the output for one shard."""

    def write(self, result: Result) -> None:
        """Append the output for a block."""

    def close(self) -> None:
        """Finish the files."""


class Shard(ABC):
    """Embeddings that are read block by block.

    Attributes:
        path: The file; of an archive, the name of its output.
        where: What error messages call it.
        name: Its array or column of embeddings.
        rows: Number of rows.
        dim: Dimension; None for a table without rows.
        dtype: Of the embeddings, as stored.
        single_array: Whether a file of this format holds one array only.
    """

    path: Location
    where: str
    name: str
    rows: int
    dim: int | None
    dtype: np.dtype[Any]
    single_array = False

    @abstractmethod
    def blocks(self, rows: int = ROWS, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Rows ``start`` to ``stop`` (None: the end), ``rows`` at a time; of the file only what is needed is read."""

    @abstractmethod
    def check_added(self, kinds: tuple[Kind, ...]) -> None:
        """Raise ValueError if an array or column of a name that would be added exists already."""

    @abstractmethod
    def sink(self, target: Target) -> Sink:
        """A writer in the format of the shard."""

    def sources(self) -> list[Location]:
        """The files it is read from."""
        return [self.path]

    def stamp(self) -> Any:
        """What changes when the content does."""
        return [self.name, *(stamp(path) for path in self.sources())]

    def outputs(self, kinds: tuple[Kind, ...]) -> dict[Kind, str]:
        """The file for each kind, below the folder of the output."""
        apart = len(kinds) > 1 and self.single_array
        return {kind: f"{kind}/{self.path.name}" if apart else self.path.name for kind in kinds}

    def written(self, kinds: tuple[Kind, ...]) -> list[str]:
        """All files that are written for it."""
        return sorted(set(self.outputs(kinds).values()))


def damaged(where: object, reason: object, remedy: str = "copy or download it again") -> CorruptFileError:
    """The error for a file that can't be read to its end."""
    return CorruptFileError(f"{where}: truncated or damaged ({one_line(reason)}); {remedy}")


@contextmanager
def reading(where: object, remedy: str = "copy or download it again") -> Iterator[None]:
    """Whatever a library raises about the content of a file is one line of ours; a file that is missing stays that."""
    try:
        yield
    except Exception as error:  # archives, compression, pickles and NumPy's parser of headers raise anything
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise damaged(where, error, remedy) from None


def pick_name(where: object, names: list[str], name: str | None, noun: str, texts: bool = False) -> str:
    """The array or column of (text) embeddings: the ``name`` that was given, a usual one, or the only one."""
    usual, option = (TEXT_NAMES, "--text-column") if texts else (EMBEDDING_NAMES, "--column")
    if name is not None and name not in names:
        raise ValueError(f"{where}: no {noun} {name!r}; there are {', '.join(names) or 'none'}")
    for candidate in [name] if name is not None else (*usual, *(names if len(names) == 1 else [])):
        if candidate in names:
            return candidate
    choice = f"there are {', '.join(names)}; name it with {option}" if names else "there is none"
    raise ValueError(f"{where}: which {noun} holds the embeddings? {choice}")


def check_free(where: str, noun: str, added: list[str], carried: list[str]) -> None:
    """Raise ValueError if one of the names ``added`` is among those ``carried`` along."""
    if taken := [name for name in added if name in carried]:
        raise ValueError(f"{where}: has {noun} {taken[0]!r} already; rename it")
