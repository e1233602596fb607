"""What a job needs of the machine, asked before the work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from clip_tca.adapters.base import Adapter
from clip_tca.bulk.layout import Layout
from clip_tca.datasets.formats.registry import ARRAYS


def check_classes(adapter: Adapter) -> None:
    """A pseudo-source has rows for every class: refuse more classes than fit into half of the memory."""
    classifier, k = adapter.classifier, getattr(adapter, "k", "auto")
    needed = classifier.n_classes * classifier.dim * 4 * (40 if k == "auto" else int(k) + 20)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else needed
    if needed > memory // 2 and getattr(adapter, "shares", "") != "global":
        raise ValueError(
            f"text: {classifier.n_classes} classes need about {needed / 1e9:.0f} of the {memory / 1e9:.0f} GB of "
            "memory; name fewer classes, or use a smaller --k"
        )


def check_space(layout: Layout, rows: int, folder: Path) -> None:
    """Refuse more rows than the disk of a folder has room for; tables are compressed, and no one knows how much."""
    source = layout.source
    if source.rows is None or source.shards[0].path.suffix.lower() not in ARRAYS:
        return
    needed, free = layout.row_bytes() * rows, shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"output: {needed / 1e6:,.1f} MB are needed for the {rows:,} rows of {source.shards[0].path.name}"
            f"{' and others' if len(source.shards) > 1 else ''}, and {free / 1e6:,.1f} are free in {folder}; make room"
        )
