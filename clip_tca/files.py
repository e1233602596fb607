"""Files that appear whole under their final name, or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"
"""How the name of a file that is still being written ends."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes that name at the end, and goes away after an error.

    A symbolic link stays one: the file it points to is replaced. Pipes and devices are written to as they are.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    os.close(handle)
    try:
        yield Path(name)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Hash of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
