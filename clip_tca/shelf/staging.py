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
from types import TracebackType

from clip_tca.files import PART

RECORD = "_clip-tca.json"
"""Name of the record in a folder of ours: readers of data sets pass over names that begin like this."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that a disk is full."""


class Staging:
    """A ``with`` block in which :attr:`folder` is filled; :meth:`commit` gives it its final name.

    Only the first of several processes makes, renames and locks it; any of those that survive a failure removes it.
    """

    def __init__(self, target: Path, *, single: bool, overwrite: bool = False, first: bool = True) -> None:
        """Check that ``target`` may be written: a file if ``single``, else a folder."""
        self.target = Path(os.path.realpath(target))
        self.single, self.first, self._lock = single, first, -1
        self.folder = self.target.with_name(f".{self.target.name}{PART}")
        if not self.target.parent.is_dir():
            raise FileNotFoundError(f"output: the folder {target.parent} does not exist; create it first")
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
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            self.folder.mkdir(exist_ok=True)
            return
        while True:
            self.folder.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(self.folder, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                    raise ValueError(f"output: another run is writing {self.target}; wait for it") from None
                except OSError:  # a file system without locks
                    self._lock = handle
                    return
                if self.folder.exists() and _same(self.folder, handle):
                    self._lock = handle
                    return
                os.close(handle)  # it was another run's, which has just ended and removed it

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what is left."""
        if self.first or kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)


def _same(path: Path, handle: int) -> bool:
    return os.path.samestat(path.stat(), os.fstat(handle))
