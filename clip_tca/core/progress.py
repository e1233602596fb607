"""Progress of long work: a bar with the time that is left, on stderr if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY = 2.0
"""Seconds after which a bar is shown."""


class Progress:
    """A bar of tqdm for a ``with`` block; without a ``total``, the title alone."""

    def __init__(self, total: int | None, title: str, unit: str, shown: bool = True, done: int = 0) -> None:
        bar = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt}, {remaining} left"
        self._options: dict[str, Any] = {
            "total": total, "desc": title, "unit": unit, "initial": done, "leave": False, "dynamic_ncols": True,
            "unit_scale": unit in ("B", "row"), "delay": DELAY if total is not None else 0,
            "bar_format": bar if total is not None else "{desc} …",
            "disable": None if shown else True,  # None: unless stderr is a terminal
        }  # fmt: skip

    def __enter__(self) -> Any:
        from tqdm import tqdm

        self._bar = tqdm(file=sys.stderr, **self._options)
        return self._bar

    def __exit__(self, *error: object) -> None:
        self._bar.close()


def announce(line: str, shown: bool = True) -> None:
    """Print a line on stderr, above a bar, if that is a terminal."""
    if shown and sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)


def tracked(items: Iterable[Item], total: int, title: str, unit: str, shown: bool = True) -> Iterator[Item]:
    """The ``items``, counted as they are finished."""
    with Progress(total, title, unit, shown) as progress:
        for item in items:
            yield item
            progress.update()
