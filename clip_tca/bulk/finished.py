"""Marks of what is finished, so that the same run, started again after it was killed, goes on.

A mark names the files of a shard with size and checksum, and what was counted in it; a file that differs from its mark
is written again. Every mark has the fingerprint of the run: one of other inputs or options counts as none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.state import load
from clip_tca.bulk.tally import Tally
from clip_tca.core.files import write_text
from clip_tca.core.remote import Location, stamp

RUN, FIT = "run", "fit"
"""Marks beside those of shards: that the run has begun, and what its first pass has found."""


@dataclass
class Finished:
    """Marks in the folder ``marks`` of files in the folder ``place``, by the run ``fingerprint``."""

    marks: Location
    place: Location
    fingerprint: str
    _verified: dict[str, Tally | None] = field(default_factory=dict)

    def begun(self, name: str) -> bool:
        """Whether this run has begun to give the files of a shard their final names: what is there is its own."""
        return self._read(name) is not None

    def begin(self, name: str = RUN) -> None:
        """Say that the run has begun, or that the files of a shard are about to get their final names."""
        self._write(name, {})

    def finished(self, name: str, files: list[str]) -> Tally | None:
        """What was counted in a shard if all its files are there and as they were written; else None."""
        if name not in self._verified:
            self._verified[name] = self._verify(name, files)
        return self._verified[name]

    def finish(self, name: str, checksums: Mapping[str, int | None], tally: Tally) -> None:
        """Mark a shard whose files are in their place; a checksum that is not known is found by reading the file."""
        files = {file: seal(self.place / file, checksum) for file, checksum in checksums.items()}
        self._write(name, {"files": files, "counts": tally.counts()})

    def keep_fit(self, adapter: Adapter | None, tally: Tally) -> None:
        """Keep what the first pass has found, and the adapter if it has learned."""
        if adapter is not None:
            adapter.save(self.marks / f"{FIT}.safetensors")
        self._write(FIT, {"counts": tally.counts(), "learned": adapter is not None})

    def kept_fit(self, device: torch.device) -> tuple[Adapter | None, Tally] | None:
        """What :meth:`keep_fit` kept; None if there is nothing, or it is damaged."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if mark := self._read(FIT):
                path = self.marks / f"{FIT}.safetensors"
                return load(path, device) if mark["learned"] else None, Tally.of(mark["counts"])
        return None

    def forget(self, names: list[str]) -> None:
        """Remove marks, and the folder with the last of them."""
        for name in [*(f"{name}.json" for name in (*names, RUN, FIT)), f"{FIT}.safetensors"]:
            (self.marks / name).unlink(missing_ok=True)
        if isinstance(self.marks, Path):
            with suppress(OSError):
                self.marks.rmdir()

    def _verify(self, name: str, files: list[str]) -> Tally | None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            mark = self._read(name) or {}
            if sorted(mark["files"]) == files and all(seal(self.place / file) == mark["files"][file] for file in files):
                return Tally.of(mark["counts"])
        return None

    def _read(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError, RecursionError):
            if f"{name}.json" not in self._names:
                return None
            mark = json.loads((self.marks / f"{name}.json").read_text(encoding="utf-8"))
            if isinstance(mark, dict) and mark.get("fingerprint") == self.fingerprint:
                return mark
        return None

    def _write(self, name: str, mark: dict[str, Any]) -> None:
        path, text = self.marks / f"{name}.json", json.dumps({"fingerprint": self.fingerprint, **mark})
        write_text(path, text) if isinstance(path, Path) else path.write_text(text)

    @cached_property
    def _names(self) -> set[str]:
        """The marks of earlier runs, listed once: to ask for each would take as many requests as there are shards."""
        return {path.name for path in self.marks.iterdir()} if self.marks.is_dir() else set()


def seal(path: Location, checksum: int | None = None) -> list[Any]:
    """What a file must look like to be taken as written: size and checksum, or what the store says of its content."""
    if not isinstance(path, Path):
        return stamp(path)
    if checksum is None:
        checksum = 0
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]
