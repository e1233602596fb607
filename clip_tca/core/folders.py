"""Where things are: embeddings and data sets in the cache folder, ``prompts/`` and ``eval/`` beside the code."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """``CLIP_TCA_CACHE``, else ``clip-tca`` in the XDG cache folder."""
    if chosen := os.environ.get("CLIP_TCA_CACHE"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "clip-tca"
    except RuntimeError:
        raise ValueError("no home folder for the store; set CLIP_TCA_CACHE to a folder, or use --no-cache") from None


def data_root() -> Path:
    """``CLIP_TCA_DATA``, else ``data`` beside the embeddings."""
    chosen = os.environ.get("CLIP_TCA_DATA")
    return Path(chosen).expanduser() if chosen else default_root() / "data"


def resource(name: str) -> Path:
    """A bundled file, such as ``prompts/watt.txt``: inside an installed wheel, or at the top of a checkout."""
    package, parts = Path(__file__).resolve().parents[1], Path(name).parts
    for root in (package / "_resources", package.parent):
        if parts[:1] in (("prompts",), ("eval",)) and ".." not in parts and (root / name).is_file():
            return root / name
    raise FileNotFoundError(f"{name}: not found in the installed package or beside it; reinstall clip-tca")
