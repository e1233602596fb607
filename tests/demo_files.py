"""Some of the demo's pictures as files, for tests of folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clip_tca.data.hub import demo_set


def write_demo(root: Path, styles: Sequence[str], classes: int, images: int) -> Path:
    """The first ``images`` of the first ``classes``, in ``root/style/class/``."""
    data = demo_set()
    for style in styles:
        domain = data.domains[style]
        for label, name in enumerate(data.classes[:classes]):
            (root / style / name).mkdir(parents=True)
            for i in [i for i, own in enumerate(domain.labels) if own == label][:images]:
                (root / style / name / f"{i}.png").write_bytes(domain.picture(i))
    return root
