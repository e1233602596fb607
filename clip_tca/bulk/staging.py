"""Output that appears whole under its final name, or not at all: built in a folder beside it, then renamed.

.NAME.part/        while it is being written; locked, so that two runs do not write the same output:
  out/             the output
  run.json         the fingerprint of the run
  done/            marks of finished shards, with which the same run goes on if it was killed
NAME               a file or a folder
NAME.json          the record of a file; of a folder it is NAME/_clip-tca.json
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from clip_tca.bulk.finished import Finished
from clip_tca.bulk.tally import Tally
from clip_tca.core.files import PART, lock, write_text

log = logging.getLogger("clip_tca.bulk.staging")

RECORD = "_clip-tca.json"
"""Name of the record in an output folder: readers of data sets skip names that begin with an underscore."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that a disk is full."""

RUN = "run.json"
DONE = "done"


class Staging:
    """A ``with`` block in which :attr:`folder` is filled; :meth:`commit` gives it its final name.

    With a ``fingerprint``, finished ``shards`` (their files by name) stay there when the run is killed or interrupted,
    for the next run with the same one.
    """

    def __init__(
        self,
        target: Path,
        *,
        single: bool,
        overwrite: bool = False,
        fingerprint: str | None = None,
        shards: Mapping[str, list[str]] | None = None,
    ) -> None:
        """Check that ``target`` may be written: a file if ``single``, else a folder."""
        self.target = Path(os.path.realpath(target))
        self.single, self.shards, self._lock = single, shards or {}, -1
        self.folder = self.target.with_name(f".{self.target.name}{PART}")
        self.progress = None
        if fingerprint is not None and not single:
            self.progress = Finished(self.folder / DONE, self.folder / "out", fingerprint)
        if not self.target.parent.is_dir():
            raise FileNotFoundError(f"output: the folder {target.parent} does not exist; create it first")
        self._recover()
        for path in (path for path in self._final_paths() if path.exists()):
            if not overwrite:
                raise ValueError(f"output: {path} exists; choose another name, or replace it: --overwrite")
            if path.is_dir() and (single or not (path / RECORD).is_file()):
                raise ValueError(f"output: {path} is a folder that clip-tca adapt did not write; choose another name")
            if not single and not path.is_dir():
                raise ValueError(f"output: {path} is a file, and a folder is to be written; choose another name")

    def _final_paths(self) -> list[Path]:
        return [self.target, self.target.with_name(f"{self.target.name}.json")] if self.single else [self.target]

    def staged(self) -> list[Path]:
        """Where the contents of the final paths are while they are written."""
        out = self.folder / "out"
        return [out / self.target.name, out / f"{self.target.name}.json"] if self.single else [out]

    @property
    def out(self) -> Path:
        """Where to write."""
        return self.staged()[0]

    @property
    def record(self) -> Path:
        """Where to write the record."""
        return self.staged()[1] if self.single else self.staged()[0] / RECORD

    def __enter__(self) -> Staging:
        """Make the folder, and remove what a killed run has left in it, but for finished shards of the same run."""
        self._acquire()
        if self.progress is None or self._fingerprint() != self.progress.fingerprint:
            self._clear()
        else:
            self._tidy(self.progress)
        return self

    def _clear(self) -> None:
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        (self.folder / "out").mkdir()
        if self.progress is not None:
            (self.folder / DONE).mkdir()
            write_text(self.folder / RUN, json.dumps({"fingerprint": self.progress.fingerprint}))

    def _tidy(self, progress: Finished) -> None:
        """Remove all files that no mark covers."""
        (self.folder / DONE).mkdir(exist_ok=True)
        done = [files for name, files in self.shards.items() if progress.finished(name, files) is not None]
        finished = {self.out / file for files in done for file in files}
        for path in [path for path in self.out.rglob("*") if not path.is_dir() and path not in finished]:
            path.unlink()

    def _fingerprint(self) -> object:
        """That of the run whose files are here."""
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            if self.out.is_dir():
                return json.loads((self.folder / RUN).read_text(encoding="utf-8")).get("fingerprint")
        return None

    def finished(self, name: str) -> Tally | None:
        """What an earlier run has counted in a shard that it has finished."""
        return None if self.progress is None else self.progress.finished(name, self.shards[name])

    def finish(self, name: str, tally: Tally, checksums: Mapping[Path, int]) -> None:
        """Mark a shard that is written to its end."""
        if self.progress is not None:
            self.progress.finish(name, {file: checksums.get(self.out / file) for file in self.shards[name]}, tally)

    def _acquire(self) -> None:
        """Lock the folder against other runs; the system unlocks it when the process ends in any way."""
        while True:
            self.folder.mkdir(exist_ok=True)
            try:
                self._lock = lock(self.folder)
            except BlockingIOError:
                raise ValueError(f"output: another run is writing {self.target}; wait for it") from None
            except FileNotFoundError:  # it was another run's, which has just ended and removed it
                continue
            except OSError:  # no locks here
                pass
            return

    def _recover(self) -> None:
        """Finish the commit of a run that was killed during it, and remove its files, unless a run can go on with them.

        Nothing, if it still runs.
        """
        with contextlib.suppress(OSError):
            handle = lock(self.folder)
            try:
                staged, final = self.staged(), self._final_paths()
                if self.single and self.target.exists() and staged[1].exists() and not staged[0].exists():
                    os.replace(staged[1], final[1])
                if not self.single and (self.folder / "old").exists() and not self.target.exists():
                    os.replace(staged[0], self.target)
                if self._fingerprint() is None:
                    shutil.rmtree(self.folder)
            finally:
                os.close(handle)

    def write_record(self, text: str) -> None:
        """Write the record."""
        self.record.write_text(text, encoding="utf-8")

    def commit(self) -> None:
        """Give everything its final name."""
        for staged, final in zip(self.staged(), self._final_paths(), strict=True):
            if not final.is_dir():
                os.replace(staged, final)
                continue
            old = self.folder / "old"
            os.replace(final, old)
            try:
                os.replace(staged, final)
            except OSError:
                os.replace(old, final)
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Remove what is left; after a bad input or on a full disk all of it, else but for finished shards."""
        refused = isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno in FULL)
        marks = self.folder / DONE
        if kind is not None and not refused and marks.is_dir() and any(marks.glob("*.json")):
            log.warning("what is finished is kept in %s: the same command goes on with it", self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
