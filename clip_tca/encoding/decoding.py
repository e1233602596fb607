"""Decoding: images are read and preprocessed in worker processes, batch after batch."""

from __future__ import annotations

import os
import signal
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
    """Images of a domain, preprocessed for the model. Runs in the workers."""

    domain: Domain
    transform: Callable[[Image.Image], Tensor]

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, dict[int, str]]:
        """Several images as one tensor, with the reasons, by position, why some could not be read: these are black."""
        images: list[Tensor] = []
        reasons: dict[int, str] = {}
        for position, index in enumerate(indices):
            try:
                image = self.domain.image(index)
            except ValueError as error:
                image, reasons[position] = Image.new("RGB", (256, 256)), str(error)
            images.append(self.transform(image))
        return torch.stack(images), reasons


def loader(
    domain: Domain,
    transform: Callable[[Image.Image], Tensor],
    batches: list[list[int]],
    workers: int | None,
    device: torch.device,
) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """Batches of preprocessed images, each with the reasons, by position, why some could not be read."""
    loaded: DataLoader[Any] = DataLoader(
        Reader(domain, transform),  # type: ignore[arg-type]  # a sequence of batches is enough
        batch_size=None,
        sampler=batches,
        num_workers=min(default_workers(device) if workers is None else workers, len(batches)),
        collate_fn=_shared,  # type: ignore[arg-type]  # of a whole batch
        pin_memory=device.type == "cuda",
    )
    with _interrupts_deferred():  # a Ctrl-C that arrives during a fork is lost, or ends in a trace
        loading = iter(loaded)
    return ((torch.as_tensor(images), reasons) for images, reasons in loading)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    # until the block ends; processes that begin in it never hear Ctrl-C: the main process ends them
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        signal.raise_signal(signal.SIGINT)


def _shared(batch: tuple[Tensor, dict[int, str]]) -> tuple[Tensor | np.ndarray, dict[int, str]]:
    images, reasons = batch
    if get_worker_info() is None:
        return batch
    try:  # here and not when it is sent, where an error is printed and the main process waits for ever
        return images.share_memory_(), reasons
    except RuntimeError:  # too little shared memory, as in many containers: send it through a pipe
        return images.numpy(), reasons


def default_workers(device: torch.device) -> int:
    """Worker processes for decoding: the cores this process may use, at most 8.

    Half as many where the model is on the CPU and needs the cores itself.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // 2 if device.type == "cpu" else cores))
