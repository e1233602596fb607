"""Copies of what lies in a store, for readers that need files of this machine: folders of pictures, weights.

A copy is kept, with the stamp of every file: what has not changed in the store is not copied again, what is gone there
is removed here, and a copy that was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from clip_tca.core.files import atomic
from clip_tca.core.progress import tracked
from clip_tca.core.remote import RemotePath

STAMPS = ".stamps"
"""A line ``[name, stamp]`` for each copied file."""


def copied(source: RemotePath, root: Path, shown: bool = False) -> Path:
    """The local copy, below ``root``, of a folder in a store or of one file; ``shown``: with progress.

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
