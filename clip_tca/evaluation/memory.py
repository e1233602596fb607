"""Peak memory of a block of code, beyond what was allocated before it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch


class PeakMemory:
    """A context manager: :attr:`peak` afterwards, in bytes.

    On CUDA the allocator counts it. Elsewhere the resident memory of this process is sampled every few milliseconds,
    which misses shorter peaks; without ``/proc`` it is not known.
    """

    INTERVAL = 0.005

    def __init__(self, device: torch.device) -> None:
        """Measure the memory of ``device``, or of this process if that is the CPU."""
        self.device = device
        self.peak: int | None = None

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
            return self
        self._before = resident() or 0
        self._highest, self._stop = self._before, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) - self._before
            return
        self._stop.set()
        self._thread.join()
        self.peak = self._highest - self._before if self._before else None

    def _sample(self) -> None:
        while not self._stop.is_set():
            self._highest = max(self._highest, resident() or 0)
            time.sleep(self.INTERVAL)


def resident() -> int | None:
    """Resident memory of this process in bytes, if ``/proc`` has it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
