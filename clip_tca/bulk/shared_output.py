"""Output whose shards appear one by one: in an object store, or in a folder that several tasks share.

NAME/shard                     every shard appears whole under its final name, or not at all
NAME/_clip-tca/                marks of what is finished, while the run lasts; it goes on with them if it was killed
NAME/_clip-tca.json            the record, written last: where it is, all shards are
NAME/_clip-tca-I-of-N…         both, of task I of N

A single file in a store has its record beside it, NAME.json.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from clip_tca.bulk.finished import Finished
from clip_tca.bulk.tally import Tally
from clip_tca.core.files import scratch, sweep_beside, write_text
from clip_tca.core.remote import Location


class SharedOutput:
    """A ``with`` block in which shards are written to :attr:`out`, on this machine, and then put in their place."""

    def __init__(
        self,
        target: Location,
        *,
        single: bool,
        shards: Mapping[str, list[str]],
        overwrite: bool = False,
        first: bool = True,
        fingerprint: str | None = None,
        task: tuple[int, int] | None = None,
    ) -> None:
        """Check that nothing but what this run has begun is in the place of ``shards`` (their files by name)."""
        self.target, self.single, self.shards, self.first = target, single, shards, first
        self.place = target.parent if single else target
        name = "_clip-tca" if task is None else f"_clip-tca-{task[0]}-of-{task[1]}"
        self.record = target.with_name(f"{target.name}.json") if single else target / f"{name}.json"
        self.progress = None
        if fingerprint is not None and not single:
            self.progress = Finished(target / name, target, fingerprint)
        self._stack = ExitStack()
        self._check(overwrite)

    def _check(self, overwrite: bool) -> None:
        if isinstance(self.target, Path) and not self.target.parent.is_dir():
            raise FileNotFoundError(f"output: the folder {self.target.parent} does not exist; create it first")
        if isinstance(self.target, Path):
            sweep_beside(self.target)
        if not self.single and self.target.is_file():
            raise ValueError(f"output: {self.target} is a file, and a folder is to be written; choose another name")
        if self.record.exists():
            if not overwrite:
                if self.progress is not None:
                    self.progress.forget(list(self.shards))
                raise ValueError(f"output: {self.record} exists; choose another name, or replace it: --overwrite")
            if self.first:
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

    def __enter__(self) -> SharedOutput:
        """Make a folder for shards that are being written."""
        local = self.target if isinstance(self.target, Path) else None
        self._folder = self._stack.enter_context(scratch(local))
        if local is not None:
            local.mkdir(exist_ok=True)
        if self.progress is not None and isinstance(self.progress.marks, Path):
            self.progress.marks.mkdir(exist_ok=True)
        if self.progress is not None and self.first:
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
            _move(self._folder / file, self.place / file)
        if self.progress is not None:
            self.progress.finish(name, {file: checksums.get(self._folder / file) for file in files}, tally)

    def write_record(self, text: str) -> None:
        """Write the record, after everything else."""
        write_text(self.record, text)

    def commit(self) -> None:
        """Remove the marks."""
        if self.progress is not None:
            self.progress.forget(list(self.shards))


def _move(local: Path, final: Location) -> None:
    if isinstance(final, Path):
        final.parent.mkdir(exist_ok=True)
        os.replace(local, final)
    else:
        final.put(local)
        local.unlink()
