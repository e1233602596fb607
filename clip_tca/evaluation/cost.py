"""The cost of methods: seconds of the adapter and of the base method, peak memory, number of images."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from clip_tca.results.schema import MethodCost

Number = TypeVar("Number", int, float)

SAMPLED_EVERY = 0.005
"""Seconds between two samples of the resident memory."""


class PeakMemory:
    """A context manager: :attr:`peak` afterwards, in bytes beyond what was allocated before.

    On CUDA the allocator counts it. Elsewhere the resident memory of this process is sampled every few milliseconds,
    which misses shorter peaks; without ``/proc`` it is not known.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: int | None = None

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            self._before = self._highest = _resident()
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) - self._before
        else:
            self._stop.set()
            self._thread.join()
            self.peak = self._highest - self._before if self._before else None

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLED_EVERY):
            self._highest = max(self._highest, _resident())


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@dataclass(frozen=True)
class Cost:
    """What a method cost on one domain with one seed, in seconds and bytes.

    In the online setting solving is part of predicting. The base method's seconds include decoding and encoding, if it
    ``embeds`` the images itself. Memory is a peak beyond what was allocated before, None if unknown.
    """

    images: int
    adapting: float = 0.0
    predicting: float = 0.0
    memory: int | None = None
    base_seconds: float = 0.0
    base_memory: int | None = None
    embeds: bool = False


def method_cost(parts: list[Cost]) -> MethodCost:
    """The cost over all domains and seeds: sums of seconds and images, the highest of the peaks.

    ``memory_bytes`` is that of all a method does; ``memory_bytes_per_image`` is the highest of each peak divided by
    its images.
    """
    peaks = [(_highest([part.memory, part.base_memory]), part.images) for part in parts]
    return {
        "adapting_seconds": sum(part.adapting for part in parts),
        "predicting_seconds": sum(part.predicting for part in parts),
        "base_seconds": sum(part.base_seconds for part in parts),
        "base_memory_bytes": _highest(part.base_memory for part in parts),
        "memory_bytes": _highest(peak for peak, _ in peaks),
        "memory_bytes_per_image": _highest(None if peak is None else peak / images for peak, images in peaks),
        "images": sum(part.images for part in parts),
        "embeds": any(part.embeds for part in parts),
    }


def _highest(peaks: Iterable[Number | None]) -> Number | None:
    return max((peak for peak in peaks if peak is not None), default=None)
