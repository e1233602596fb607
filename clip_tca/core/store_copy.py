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

from clip_tca.core.files import atomic, write_text
from clip_tca.core.progress import tracked
from clip_tca.core.remote import RemotePath

STAMPS = ".stamps.json"
OFTEN = 200
"""Files after which the stamps are written."""


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
    known = _stamps(folder)
    old = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name, path in old.items():
        if name != STAMPS and name not in files:
            path.unlink()
    missing = [name for name, (_, stamp) in files.items() if known.get(name) != stamp or name not in old]
    try:
        for number, name in enumerate(tracked(missing, len(missing), f"copying {source.name}", "file", shown), 1):
            remote, stamp = files[name]
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with atomic(folder / name) as part:
                remote.get(part)
            known[name] = stamp
            if number % OFTEN == 0:
                write_text(folder / STAMPS, json.dumps(known))
    finally:
        write_text(folder / STAMPS, json.dumps({name: stamp for name, stamp in known.items() if name in files}))
    return folder / source.name if source.is_file() else folder


def _stamps(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / STAMPS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
