"""Atomic writing: a file appears complete under its final name, or not at all, on a disk or in an object store.

And copies on this machine of what is in a store, for libraries that read local files only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from clip_tca.core.folders import default_root
from clip_tca.core.progress import tracked
from clip_tca.core.remote import Location, RemotePath

if TYPE_CHECKING:
    from torch import Tensor

L = TypeVar("L", bound=Location)

PART = ".part"
"""Suffix of a file or folder that is still being written."""

WHOLE = ".whole"
"""Suffix before that one when the content is complete and only the rename is left."""

STAMPS = ".stamps"
"""In a copied folder: a line ``[name, stamp]`` for each file."""

_RUN, _COUNT = os.urandom(4).hex(), itertools.count()
"""With the machine and the process id, they make temporary names unique, also where process ids begin anew."""


@contextmanager
def atomic(path: Location) -> Iterator[Path]:
    """A temporary file to write to, in a folder of its own beside ``path``; it is renamed to ``path`` at the end.

    For a store it is written on this machine and uploaded at the end; if that fails, it is kept here.

    After an error it is removed. The leftovers of a killed run are removed when the same file is written again. A
    symbolic link stays one: its target is replaced. Pipes and devices are written directly. An OSError has the name of
    the file, even if the system's has none, as when the disk is full.
    """
    if isinstance(path, RemotePath):
        with scratch(path) as folder:
            yield folder / path.name
            try:
                path.put(folder / path.name)
            except OSError as error:
                kept = Path(tempfile.mkdtemp(prefix="clip-tca-kept-")) / path.name
                shutil.move(folder / path.name, kept)
                raise OSError(f"{error}; it is kept in {kept}") from error
        return
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    with scratch(path) as folder:
        part, whole = folder / path.name, folder.with_suffix(f"{WHOLE}{PART}")
        yield part  # libraries may write more files beside it, or replace it
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)
        try:
            os.replace(part, whole)  # out of the folder first, so that the last step is one atomic rename
            shutil.rmtree(folder)
            os.replace(whole, path)
        finally:
            whole.unlink(missing_ok=True)


@contextmanager
def scratch(target: Location | None = None) -> Iterator[Path]:
    """A folder for temporary files, beside the ``target`` that they become; without one on a disk, in the cache folder.

    What a killed run has left there is removed by the next one.
    """
    near = target if isinstance(target, Path) else default_root() / "tmp" / "run"
    near.parent.mkdir(parents=True, exist_ok=True)
    prefix = _prefix(near)
    sweep(near.parent / name for name in os.listdir(near.parent) if name.startswith(prefix))
    folder = near.parent / f"{prefix}{_host()}-{os.getpid()}-{_RUN}{next(_COUNT):x}{PART}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(target or near)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(path: Path) -> str:
    """The prefix of temporary names for ``path``; a name near the length limit is hashed."""
    name = os.fsencode(path.name)
    return f".{path.name if len(name) < 200 else hashlib.sha256(name).hexdigest()}."


def _host() -> str:
    """This machine, and the container in it: others that share a folder have processes of the same numbers."""
    container = ""
    with suppress(OSError):  # the name of the process numbers' space, on Linux
        container = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {container}".encode()).hexdigest()[:8]


def sweep(leftovers: Iterable[Path]) -> None:
    """Remove those temporary files and folders whose process, on this machine, has ended."""
    ours = re.compile(rf"\..+\.{_host()}-(\d+)-([0-9a-f]{{8}})[0-9a-f]+(\{WHOLE})?\{PART}", re.DOTALL)
    for leftover in leftovers:
        if (found := ours.fullmatch(leftover.name)) and not _alive(int(found[1]), found[2]):
            with suppress(OSError):
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def _alive(process: int, run: str) -> bool:
    if process == os.getpid():
        return run == _RUN
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it may be another user's
    return True


@contextmanager
def local_copy(path: Location) -> Iterator[Path]:
    """The file for libraries that can read local ones only."""
    if isinstance(path, Path):
        yield path
        return
    with scratch() as folder:
        path.get(folder / path.name)
        yield folder / path.name


def copied(source: RemotePath, root: Path, shown: bool = False) -> Path:
    """The local copy, below ``root``, of a folder in a store or of one file; ``shown``: with progress.

    A copy is kept, with the stamp of every file: what has not changed in the store is not copied again, what is gone
    there is removed here, and a copy that was interrupted goes on.

    Raises:
        FileNotFoundError: If there is nothing at the address.
        ValueError: If a file there has a name that leads out of the folder.
    """
    files = source.files()
    if not files:
        raise FileNotFoundError(f"{source}: no such file, folder or bucket; check the address")
    if strange := next((name for name in files if ".." in PurePosixPath(name).parts or name.startswith("/")), None):
        raise ValueError(f"{source}: a file is called {strange!r}, which leads out of the folder; rename it")
    folder = root / f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for path in [path for path in folder.rglob("*") if path.is_file() and path != folder / STAMPS]:
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    with (folder / STAMPS).open("a+", encoding="utf-8") as log:
        log.seek(0)
        known: dict[str, Any] = {}
        for line in log:
            with suppress(ValueError, TypeError):  # the last one of a killed run
                known.update([json.loads(line)])
        missing = [
            name for name, (_, stamp) in files.items() if known.get(name) != stamp or not (folder / name).exists()
        ]
        for name in tracked(missing, len(missing), f"copying {source.name}", "file", shown):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with atomic(folder / name) as part:
                files[name][0].get(part)
            log.write(f"{json.dumps([name, files[name][1]])}\n")
            log.flush()
    return folder / source.name if source.is_file() else folder


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

    def key(text: str) -> list[int | str]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]

    return sorted(paths, key=lambda path: (key(path.name), key(str(path))))


def sha256(path: Location) -> str:
    """Hash of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
