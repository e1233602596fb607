"""The embedding store: what is cached, under which key, and in which files.

    ROOT/embeddings/KEY/entry.json              description of the entry, for people
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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from clip_tca.core.cache_folder import default_root as default_root
from clip_tca.core.checks import is_whole
from clip_tca.core.files import PART, lock, sweep, write_tensors, write_text
from clip_tca.datasets.image_set import Domain
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding.base import Identity

log = logging.getLogger("clip_tca")

_KEY = re.compile(r"[0-9a-f]{32}")

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
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows.contiguous().cpu()
    write_tensors(path, {"embeddings": rows}, {"checksum": checksum(rows)})


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
        """Whether every shard exists (not whether it is undamaged)."""
        return all(self._file(shard).is_file() for shard in range(-(-self.images // SHARD)))

    def _file(self, shard: int) -> Path:
        return self.path / f"{shard:05d}.safetensors"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the entry against other runs; the system releases the lock when the process ends in any way."""
        handle = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                handle = lock(self.path)
                sweep(self.path.glob(f".*{PART}"))  # left by a run that was killed while it wrote
            except BlockingIOError:
                log.warning("another run is encoding %s; waiting for it", self.description.get("title", self.path))
                handle = lock(self.path, wait=True)
        except OSError:  # no locks on this system, or a read-only store: shards are atomic anyway
            log.debug("no lock on %s", self.path)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)


class Store:
    """Embeddings under one folder."""

    def __init__(self, root: Path | None = None) -> None:
        """Use ``root``, by default :func:`default_root`."""
        self.root = root or default_root()

    def entry(self, key: dict[str, Any], images: int, description: dict[str, Any]) -> Entry:
        """The entry of ``key`` (see :func:`image_key`); ``description`` is for people."""
        return Entry(self.root / "embeddings" / digest(key), images, {**description, **key, "images": images})

    def texts(self, key: dict[str, Any]) -> Tensor | None:
        """Text embeddings kept under ``key`` (see :func:`text_key`), or None."""
        return _read(self._text_file(key))

    def keep_texts(self, key: dict[str, Any], rows: Tensor) -> None:
        """Keep text embeddings."""
        try:
            _write(self._text_file(key), rows)
        except OSError as error:
            _warn(self.root, error)

    def identity(self, key: Sequence[str | None], precision: str, configuration: Path | None) -> Identity | None:
        """The identity kept under ``key`` (see :func:`model_key`); None if there is none, or its files have changed.

        The ``precision`` that it runs in is not part of the key; ``configuration`` is a file beside its weights.
        """
        try:
            record = json.loads(self._model_file(key).read_text(encoding="utf-8"))
            if _stamps(Path(record["file"]), configuration) == record["stamps"]:
                return Identity(precision=precision, **record["identity"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not kept, or not readable any more
        return None

    def keep_identity(
        self, key: Sequence[str | None], identity: Identity, weights: Path, configuration: Path | None
    ) -> None:
        """Keep the identity of a model with the weights in this file."""
        fields = {name: value for name, value in asdict(identity).items() if name != "precision"}
        if not identity.bias:
            del fields["bias"]  # as stores were written before
        record = {"file": str(weights.absolute()), "stamps": _stamps(weights, configuration), "identity": fields}
        path = self._model_file(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(record))
        except OSError as error:
            log.warning("%s could not be written (%s): the model will be loaded again next time", path, error)

    def _text_file(self, key: dict[str, Any]) -> Path:
        return self.root / "texts" / f"{digest(key)}.safetensors"

    def _model_file(self, key: Sequence[str | None]) -> Path:
        return self.root / "models" / f"{digest(key)}.json"

    def entries(self) -> list[tuple[str, dict[str, Any], int, bool]]:
        """Key, description, bytes and completeness of all entries."""
        rows = []
        for path in sorted((self.root / "embeddings").glob("*")):
            if not (_KEY.fullmatch(path.name) and path.is_dir()):
                continue
            try:
                description = json.loads((path / "entry.json").read_text(encoding="utf-8"))
                if not is_whole(description["images"], 0):
                    raise ValueError(f"images: {description['images']!r}")
                entry = Entry(path, description["images"], description)
            except (OSError, ValueError, KeyError, TypeError):
                entry = Entry(path, 0, {"title": "not readable"})
            size = sum(file.stat().st_size for file in path.glob("*") if file.is_file())
            rows.append((path.name, entry.description, size, entry.images > 0 and entry.complete()))
        return rows

    def clear(self, keys: list[str] | None = None) -> int:
        """Remove the entries ``keys`` (or beginnings of them), by default the whole store; returns how many entries."""
        stored = [key for key, *_ in self.entries()]
        for key in keys or []:
            if not any(name.startswith(key) for name in stored):
                raise ValueError(f"no entry {key!r} in {self.root}; clip-tca cache list shows them")
        chosen = [name for name in stored if not keys or name.startswith(tuple(keys))]
        for name in chosen:
            shutil.rmtree(self.root / "embeddings" / name)
        if not keys:
            for folder, suffix in {"embeddings": "", "texts": ".safetensors", "models": ".json"}.items():
                for file in (self.root / folder).glob(f"*{suffix}"):
                    if _KEY.fullmatch(file.name.removesuffix(suffix)) and file.is_file():
                        file.unlink()
                sweep((self.root / folder).glob(f".*{PART}"))
                with contextlib.suppress(OSError):  # missing, or holds files that are not ours
                    (self.root / folder).rmdir()
        return len(chosen)


def _stamps(weights: Path, configuration: Path | None) -> list[list[int]]:
    """What changes when the weights or the configuration are written again."""
    files = [weights, *([configuration] if configuration else [])]
    return [[s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for s in map(os.stat, files)]


def _warn(root: Path, error: Exception) -> None:
    reason = getattr(error, "strerror", None) or error
    log.warning("the store in %s can't be written (%s); going on without storing", root, reason)
