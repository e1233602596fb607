"""Reading ahead and writing behind, so that the disk works while the processor does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_END = object()


def read_ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same items, fetched by a thread that is up to ``depth`` of them ahead."""
    fetched: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                fetched.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def fetch() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:  # whatever it is belongs to the reader of the items
            put((_END, error))

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    try:
        while True:
            item, error = fetched.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        thread.join(1.0)  # no longer: it may wait for rows on a pipe that never come


class WriteBehind:
    """Calls made by one thread, in order, at most one of them waiting; an error is raised by the next call."""

    def __init__(self) -> None:
        """Start the thread."""
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def call(self, work: Callable[..., None], *arguments: Any) -> None:
        """Wait for the call before, then have this one made."""
        self.wait()
        self._last = self._pool.submit(work, *arguments)

    def wait(self) -> None:
        """Wait until everything has been done."""
        if self._last is not None:
            last, self._last = self._last, None
            last.result()

    def __enter__(self) -> WriteBehind:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread."""
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()
