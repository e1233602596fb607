"""Unpacks zip and tar archives: regular files only, and none outside the folder."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from clip_tca.core.checks import one_line
from clip_tca.core.progress import Progress

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


def is_archive(path: Path) -> bool:
    """Whether the content is that of a zip or tar archive, whatever the name."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def unpack(archive: Path, folder: Path, progress: bool = False) -> None:
    """Unpack all regular files below ``folder``; links and devices are left out. ValueError if it is damaged."""
    size = archive.stat().st_size
    with archive.open("rb") as raw, Progress(size, f"unpacking {archive.name}", "B", progress) as bar:
        try:
            for name, content in _files(archive, raw):
                target = folder / _inside(name, archive)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                bar.done = min(raw.tell(), size)
        except _DAMAGED as error:
            raise ValueError(f"{archive.name} is damaged ({one_line(error)})") from None


def _files(archive: Path, raw: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each file, in the order of the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(raw) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir() and not entry.filename.startswith("__MACOSX/"):
                    yield entry.filename, zipped.open(entry)
        return
    with tarfile.open(fileobj=raw) as tar:
        for member in tar:
            if member.isfile() and (content := tar.extractfile(member)) is not None:
                yield member.name, content


def _inside(name: str, archive: Path) -> Path:
    """A name in the archive as a path below the folder; ValueError if it leads out of it."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ".." in parts or ":" in parts[0]:
        raise ValueError(f"{archive.name} is not safe: {name!r} leads out of its folder; nothing of it is used")
    return Path(*parts)
