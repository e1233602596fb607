"""Progress of long work: a bar with the time that is left, on stderr if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY = 2.0
"""Seconds after which a bar is shown."""


class Progress:
    """A bar of tqdm that lasts as long as the ``with`` block."""

    def __init__(self, total: int | None, title: str, unit: str, shown: bool = True, done: int = 0) -> None:
        """Describe the work.

        Args:
            total: Steps; if that is None, only the title is shown.
            title: What is done, in a few words.
            unit: What a step is, such as ``image``; ``B`` for bytes.
            shown: False shows nothing.
            done: Steps done before, such as by an earlier run.
        """
        self._options: dict[str, Any] = {"total": total, "desc": title, "unit": unit, "initial": done, "delay": DELAY}
        self._options["bar_format"] = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt}{left}"
        if total is None:
            self._options |= {"bar_format": "{desc} …", "delay": 0}
        self._options |= {"unit_scale": unit in ("B", "row"), "leave": False, "dynamic_ncols": True}
        self._shown = shown

    def __enter__(self) -> Any:
        """The bar: ``update(steps)`` counts finished steps."""
        from tqdm import tqdm

        class Bar(tqdm):  # type: ignore[misc] # tqdm has no types
            """A bar that says nothing of the time left until it is known."""

            @property
            def format_dict(self) -> dict[str, Any]:
                found: dict[str, Any] = super().format_dict
                done = found["n"] - found["initial"]
                seconds = (found["total"] - found["n"]) * found["elapsed"] / done if done and found["total"] else None
                return {**found, "left": "" if seconds is None else f", {tqdm.format_interval(seconds)} left"}

        self._bar = Bar(file=sys.stderr, disable=not self._shown or None, **self._options)  # None: if no terminal
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
