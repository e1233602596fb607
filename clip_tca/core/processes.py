"""Several processes of one run, as ``torchrun`` starts them: who am I, and what have the others?

Everything goes over torch.distributed as objects, on the CPU (gloo): a few megabytes, once for each run, whatever the
device. Alone, all of this costs nothing and imports nothing.
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
    """Another process of this run has failed.

    Attributes:
        told: Whether the first process says why, so that this one need not.
    """

    def __init__(self, reason: str, told: bool = False) -> None:
        """Say why."""
        super().__init__(reason)
        self.told = told


@dataclass(frozen=True)
class Processes:
    """This process among ``size``; the first has rank 0, prints, and writes what there is one of."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.rank == 0

    def gather(self, mine: T, device: torch.device | None = None) -> list[T]:
        """What every process has, in the order of ranks, with tensors on ``device``; only the first gets it."""
        if self.size == 1:
            return [mine]
        found: list[Any] | None = [None] * self.size if self.first else None
        _talk(lambda dist: dist.gather_object(_packed(mine), found))
        return [mine, *[_unpacked(content, device) for content in found[1:]]] if found else []

    def broadcast(self, mine: T, device: torch.device | None = None) -> T:
        """What the first process has."""
        if self.size == 1:
            return mine
        box = [_packed(mine) if self.first else None]
        _talk(lambda dist: dist.broadcast_object_list(box))
        return mine if self.first else _unpacked(box[0], device)  # type: ignore[arg-type]

    def everyone(self, mine: T) -> list[T]:
        """What every process has, in the order of ranks; all get it."""
        return self.broadcast(self.gather(mine))

    def together(self, work: Callable[[], T]) -> T:
        """Do ``work`` in every process; where one fails, all do, and the first raises the first error."""
        error: Exception | None = None
        result: Any = None
        try:
            result = work()
        except Exception as found:
            error = found
        if self.size == 1:
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        reason = next((one for one in self.everyone(None if error is None else str(error)) if one is not None), None)
        if reason is None:
            return result  # type: ignore[no-any-return]
        if self.first:
            raise error or OtherProcessError(reason)
        raise OtherProcessError(reason, told=True) from error


_joined = Processes()


def current() -> Processes:
    """The processes that have joined; this one alone, if none have."""
    return _joined


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that ``torchrun`` has started, able to talk to each other inside the block."""
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


def _talk(call: Callable[[Any], object]) -> None:
    import torch.distributed as dist

    try:
        call(dist)
    except RuntimeError as error:  # a connection that was closed
        raise OtherProcessError("another process of this run has ended; nothing was written") from error


def _packed(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes, device: torch.device | None) -> Any:
    """What our own processes sent, not what a file holds: objects are allowed."""
    return torch.load(io.BytesIO(content), map_location=device, weights_only=False)
