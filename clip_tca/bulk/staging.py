"""Output that appears whole under its final name, or not at all: built in a folder beside it, then renamed.

.NAME.part/        while it is being written; locked, so that two runs do not write the same output
NAME               a file or a folder
NAME.json          the record of a file; of a folder it is NAME/_clip-tca.json
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from clip_tca.core.files import PART, lock, sweep

RECORD = "_clip-tca.json"
"""Name of the record in a folder of ours: readers of data sets pass over names that begin like this."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that a disk is full."""


class Staging:
    """A ``with`` block in which :attr:`folder` is filled; :meth:`commit` gives it its final name.

    Only the first of several processes makes, renames and locks it; if it has died, any of the others removes it.
    """

    def __init__(self, target: Path, *, single: bool, overwrite: bool = False, first: bool = True) -> None:
        """Check that ``target`` may be written: a file if ``single``, else a folder."""
        self.target = Path(os.path.realpath(target))
        self.single, self.first, self._lock = single, first, -1
        self.folder = self.target.with_name(f".{self.target.name}{PART}")
        if not self.target.parent.is_dir():
            raise FileNotFoundError(f"output: the folder {target.parent} does not exist; create it first")
        if first:
            self._recover()
        for there in (path for path in self._finals() if path.exists()):
            if not overwrite:
                raise ValueError(f"output: {there} exists; choose another name, or replace it: --overwrite")
            if there.is_dir() and (single or not (there / RECORD).is_file()):
                raise ValueError(f"output: {there} is a folder that clip-tca adapt did not write; choose another name")
            if not single and not there.is_dir():
                raise ValueError(f"output: {there} is a file, and a folder is to be written; choose another name")

    def _finals(self) -> list[Path]:
        return [self.target, self.target.with_name(f"{self.target.name}.json")] if self.single else [self.target]

    def inside(self) -> list[Path]:
        """Where the contents of :meth:`_finals` are while they are written."""
        out = self.folder / "out"
        return [out / self.target.name, out / f"{self.target.name}.json"] if self.single else [out]

    @property
    def record(self) -> Path:
        """Where to write the record."""
        return self.inside()[1] if self.single else self.inside()[0] / RECORD

    def __enter__(self) -> Staging:
        """Make the folder; what a run that was killed has left of it goes away."""
        if self.first:
            self._take()
            for old in self.folder.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            (self.folder / "out").mkdir()
        return self

    def _take(self) -> None:
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
        """End the commit in which a run was killed, and remove the rest of what it left; nothing, if it still runs."""
        with contextlib.suppress(OSError):
            handle = lock(self.folder)
            try:
                built, finals = self.inside(), self._finals()
                if self.single and self.target.exists() and built[1].exists() and not built[0].exists():
                    os.replace(built[1], finals[1])
                if not self.single and (self.folder / "old").exists() and not self.target.exists():
                    os.replace(built[0], self.target)
                shutil.rmtree(self.folder)
            finally:
                os.close(handle)

    def commit(self) -> None:
        """Give everything its final name."""
        for built, final in zip(self.inside(), self._finals(), strict=True):
            if not final.is_dir():
                os.replace(built, final)
                continue
            old = self.folder / "old"
            os.replace(final, old)
            try:
                os.replace(built, final)
            except OSError:
                os.replace(old, final)
                raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove what is left."""
        if self.first:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif kind is not None:  # while the first lives, it is locked, and the first will remove it
            sweep([self.folder])
        if self._lock >= 0:
            os.close(self._lock)
