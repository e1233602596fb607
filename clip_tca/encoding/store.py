"""The embedding store: one SQLite file of embeddings, each under the model and the content of its picture or text.

A picture is known by its bytes: moved, renamed or copied into an archive it is not encoded again, and of a folder that
has grown only the new pictures are. ``eval``, ``embed``, ``label`` and the app share the store. It also keeps the hash
of each file, until the file changes, and the identity of each model, so that a model need not be loaded to know it.

SQLite makes a write whole or undone, whenever a run is killed, and lets several runs write. Every entry has a checksum;
what is damaged counts as missing. If the store can't be written, the run warns and goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clip_tca.core.folders import default_root
from clip_tca.data.pictures import Domain, content
from clip_tca.encoding.base import Identity

log = logging.getLogger("clip_tca")

NAME = "store.sqlite"

ASKED = 500
"""Entries of one query; SQLite limits the variables of a statement."""

SETTLED = 2 * 10**9
"""Nanoseconds after which a change of a file certainly changes its time; clocks of file systems are coarse."""


def encoder_key(encoder: Identity) -> str:
    """What all embeddings of a model have in their keys."""
    about = [encoder.model, encoder.weights, encoder.configuration, encoder.preprocessing, encoder.precision]
    return digest(about)


def image_key(encoder: str, content: str, corruption: str = "") -> str:
    """Under which the embedding of a picture is kept: the model, the picture's bytes, and what was done to them."""
    return _hash("image", encoder, content, corruption)


def text_key(encoder: str, text: str) -> str:
    """Under which the embedding of a text is kept."""
    return _hash("text", encoder, text)


def model_key(address: str, folder: str, pretrained: str | None) -> str | None:
    """What names an open_clip model before it is loaded; None for ``hf-hub:``, whose content may change unseen."""
    if address.startswith("hf-hub:"):
        return None
    return digest(["model", address, folder, pretrained, version("open_clip_torch")])


def digest(key: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return _hash(json.dumps(key, sort_keys=True))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass
class Store:
    """The store in one folder: bytes by key."""

    root: Path = field(default_factory=default_root)
    _writable: bool = field(default=True, init=False)

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """What is kept under each of these keys; those that are missing or damaged are left out."""
        wanted, found, damaged = list(keys), {}, 0
        if not self._path.is_file():
            return {}
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as db:
                for start in range(0, len(wanted), ASKED):
                    some = [key.encode() for key in wanted[start : start + ASKED]]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, value, checksum FROM entries WHERE key IN ({marks})"  # noqa: S608
                    for key, value, checksum in db.execute(query, some):
                        if isinstance(value, bytes) and zlib.crc32(key + value) == checksum:
                            found[key.decode()] = value
                        else:
                            damaged += 1
        except sqlite3.Error as error:
            self._failed(error)
        if damaged:
            log.warning("%d entries of %s are damaged and made again", damaged, self._path)
        return found

    def put(self, entries: dict[str, bytes]) -> None:
        """Keep what is given, all of it or nothing; warns once and goes on if it can't be written."""
        if not entries or not self._writable:
            return
        rows = [(key.encode(), value, zlib.crc32(key.encode() + value)) for key, value in entries.items()]
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as db, db:
                db.execute("PRAGMA page_size = 16384")  # of a new file; of 4096 bytes an embedding would waste half
                db.execute("PRAGMA synchronous = OFF")  # only the machine's own crash can damage it, which is noticed
                db.execute("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB, checksum INTEGER)")
                db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            if not self._failed(error):
                self._writable = False
                log.warning("the store in %s can't be written (%s); going on without storing", self.root, error)

    def _failed(self, error: Exception) -> bool:
        """Whether the file is damaged; it is removed then, for whatever it holds can be made again."""
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
        here = os.getcwd()
        keys = {i: _hash("file", os.path.join(here, file)) for i, file in files.items()}
        known, new, hashes = self.get(keys.values()), {}, list(domain.marks)
        for i, file in files.items():
            try:
                stamp = _stamp(file)
            except OSError:  # a broken link: reported when it is opened
                continue
            before = known.get(keys[i], b"").decode()
            if before.startswith(f"{stamp} "):
                hashes[i] = before.removeprefix(f"{stamp} ")
                continue
            hashes[i] = content(file)
            if time.time_ns() - max(stamp[1:3]) > SETTLED:
                new[keys[i]] = f"{stamp} {hashes[i]}".encode()
        self.put(new)
        return hashes

    @contextlib.contextmanager
    def lock(self, key: str, title: str) -> Iterator[None]:
        """Wait while another run encodes the same; the system releases the lock when a process ends in any way."""
        held = FileLock(self.root / "locks" / key[:2])  # few names, because a lock's file can't be removed safely
        try:
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            try:
                held.acquire(blocking=False)
            except Timeout:
                log.warning("another run is encoding %s; waiting for it", title)
                held.acquire()
        except (OSError, NotImplementedError):  # a read-only store, or no locks there: at worst both encode
            log.debug("no lock in %s", self.root)
        try:
            yield
        finally:
            held.release()

    def identity(self, key: str, precision: str) -> Identity | None:
        """The identity kept under ``key`` (see :func:`model_key`); None if there is none, or its files have changed."""
        try:
            record = json.loads(self.get([key])[key])
            if all(_stamp(file) == stamp for file, stamp in record["files"].items()):
                return Identity(**{**record["identity"], "precision": precision})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # not kept, or not readable any more
        return None

    def keep_identity(self, key: str, identity: Identity, files: Sequence[Path]) -> None:
        """Keep the identity of a model that was read from these files."""
        stamps = {str(file.absolute()): _stamp(file) for file in files}
        self.put({key: json.dumps({"files": stamps, "identity": asdict(identity)}).encode()})

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


def untouched(file: str | Path, since: int) -> bool:
    """Whether a file has certainly not changed since then (in nanoseconds)."""
    try:
        return max(_stamp(file)[1:3]) < since - SETTLED
    except OSError:
        return False


def _stamp(file: str | Path) -> list[int]:
    """What changes when a file is written again."""
    status = os.stat(file)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
