"""Files that appear complete under their final name, or not at all, on a disk or in an object store.

And copies on this machine of what is in a store, for libraries that read local files only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from clip_tca.core.progress import tracked
from clip_tca.core.remote import Location, RemotePath

if TYPE_CHECKING:
    from torch import Tensor

L = TypeVar("L", bound=Location)

PART = ".part"
"""Suffix of a file or folder that is still being written."""

STAMPS = ".stamps"
"""In a copied folder: a line ``[name, stamp]`` for each file."""


@contextmanager
def atomic(path: Location) -> Iterator[Path]:
    """A temporary file to write to, which replaces ``path`` at the end; after an error it is removed.

    For a store it is written on this machine and uploaded at the end; if that fails, it is kept here. A symbolic link
    stays one: its target is replaced. Pipes and devices are written directly.
    """
    if isinstance(path, RemotePath):
        with scratch() as folder:
            yield folder / path.name
            try:
                path.put(folder / path.name)
            except OSError as error:
                kept = Path(tempfile.mkdtemp(prefix="clip-tca-kept-")) / path.name
                shutil.move(folder / path.name, kept)
                raise type(error)(f"{error}; it is kept in {kept}") from error
        return
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    with scratch(path) as folder:  # a folder, as libraries may write more files beside the first, or replace it
        part = folder / path.name
        part.touch()
        mode = part.stat().st_mode  # as umask wants it; a library may replace the file by a private one
        yield part
        part.chmod(mode)
        os.replace(part, path)


@contextmanager
def scratch(target: Location | None = None) -> Iterator[Path]:
    """A folder for temporary files: beside a local ``target``, so that a rename moves them there, else in TMPDIR."""
    parent = target.parent if isinstance(target, Path) else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".clip-tca-", dir=parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:  # of a full disk: the system does not say which file
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(target or tempfile.gettempdir())) from error


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

    Later calls copy what is new or changed in the store and remove what is gone there. After an interruption the next
    call continues.
    """
    files = source.files()
    if not files:
        raise FileNotFoundError(f"{source}: no such file, folder or bucket; check the address")
    if outside := [name for name in files if ".." in PurePosixPath(name).parts or name.startswith("/")]:
        raise ValueError(f"{source}: a file is called {outside[0]!r}, which leads out of the folder; rename it")
    folder = root / f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    copies = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in copies.keys() - files.keys() - {STAMPS}:
        copies[name].unlink()
    stamps: dict[str, list[Any]] = {}
    for line in (folder / STAMPS).read_text(encoding="utf-8").splitlines() if STAMPS in copies else []:
        with suppress(ValueError):  # the last line of a killed run
            stamps.update([json.loads(line)])
    missing = [name for name, (_, stamp) in files.items() if name not in copies or stamps.get(name) != stamp]
    with (folder / STAMPS).open("a", encoding="utf-8") as log, scratch(folder) as temporary:
        for name in tracked(missing, len(missing), f"copying {source.name}", "file", shown):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files[name][0].get(temporary / "part")
            os.replace(temporary / "part", folder / name)
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
            if not part.is_file():  # a pipe or a device, which save_file would replace by a file
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


def digest(path: Location, algorithm: str = "sha256") -> str:
    """Hash of a file's content."""
    content = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            content.update(block)
    return content.hexdigest()


def sha256(path: Location) -> str:
    """SHA-256 of a file's content."""
    return digest(path)
