"""The embedding store: what is cached, under which key, and in which files.

    ROOT/embeddings/KEY/00000.safetensors …     image embeddings, SHARD rows each, with a checksum
    ROOT/texts/KEY.safetensors                  text embeddings
    ROOT/models/KEY.json                        identity of a model, so that it need not be loaded to know its keys

KEY is a hash of :func:`image_key`, :func:`text_key` or :func:`model_key`: of everything the content depends on. A shard
is written whole or not at all, and not if one of its images could not be read. A killed run resumes at the first
missing shard. A run locks its entry while it encodes; a second run waits, then finds the embeddings. If the store can't
be written, the run warns and goes on: the embeddings are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.core.files import PART, sweep, write_tensors, write_text
from clip_tca.core.folders import default_root
from clip_tca.datasets.image_set import Domain
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding.base import Identity

log = logging.getLogger("clip_tca")

_OURS = re.compile(r"[0-9a-f]{32}(\.safetensors|\.json)?")
"""Names of entries and files in the store."""

SHARD = 256
"""Images of a shard: the most that a killed run encodes again."""


def image_key(encoder: Identity, domain: Domain) -> dict[str, Any]:
    """What the image embeddings of a domain depend on."""
    return {**_encoder_key(encoder), "files": domain.fingerprint()}


def text_key(encoder: Identity, prompts: Prompts) -> dict[str, Any]:
    """What text embeddings depend on."""
    return {**_encoder_key(encoder), "texts": prompts.fingerprint()}


def model_key(address: str, folder: str, pretrained: str | None) -> list[str | None] | None:
    """What names an open_clip model before it is loaded; None for ``hf-hub:``, whose content may change unseen."""
    return None if address.startswith("hf-hub:") else [address, folder, pretrained, version("open_clip_torch")]


def _encoder_key(encoder: Identity) -> dict[str, Any]:
    fields = asdict(encoder)
    return {name: fields[name] for name in ("model", "weights", "configuration", "preprocessing", "precision")}


def digest(key: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def shards(images: int) -> list[range]:
    """Rows of each shard."""
    return [range(start, min(start + SHARD, images)) for start in range(0, images, SHARD)]


def checksum(rows: Tensor) -> str:
    """Hash of the values of a float32 tensor."""
    return hashlib.sha256(rows.contiguous().cpu().numpy().tobytes()).hexdigest()


def _write(path: Path, rows: Tensor) -> None:
    """Write a file of the store; warn and go on if that can't be done."""
    rows = rows.contiguous().cpu()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"embeddings": rows}, {"checksum": checksum(rows)})
    except OSError as error:
        reason = error.strerror or error
        log.warning("the store in %s can't be written (%s); going on without storing", path.parent, reason)


def _read(path: Path) -> Tensor | None:
    """The rows of a file; None if it is missing, or damaged, which is logged."""
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
    title: str

    def read(self, shard: int) -> Tensor | None:
        """Rows of a shard, or None if it is missing or damaged."""
        rows = _read(self._file(shard))
        return rows if rows is not None and len(rows) == len(shards(self.images)[shard]) else None

    def write(self, shard: int, rows: Tensor) -> None:
        """Keep the rows of a shard; warns and goes on if they can't be written."""
        _write(self._file(shard), rows)

    def complete(self) -> bool:
        """Whether every shard exists (not whether it is undamaged)."""
        return all(self._file(shard).is_file() for shard in range(-(-self.images // SHARD)))

    def _file(self, shard: int) -> Path:
        return self.path / f"{shard:05d}.safetensors"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the entry against other runs; the system releases the lock when the process ends in any way."""
        held = FileLock(self.path / ".lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                held.acquire(blocking=False)
                sweep(self.path.glob(f".*{PART}"))  # left by a run that was killed while it wrote
            except Timeout:
                log.warning("another run is encoding %s; waiting for it", self.title)
                held.acquire()
        except (OSError, NotImplementedError):  # a read-only store, or no locks there: shards are atomic anyway
            log.debug("no lock on %s", self.path)
        try:
            yield
        finally:
            held.release()


@dataclass(frozen=True)
class Store:
    """Embeddings under one folder."""

    root: Path = field(default_factory=default_root)

    def entry(self, key: dict[str, Any], images: int, title: str) -> Entry:
        """The entry of ``key`` (see :func:`image_key`); the ``title`` is for people."""
        return Entry(self.root / "embeddings" / digest(key), images, title)

    def texts(self, key: dict[str, Any]) -> Tensor | None:
        """Text embeddings kept under ``key`` (see :func:`text_key`), or None."""
        return _read(self._text_file(key))

    def keep_texts(self, key: dict[str, Any], rows: Tensor) -> None:
        """Keep text embeddings."""
        _write(self._text_file(key), rows)

    def identity(self, key: Sequence[str | None], precision: str) -> Identity | None:
        """The identity kept under ``key`` (see :func:`model_key`); None if there is none, or its files have changed."""
        try:
            record = json.loads(self._model_file(key).read_text(encoding="utf-8"))
            if all(_stamp(file) == stamp for file, stamp in record["files"].items()):
                return Identity(**{**record["identity"], "precision": precision})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # not kept, or not readable any more
        return None

    def keep_identity(self, key: Sequence[str | None], identity: Identity, files: list[Path]) -> None:
        """Keep the identity of a model that was read from these files."""
        stamps = {str(file.absolute()): _stamp(file) for file in files}
        with contextlib.suppress(OSError):  # writing the embeddings warns
            self._model_file(key).parent.mkdir(parents=True, exist_ok=True)
            write_text(self._model_file(key), json.dumps({"files": stamps, "identity": asdict(identity)}))

    def _text_file(self, key: dict[str, Any]) -> Path:
        return self.root / "texts" / f"{digest(key)}.safetensors"

    def _model_file(self, key: Sequence[str | None]) -> Path:
        return self.root / "models" / f"{digest(key)}.json"

    def clear(self) -> int:
        """Remove the whole store, and nothing that is not ours; returns how many entries there were."""
        entries = 0
        for folder in (self.root / name for name in ("embeddings", "texts", "models")):
            for path in [path for path in folder.glob("*") if _OURS.fullmatch(path.name)]:
                if path.is_dir():
                    shutil.rmtree(path)
                    entries += 1
                else:
                    path.unlink()
            sweep(folder.glob(f".*{PART}"))
            with contextlib.suppress(OSError):  # missing, or holds files that are not ours
                folder.rmdir()
        return entries


def _stamp(file: str | Path) -> list[int]:
    """What changes when a file is written again."""
    status = os.stat(file)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
