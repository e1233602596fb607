"""Progress of long work, on stderr: a bar with rate and time left on a terminal, elsewhere a line each half minute.

Work that takes less than two seconds shows nothing. Of nested work the innermost part is shown, after the places of
those around it, so that there is one line at a time. A thread shows it: it moves even while one step takes minutes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Item = TypeVar("Item")

DELAY = 2.0
"""Seconds after which work is shown."""

REDRAW = 0.25
"""Seconds between two states of the bar on a terminal."""

LINE = 30.0
"""Seconds between two lines where there is no terminal."""

_LINE = "clip-tca: {{desc}}: {{n_fmt}} of {{total_fmt}}{unit}, {{rate_fmt}}, {{elapsed}}, {{remaining}} left"


class Progress:
    """One part of the work, shown as long as the ``with`` block lasts."""

    def __init__(self, total: int | None, title: str, unit: str, shown: bool = True, done: int = 0) -> None:
        """Describe the work.

        Args:
            total: Steps; None if that is not known, then only what is done and the time are shown.
            title: What is done, in a few words.
            unit: What a step is, such as ``image``; ``B`` for bytes.
            shown: False shows nothing.
            done: Steps done before, such as by an earlier run.
        """
        self.total, self.title, self.unit, self.shown, self.done, self.before = total, title, unit, shown, done, done
        self.began = self.last = time.monotonic()
        self.next = 1
        self.share = 0.0

    def __enter__(self) -> Progress:
        self.began = time.monotonic()
        if self.shown:
            _screen.enter(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            _screen.leave(self)

    def update(self, steps: int = 1) -> None:
        """Count finished steps."""
        self.done, self.share, self.last = self.done + steps, 0.0, time.monotonic()

    def place(self) -> str:
        """Where this work is, to put before work inside it; nothing if it is the only step."""
        if self.total is None:
            return self.title
        return f"{self.title} {min(self.done + 1, self.total)}/{self.total}" if self.total > 1 else ""

    def text(self, around: list[Progress], columns: int | None) -> str:
        """The bar, at most ``columns`` wide; None is a line of words."""
        from tqdm import tqdm

        title = ", ".join(filter(None, [*(outer.place() for outer in around), self.title]))
        elapsed = time.monotonic() - self.began
        done = self.done + int(self.share * self.next)
        if self.total is None and not done:
            return f"{'' if columns else 'clip-tca: '}{title} [{tqdm.format_interval(elapsed)}]"
        spent = self.last - self.began  # the rate stays as it is until more is done
        rate = (done - self.before) / spent if done > self.before and spent > 0 else None
        shown = {"prefix": title, "unit": self.unit, "unit_scale": self.unit in ("B", "row"), "rate": rate}
        form = None if columns or not self.total else _LINE.format(unit="B" if self.unit == "B" else f" {self.unit}s")
        return str(tqdm.format_meter(done, self.total, elapsed, ncols=columns, bar_format=form, **shown))


def parts(count: int) -> Iterator[int]:
    """``range(count)``, as equal parts of the ``next`` steps of the innermost work, which are finished together."""
    for number in range(count):
        yield number
        _screen.finish_part((number + 1) / count)


def tracked(items: Iterable[Item], total: int, title: str, unit: str, shown: bool = True) -> Iterator[Item]:
    """The ``items``, counted as they are finished."""
    with Progress(total, title, unit, shown) as progress:
        for item in items:
            yield item
            progress.update()


@contextmanager
def set_aside() -> Iterator[None]:
    """Take the bar off the terminal, to print a line there."""
    with _screen.lock:
        _screen.erase()
        yield


def start_again() -> None:
    """Another run of this process begins: its first line comes half a minute from its first work on."""
    _screen.said = None


class _Screen:
    """What of all work that is open is shown, and the thread that shows it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: list[Progress] = []
        self.drawn = 0
        self.said: float | None = None
        self.end = threading.Event()

    def enter(self, progress: Progress) -> None:
        with self.lock:
            self.open.append(progress)
            if self.said is None:
                self.said = progress.began
            if len(self.open) == 1:
                self.end = threading.Event()
                threading.Thread(target=self.run, args=(self.end,), name="progress", daemon=True).start()

    def leave(self, progress: Progress) -> None:
        with self.lock:
            self.open.remove(progress)
            if not self.open:
                self.end.set()
                self.erase()

    def finish_part(self, share: float) -> None:
        with self.lock:
            if self.open:
                self.open[-1].share, self.open[-1].last = share, time.monotonic()

    def run(self, end: threading.Event) -> None:
        while not end.wait(REDRAW):
            with self.lock, suppress(OSError, ValueError):  # stderr may be closed
                if not end.is_set():
                    self.show()

    def show(self) -> None:
        now = time.monotonic()
        place = max((i for i, work in enumerate(self.open) if now - work.began >= DELAY), default=None)
        if place is None:
            return
        work, around = self.open[place], self.open[:place]
        if sys.stderr.isatty():
            columns = _columns()
            text = work.text(around, columns)[:columns]
            sys.stderr.write(f"\r{text:{self.drawn}}")
            self.drawn = len(text)
        elif now - (self.said or 0) >= LINE:
            sys.stderr.write(f"{work.text(around, None)}\n")
            self.said = now
        sys.stderr.flush()

    def erase(self) -> None:
        if self.drawn:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"\r{'':{self.drawn}}\r")
                sys.stderr.flush()
            self.drawn = 0


def _columns() -> int:
    """Width of the terminal; its last column stays free, since some break the line after it."""
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, 20) - 1
    except (OSError, ValueError):
        return 79


_screen = _Screen()
