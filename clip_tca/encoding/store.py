"""The embedding store: what was encoded once is kept, in shards that appear whole or not at all.

    ROOT/embeddings/KEY/entry.json              what it is, for people
    ROOT/embeddings/KEY/00000.safetensors …     SHARD rows each, with a checksum
    ROOT/texts/KEY.safetensors                  text embeddings
    ROOT/models/KEY.json                        what identifies a weights file (see clip_tca.encoding.open_clip)

KEY is a hash of everything the embeddings depend on. A run that was killed goes on at the first missing shard. A run
holds a lock on its entry while it encodes, so a second one waits and then finds the work done. A store that can't be
written is a warning, not an end: the embeddings are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.core.checks import whole
from clip_tca.core.files import PART, sweep, write_tensors, write_text

log = logging.getLogger("clip_tca")

_KEY = re.compile(r"[0-9a-f]{32}")

SHARD = 256
"""Images of a shard: the most that a killed run encodes again."""


def default_root() -> Path:
    """``CLIP_TCA_CACHE``, else ``clip-tca`` in the XDG cache folder."""
    if chosen := os.environ.get("CLIP_TCA_CACHE"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "clip-tca"
    except RuntimeError:
        raise ValueError("no home folder for the store; set CLIP_TCA_CACHE to a folder, or use --no-cache") from None


def shards(images: int) -> list[range]:
    """Rows of each shard."""
    return [range(start, min(start + SHARD, images)) for start in range(0, images, SHARD)]


def digest(identity: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def checksum(rows: Tensor) -> str:
    """Hash of the values of a float32 tensor."""
    return hashlib.sha256(rows.contiguous().cpu().numpy().tobytes()).hexdigest()


def _write(path: Path, rows: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows.contiguous().cpu()
    write_tensors(path, {"embeddings": rows}, {"checksum": checksum(rows)})


def _read(path: Path) -> Tensor | None:
    """What :func:`_write` wrote, or None; a damaged file is reported and counts as missing."""
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), "pt") as file:
            rows: Tensor = file.get_tensor("embeddings")
            expected = (file.metadata() or {}).get("checksum")
        if checksum(rows) == expected:
            return rows
        reason = "its checksum is wrong"
    except (SafetensorError, OSError) as error:
        reason = str(error)
    log.warning("%s is damaged (%s); encoding it again", path, reason)
    return None


@dataclass
class Entry:
    """The embeddings of one domain under one model."""

    path: Path
    images: int
    description: dict[str, Any]

    def read(self, shard: int) -> Tensor | None:
        """Rows of a shard, or None if it is missing or damaged."""
        rows = _read(self._file(shard))
        return rows if rows is not None and len(rows) == len(shards(self.images)[shard]) else None

    def write(self, shard: int, rows: Tensor) -> None:
        """Keep the rows of a shard; warns and goes on if they can't be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / "entry.json").is_file():
                write_text(self.path / "entry.json", json.dumps(self.description, indent=1))
            _write(self._file(shard), rows)
        except OSError as error:
            _warn(self.path.parent.parent, error)

    def complete(self) -> bool:
        """Whether every shard is there (not whether it is undamaged)."""
        return all(self._file(shard).is_file() for shard in range(-(-self.images // SHARD)))

    def _file(self, shard: int) -> Path:
        return self.path / f"{shard:05d}.safetensors"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the entry against other runs; released by the system when the process ends in any way."""
        try:
            import fcntl

            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except (ImportError, OSError):  # no such locks here, or nothing can be written: shards are atomic anyway
            yield
            return
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.warning("another run is encoding %s; waiting for it", self.description.get("title", self.path))
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                log.debug("no lock on %s", self.path)
            else:
                sweep(self.path.glob(f".*{PART}"))  # of a run that was killed while it wrote
            yield
        finally:
            os.close(handle)


class Store:
    """Embeddings under one folder."""

    def __init__(self, root: Path | None = None) -> None:
        """Use ``root``, by default :func:`default_root`."""
        self.root = root or default_root()

    @property
    def models(self) -> Path:
        """Folder of the identities of weights."""
        return self.root / "models"

    def entry(self, identity: dict[str, Any], images: int, description: dict[str, Any]) -> Entry:
        """The entry of ``identity``; ``description`` is for people."""
        return Entry(self.root / "embeddings" / digest(identity), images, {**description, **identity, "images": images})

    def texts(self, identity: dict[str, Any]) -> Tensor | None:
        """Text embeddings kept under ``identity``, or None."""
        return _read(self._text_file(identity))

    def keep_texts(self, identity: dict[str, Any], rows: Tensor) -> None:
        """Keep text embeddings."""
        try:
            _write(self._text_file(identity), rows)
        except OSError as error:
            _warn(self.root, error)

    def _text_file(self, identity: dict[str, Any]) -> Path:
        return self.root / "texts" / f"{digest(identity)}.safetensors"

    def entries(self) -> list[tuple[str, dict[str, Any], int, bool]]:
        """Key, description, bytes and completeness of all entries."""
        found = []
        for path in sorted((self.root / "embeddings").glob("*")):
            if not (_KEY.fullmatch(path.name) and path.is_dir()):
                continue
            try:
                description = json.loads((path / "entry.json").read_text(encoding="utf-8"))
                if not whole(description["images"], 0):
                    raise ValueError(f"images: {description['images']!r}")
                entry = Entry(path, description["images"], description)
            except (OSError, ValueError, KeyError, TypeError):
                entry = Entry(path, 0, {"title": "not readable"})
            size = sum(file.stat().st_size for file in path.glob("*") if file.is_file())
            found.append((path.name, entry.description, size, entry.images > 0 and entry.complete()))
        return found

    def clear(self, keys: list[str] | None = None) -> int:
        """Remove the entries ``keys`` (or beginnings of them), or everything of ours; the number of entries removed."""
        known = [key for key, *_ in self.entries()]
        for key in keys or []:
            if not any(name.startswith(key) for name in known):
                raise ValueError(f"no entry {key!r} in {self.root}; clip-tca cache list shows them")
        chosen = [name for name in known if not keys or name.startswith(tuple(keys))]
        for name in chosen:
            shutil.rmtree(self.root / "embeddings" / name)
        if not keys:
            for folder, suffix in {"embeddings": "", "texts": ".safetensors", "models": ".json"}.items():
                for file in (self.root / folder).glob(f"*{suffix}"):
                    if _KEY.fullmatch(file.name.removesuffix(suffix)) and file.is_file():
                        file.unlink()
                sweep((self.root / folder).glob(f".*{PART}"))
                with contextlib.suppress(OSError):  # not there, or something in it is not ours
                    (self.root / folder).rmdir()
        return len(chosen)


def _warn(root: Path, error: Exception) -> None:
    reason = getattr(error, "strerror", None) or error
    log.warning("the store in %s can't be written (%s); going on without storing", root, reason)
