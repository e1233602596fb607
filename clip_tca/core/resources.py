"""Where ``prompts/`` and ``eval/`` are: inside an installed wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("prompts", "eval")


def resource(name: str) -> Path:
    """The path of a bundled file, such as ``prompts/watt.txt``; FileNotFoundError if it is in neither place."""
    package = Path(__file__).resolve().parents[1]
    parts = Path(name).parts
    if not parts or parts[0] not in FOLDERS or ".." in parts:
        raise FileNotFoundError(f"{name}: not a resource; names begin with {' or '.join(f'{f}/' for f in FOLDERS)}")
    for root in (package / "_resources", package.parent):
        if (root / name).is_file():
            return root / name
    raise FileNotFoundError(f"{name}: not found in the installed package or beside it; reinstall clip-tca")
