"""Output in an object store, where shards appear one by one.

NAME/shard                     every shard appears whole under its final name, or not at all
NAME/_clip-tca/                marks of what is finished, while the run lasts; it goes on with them if it was killed
NAME/_clip-tca.json            the record, written last: where it is, all shards are

A single file has its record beside it, NAME.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from clip_tca.bulk.finished import Finished
from clip_tca.bulk.staging import RECORD
from clip_tca.bulk.tally import Tally
from clip_tca.core.files import scratch, write_text
from clip_tca.core.remote import RemotePath

MARKS = "_clip-tca"
"""Folder of the marks in an output folder."""


class StoreOutput:
    """A ``with`` block in which shards are written to :attr:`out`, on this machine, and then put in their place."""

    def __init__(
        self,
        target: RemotePath,
        *,
        single: bool,
        shards: Mapping[str, list[str]],
        overwrite: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        """Check that nothing but what this run has begun is in the place of ``shards`` (their files by name)."""
        self.target, self.single, self.shards = target, single, shards
        self.place = target.parent if single else target
        self.record = target.with_name(f"{target.name}.json") if single else target / RECORD
        self.progress = None
        if fingerprint is not None and not single:
            self.progress = Finished(target / MARKS, target, fingerprint)
        self._stack = ExitStack()
        self._check(overwrite)

    def _check(self, overwrite: bool) -> None:
        if not self.single and self.target.is_file():
            raise ValueError(f"output: {self.target} is a file, and a folder is to be written; choose another name")
        if self.record.exists():
            if not overwrite:
                if self.progress is not None:
                    self.progress.forget(list(self.shards))
                raise ValueError(f"output: {self.record} exists; choose another name, or replace it: --overwrite")
            self.record.unlink()
        if overwrite:
            return
        existing = {self.target} if self.single and self.target.exists() else set()
        if not self.single:
            folders = {(self.place / file).parent for files in self.shards.values() for file in files}
            existing = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
        for name, files in self.shards.items():
            taken = [self.place / file for file in files if self.place / file in existing]
            if taken and not (self.progress is not None and self.progress.begun(name)):
                raise ValueError(
                    f"output: {taken[0]} exists, of a run with other options or inputs; choose another name, or "
                    "replace it: --overwrite"
                )

    @property
    def out(self) -> Path:
        """Where to write: a file if the output is one, else a folder."""
        return self._folder / self.target.name if self.single else self._folder

    def __enter__(self) -> StoreOutput:
        """Make a folder for shards that are being written."""
        self._folder = self._stack.enter_context(scratch())
        if self.progress is not None:
            self.progress.begin()  # a place that can't be written is noticed before the work
        return self

    def __exit__(self, *error: object) -> None:
        """Remove that folder; what is in its place stays."""
        self._stack.close()

    def finished(self, name: str) -> Tally | None:
        """What an earlier run has counted in a shard that it has finished."""
        return None if self.progress is None else self.progress.finished(name, self.shards[name])

    def finish(self, name: str, tally: Tally, checksums: Mapping[Path, int]) -> None:
        """Put the files of a shard in their place, and mark it."""
        files = self.shards[name]
        if self.progress is not None:
            self.progress.begin(name)
        for file in files:
            (self.place / file).put(self._folder / file)
            (self._folder / file).unlink()
        if self.progress is not None:
            self.progress.finish(name, {file: checksums.get(self._folder / file) for file in files}, tally)

    def write_record(self, text: str) -> None:
        """Write the record, after everything else."""
        write_text(self.record, text)

    def commit(self) -> None:
        """Remove the marks."""
        if self.progress is not None:
            self.progress.forget(list(self.shards))
