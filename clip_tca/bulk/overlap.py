"""Reading ahead and writing behind, so that the disk works while the processor does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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


@contextmanager
def write_behind() -> Iterator[Callable[..., None]]:
    """A function that has calls made by one thread, in order, at most one waiting; the next call raises its error."""
    waiting: list[Future[None]] = []

    def call(work: Callable[..., None], *arguments: Any) -> None:
        if waiting:
            waiting.pop().result()
        waiting.append(pool.submit(work, *arguments))

    with ThreadPoolExecutor(1) as pool:
        yield call
        if waiting:
            waiting.pop().result()
