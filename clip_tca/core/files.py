"""Atomic writing: a file appears complete under its final name, or not at all, on a disk or in an object store."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clip_tca.core.remote import Location, RemotePath

if TYPE_CHECKING:
    from torch import Tensor

L = TypeVar("L", bound=Location)

PART = ".part"
"""Suffix of a file or folder that is still being written."""

WHOLE = ".whole"
"""Suffix before that one when the content is complete and only the rename is left."""


@contextmanager
def atomic(path: Location) -> Iterator[Path]:
    """A temporary file to write to, in a folder of its own beside ``path``; it is renamed to ``path`` at the end.

    For a store it is written on this machine and uploaded at the end; if that fails, it is kept here.

    After an error it is removed. The leftovers of a killed run are removed when the same file is written again. A
    symbolic link stays one: its target is replaced. Pipes and devices are written directly. An OSError has the name of
    the file, even if the system's has none, as when the disk is full.
    """
    if isinstance(path, RemotePath):
        with scratch() as folder:
            yield folder / path.name
            _upload(folder / path.name, path)
        return
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    folder, handle = _locked_folder(path)
    part, whole = folder / path.name, folder.with_suffix(f"{WHOLE}{PART}")
    with ExitStack() as stack:
        _close_after(stack, handle)
        stack.callback(whole.unlink, missing_ok=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_naming(path))
        yield part  # libraries may write more files beside it, or replace it
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)
        _close_after(stack, _lock_if_possible(part))
        os.replace(part, whole)  # out of the folder first, so that the last step is one atomic rename
        shutil.rmtree(folder)
        os.replace(whole, path)


def _upload(local: Path, path: RemotePath) -> None:
    try:
        path.put(local)
    except OSError as error:
        kept = Path(tempfile.mkdtemp(prefix="clip-tca-kept-")) / path.name
        shutil.move(local, kept)
        raise OSError(f"{error}; it is kept in {kept}") from error


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for temporary files, in TMPDIR; that of a killed run is removed by the next."""
    folder, handle = _locked_folder(Path(tempfile.gettempdir()) / "clip-tca")
    with ExitStack() as stack:
        _close_after(stack, handle)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextmanager
def local_copy(path: Location) -> Iterator[Path]:
    """The file for libraries that can read local ones only."""
    if isinstance(path, Path):
        yield path
        return
    with scratch() as folder:
        path.get(folder / path.name)
        yield folder / path.name


def _prefix(path: Path) -> str:
    """The prefix of temporary names for ``path``; a name near the length limit is hashed."""
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
    """A new folder beside ``path``, and the lock on it if the system has locks; those of killed runs are removed."""
    sweep_beside(path)
    while True:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix=PART))
        try:
            return folder, _lock_if_possible(folder)
        except (BlockingIOError, FileNotFoundError):  # another run removed it as a leftover before it was locked
            continue


def _lock_if_possible(path: Path) -> int | None:
    try:
        return lock(path)
    except (BlockingIOError, FileNotFoundError):
        raise
    except OSError:
        return None


def lock(path: Path, wait: bool = False) -> int:
    """Lock ``path`` against other runs; the lock ends when the returned handle is closed or the process ends.

    BlockingIOError if another run holds the lock, unless ``wait``; FileNotFoundError if ``path`` is gone; another
    OSError if this system or file system has no such locks.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOLCK, "no locks on this system") from None
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path), os.fstat(handle)):
            raise FileNotFoundError(errno.ENOENT, "replaced in the meantime", str(path))
    except BaseException:
        os.close(handle)
        raise
    return handle


def sweep(leftovers: Iterable[Path]) -> None:
    """Remove the leftovers of killed runs; what another run is still writing is locked, and stays."""
    for leftover in leftovers:
        with suppress(OSError):
            handle = lock(leftover)
            try:
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()
            finally:
                os.close(handle)


def sweep_beside(path: Path) -> None:
    """Remove what killed runs that wrote ``path`` have left beside it."""
    ours = re.compile(rf"{re.escape(_prefix(path))}[a-z0-9_]{{8}}({re.escape(WHOLE)})?{re.escape(PART)}")
    sweep(path.parent / name for name in os.listdir(path.parent) if ours.fullmatch(name))


def write_text(path: Location, text: str) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8; what is not Unicode, as in file names, is escaped."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_tensors(path: Location, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a ``.safetensors`` file atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save, save_file

    try:
        with atomic(path) as part:
            if part.exists():  # a pipe or a device, which that library would replace by a file
                part.write_bytes(save(tensors, metadata))
            else:
                save_file(tensors, part, metadata=metadata)
    except SafetensorError as error:  # raised by the library when the disk is full
        raise OSError(f"{path} can't be written ({error})") from error


def natural_order(paths: Iterable[L]) -> list[L]:
    """Paths in the order of the numbers in their names: shard_2 before shard_10."""
    return sorted(paths, key=lambda path: [*natural_key(path.name), *natural_key(str(path))])


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """What names are sorted by: numbers in them by their value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def sha256(path: Location) -> str:
    """Hash of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
