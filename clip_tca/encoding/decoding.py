"""Decoding: images are read and preprocessed in worker processes, batch after batch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from clip_tca.data.pictures import Domain


@dataclass(frozen=True)
class Reader:
    """Image i, preprocessed for the model; a black one with the reason if it can't be read. Runs in the workers."""

    domain: Domain
    transform: Callable[[Image.Image], Tensor]

    def __getitem__(self, index: int) -> tuple[Tensor, str | None]:
        try:
            return self.transform(self.domain.image(index)), None
        except ValueError as error:
            return self.transform(Image.new("RGB", (256, 256))), str(error)

    def batch(self, indices: list[int]) -> tuple[Tensor, dict[int, str]]:
        """Several images as one tensor, with the reasons, by position, why some could not be read."""
        images = [self[index] for index in indices]
        reasons = {i: reason for i, (_, reason) in enumerate(images) if reason is not None}
        return torch.stack([image for image, _ in images]), reasons


def loader(
    domain: Domain,
    transform: Callable[[Image.Image], Tensor],
    batches: list[list[int]],
    workers: int | None,
    device: torch.device,
) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """Batches of preprocessed images, each with the reasons, by position, why some could not be read."""
    loaded: DataLoader[Any] = DataLoader(
        Reader(domain, transform),  # type: ignore[arg-type]  # a sequence is enough
        batch_sampler=batches,
        num_workers=min(default_workers(device) if workers is None else workers, len(batches)),
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        worker_init_fn=_begin_worker,
    )
    with _later(signal.SIGINT):  # until the workers have begun
        started = iter(loaded)
    return ((torch.as_tensor(images), reasons) for images, reasons in started)


@contextmanager
def _later(number: int) -> Iterator[None]:
    """Let a signal wait; it goes on waiting in processes that start meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(_number: int) -> None:
    """Leave Ctrl-C to the main process; an error in a worker reaches it by the queue, and no trace is printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = lambda *_: None
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the main process: an orphaned worker would wait for ever and hold the run's lock on the store."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _collate(images: list[tuple[Tensor, str | None]]) -> tuple[Tensor | np.ndarray, dict[int, str]]:
    """The images as one batch, and the reasons by position."""
    reasons = {i: reason for i, (_, reason) in enumerate(images) if reason is not None}
    batch = torch.stack([image for image, _ in images])
    if get_worker_info() is None:
        return batch, reasons
    try:  # here and not when it is sent, where an error is printed and the main process waits for ever
        return batch.share_memory_(), reasons
    except RuntimeError:  # too little shared memory, as in many containers: send it through a pipe
        return batch.numpy(), reasons


def default_workers(device: torch.device) -> int:
    """Worker processes for decoding: the cores this process may use, at most 8.

    Half as many where the model is on the CPU and needs the cores itself.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // 2 if device.type == "cpu" else cores))
