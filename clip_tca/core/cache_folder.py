"""Where embeddings and data sets are kept."""

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
