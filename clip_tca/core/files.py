"""Files that appear whole under their final name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PART = ".part"
"""How the name of something that is still being written ends."""

WHOLE = ".whole"
"""What stands before that when nothing is missing but the name."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A file to write to, in a folder of its own beside ``path``; it takes that name at the end.

    After an error it goes away, and what a run that was killed has left, when the same file is written again. A
    symbolic link stays one: the file it points to is replaced. Pipes and devices are written to as they are.

    Raises:
        OSError: With the name of the file, where the system's own names none, as when the disk is full.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    ours = re.compile(rf"{re.escape(_prefix(path))}[a-z0-9_]{{8}}({re.escape(WHOLE)})?{re.escape(PART)}")
    sweep(path.parent / name for name in os.listdir(path.parent) if ours.fullmatch(name))
    folder, handle = _locked_folder(path)
    part, whole = folder / path.name, folder.with_suffix(f"{WHOLE}{PART}")
    with ExitStack() as stack:
        _close_after(stack, handle)
        stack.callback(whole.unlink, missing_ok=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_naming(path))
        yield part  # libraries may put files of their own beside it, or another one in its place
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)
        _close_after(stack, _lock_if_possible(part))
        os.replace(part, whole)  # out of the folder, so that the last step of all is the one that gives the name
        shutil.rmtree(folder)
        os.replace(whole, path)


def _prefix(path: Path) -> str:
    """How the names of what is being written for ``path`` begin; a name as long as names may be is hashed."""
    name = os.fsencode(path.name)
    return f".{path.name if len(name) < 200 else hashlib.sha256(name).hexdigest()}."


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _close_after(stack: ExitStack, handle: int | None) -> None:
    if handle is not None:
        stack.callback(os.close, handle)


def _locked_folder(path: Path) -> tuple[Path, int | None]:
    """A new folder beside ``path``, and the lock on it if there are locks."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix=PART))
        try:
            return folder, _lock_if_possible(folder)
        except (BlockingIOError, FileNotFoundError):  # another run took it for a stray, before it was locked
            continue


def _lock_if_possible(path: Path) -> int | None:
    try:
        return lock(path)
    except (BlockingIOError, FileNotFoundError):
        raise
    except OSError:
        return None


def lock(path: Path) -> int:
    """A handle that keeps other runs from locking ``path`` until it is closed or the process ends in any way.

    Raises:
        BlockingIOError: If another run holds it.
        FileNotFoundError: If it is gone.
        OSError: If there are no such locks on this system or file system.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOLCK, "no locks on this system") from None
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path), os.fstat(handle)):
            raise FileNotFoundError(errno.ENOENT, "replaced meanwhile", str(path))
    except BaseException:
        os.close(handle)
        raise
    return handle


def sweep(strays: Iterable[Path]) -> None:
    """Remove what runs that were killed have left; what a living run is writing is locked, and stays."""
    for stray in strays:
        with contextlib.suppress(OSError):
            handle = lock(stray)
            try:
                shutil.rmtree(stray, ignore_errors=True) if stray.is_dir() else stray.unlink()
            finally:
                os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8; of a name that is not Unicode, its bytes are written out."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a ``.safetensors`` file atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save, save_file

    try:
        with atomic(path) as part:
            if part.exists():  # a pipe or a device, in whose place that library would put a file
                part.write_bytes(save(tensors, metadata))
            else:
                save_file(tensors, part, metadata=metadata)
    except SafetensorError as error:  # which is how its library says that a disk is full
        raise OSError(f"{path} can't be written ({error})") from error


def sha256(path: Path) -> str:
    """Hash of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
