"""The cost of methods: seconds of the adapter and of the base method, peak memory, number of images."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import torch

from clip_tca.results.schema import MethodCost

N = TypeVar("N", int, float)


class PeakMemory:
    """A context manager: :attr:`peak` afterwards, in bytes beyond what was in use before; None if it is not known.

    On CUDA the allocator counts it. On Linux the kernel keeps the highest resident memory since it was last reset.
    """

    of_process: ClassVar[int] = 0  # highest resident memory before a reset

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: int | None = None

    def __enter__(self) -> PeakMemory:
        self._before = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            with suppress(OSError):
                PeakMemory.of_process = max(PeakMemory.of_process, _resident("VmHWM"))
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5 resets the peak
                self._before = _resident("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) - self._before
        elif self._before:
            self.peak = max(0, _resident("VmHWM") - self._before)


def _resident(field: str) -> int:
    kilobytes = re.search(rf"{field}:\s*(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    return 1024 * int(kilobytes[1]) if kilobytes else 0


@dataclass(frozen=True)
class Cost:
    """What a method cost on one domain with one seed, in seconds and bytes beyond what was in use before."""

    images: int
    adapting: float = 0.0
    predicting: float = 0.0  # in the online setting solving is part of it
    memory: int | None = None
    base_seconds: float = 0.0  # include decoding and encoding, if the base method embeds the images itself
    base_memory: int | None = None
    embeds: bool = False


def method_cost(parts: list[Cost]) -> MethodCost:
    """The cost over all domains and seeds: sums of seconds and images, the highest of the peaks."""
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


def _highest(peaks: Iterable[N | None]) -> N | None:
    return max((peak for peak in peaks if peak is not None), default=None)
