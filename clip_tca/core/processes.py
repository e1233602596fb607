"""Communication between the processes of one run, as ``torchrun`` starts them.

All data goes over torch.distributed as objects, on the CPU (gloo): a few megabytes, once for each run, on any device. A
single process neither communicates nor imports torch.distributed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class OtherProcessError(RuntimeError):
    """Another process of this run has failed; if ``reported``, the first process reports the reason, not this one."""

    def __init__(self, reason: str, reported: bool = False) -> None:
        """Take the reason."""
        super().__init__(reason)
        self.reported = reported


@dataclass(frozen=True)
class Processes:
    """This process, number ``rank`` of ``size``; the first (rank 0) prints and writes the shared files."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes for all."""
        return self.rank == 0

    def gather(self, value: T, device: torch.device | None = None) -> list[T]:
        """The values of all processes, in the order of ranks, with tensors on ``device``; only for the first."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.first else None
        _communicate(lambda dist: dist.gather_object(_packed(value), gathered))
        return [value, *[_unpacked(content, device) for content in gathered[1:]]] if gathered else []

    def broadcast(self, value: T, device: torch.device | None = None) -> T:
        """The value of the first process."""
        if self.size == 1:
            return value
        box = [_packed(value) if self.first else None]
        _communicate(lambda dist: dist.broadcast_object_list(box))
        return value if self.first else _unpacked(box[0], device)  # type: ignore[arg-type]

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of ranks; for every process."""
        return self.broadcast(self.gather(value))

    def together(self, work: Callable[[], T]) -> T:
        """Do ``work`` in every process; if one fails, all fail, and the first raises the first error."""
        if self.size == 1:
            return work()
        error: Exception | None = None
        result: Any = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        reasons = self.all_gather(None if error is None else str(error))
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is None:
            return result  # type: ignore[no-any-return]
        if self.first:
            raise error or OtherProcessError(reason)
        raise OtherProcessError(reason, reported=True) from error


_joined = Processes()


def current() -> Processes:
    """The processes that have joined, or this one alone."""
    return _joined


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that ``torchrun`` has started, connected inside the block."""
    global _joined
    try:
        processes = Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    except (KeyError, ValueError):
        processes = Processes()
    if processes.size == 1:
        yield processes
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    _joined = processes
    try:
        yield processes
    finally:
        _joined = Processes()
        dist.destroy_process_group()


def _communicate(call: Callable[[Any], object]) -> None:
    import torch.distributed as dist

    try:
        call(dist)
    except RuntimeError as error:  # a connection that was closed
        raise OtherProcessError("another process of this run has ended; nothing was written") from error


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes, device: torch.device | None) -> Any:
    """A value that our own process sent: no file, so any object is allowed."""
    return torch.load(io.BytesIO(content), map_location=device, weights_only=False)
