"""The embedding store: one SQLite file of embeddings, each under the model and the content of its picture or text.

A picture is known by its bytes: moved, renamed or copied into an archive it is not encoded again, and of a folder that
has grown only the new pictures are. ``eval``, ``embed``, ``label`` and the app share the store. It also keeps the hash
of each file, until the file changes, and the identity of each model, so that a model need not be loaded to know it.

SQLite makes a write whole or undone, whenever a run is killed, and lets several runs write. If the store can't be
written, the run warns and goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from clip_tca.core.folders import default_root
from clip_tca.data.pictures import Domain, content
from clip_tca.encoding.base import Identity

log = logging.getLogger("clip_tca")

NAME = "store.sqlite"
KEYS = 500  # of one query: SQLite limits the variables of a statement


def encoder_key(encoder: Identity) -> str:
    """What all embeddings of a model have in their keys."""
    parts = [encoder.model, encoder.weights, encoder.configuration, encoder.preprocessing, encoder.precision]
    return digest(parts)


def image_key(encoder: str, content: str, corruption: str = "") -> str:
    """Under which the embedding of a picture is kept: the model, the picture's bytes, and what was done to them."""
    return _hash("image", encoder, content, corruption)


def text_key(encoder: str, text: str) -> str:
    """Under which the embedding of a text is kept."""
    return _hash("text", encoder, text)


def digest(key: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return _hash(json.dumps(key, sort_keys=True))


def stamp(file: str | Path) -> list[int]:
    """What changes when a file is written again."""
    status = os.stat(file)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass
class Store:
    """The store in one folder: bytes by key."""

    root: Path = field(default_factory=default_root)
    _writable: bool = field(default=True, init=False)

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The entries with these keys, as far as there are any."""
        wanted = [key.encode() for key in keys]
        entries: dict[str, bytes] = {}
        if not self._path.is_file():
            return entries
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as db:
                for start in range(0, len(wanted), KEYS):
                    part = wanted[start : start + KEYS]
                    marks = ",".join("?" * len(part))
                    rows = db.execute(f"SELECT key, value FROM entries WHERE key IN ({marks})", part)  # noqa: S608
                    entries.update((key.decode(), value) for key, value in rows)
        except sqlite3.Error as error:
            self._remove_damaged(error)
        return entries

    def put(self, entries: dict[str, bytes]) -> None:
        """Keep all entries or none; warns once and goes on if the store can't be written."""
        if not entries or not self._writable:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as db, db:
                db.execute("PRAGMA page_size = 16384")  # of a new file; of 4096 bytes an embedding would waste half
                db.execute("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB)")
                rows = [(key.encode(), value) for key, value in entries.items()]
                db.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            if not self._remove_damaged(error):
                self._writable = False
                log.warning("the store in %s can't be written (%s); going on without storing", self.root, error)

    def _remove_damaged(self, error: Exception) -> bool:
        # an OperationalError is a full disk or a lock, every other DatabaseError a damaged file
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.OperationalError):
            return False
        log.warning("%s is damaged (%s); it is removed, and its embeddings are made again", self._path, error)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return True

    @property
    def _path(self) -> Path:
        return self.root / NAME

    def contents(self, domain: Domain) -> list[str]:
        """The hash of each picture's bytes; a file is not read again while its size, times and inode stay the same."""
        files = {
            i: picture.source for i, picture in enumerate(domain.pictures) if isinstance(picture.source, str | Path)
        }
        keys: dict[int, str] = {}
        for i, file in files.items():
            with contextlib.suppress(OSError):  # a broken link: reported when it is opened
                keys[i] = _hash("file", os.path.abspath(file), str(stamp(file)))
        hashes = self.get(keys.values())
        new = {key: content(files[i]).encode() for i, key in keys.items() if key not in hashes}
        self.put(new)
        hashes |= new
        return [hashes[keys[i]].decode() if i in keys else mark for i, mark in enumerate(domain.marks)]

    @contextlib.contextmanager
    def lock(self, key: str, title: str) -> Iterator[None]:
        """Wait while another run encodes the same; the system releases the lock when a process ends in any way."""
        lock = FileLock(self.root / "locks" / key[:2])  # few names, because a lock's file can't be removed safely
        try:
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                log.warning("another run is encoding %s; waiting for it", title)
                lock.acquire()
        except (OSError, NotImplementedError):  # a read-only store, or no locks there: at worst both encode
            log.debug("no lock in %s", self.root)
        try:
            yield
        finally:
            lock.release()

    def identity(self, key: str) -> Identity | None:
        """The identity of a model."""
        try:
            return msgspec.json.decode(self.get([key])[key], type=Identity)
        except (KeyError, msgspec.MsgspecError):
            return None

    def keep_identity(self, key: str, identity: Identity) -> None:
        """Keep the identity of a model under a key that changes with its files."""
        self.put({key: msgspec.json.encode(identity)})

    def clear(self) -> int:
        """Remove the store, and nothing that is not ours; returns how many entries there were."""
        entries = 0
        if self._path.is_file():
            with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(self._path)) as db:
                (entries,) = db.execute("SELECT count(*) FROM entries").fetchone()
        for path in (self._path, self.root / f"{NAME}-journal"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.root / "locks", ignore_errors=True)
        return entries
