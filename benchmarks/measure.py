"""What the benchmarks share: rows of the table, time, memory, and made-up embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from clip_tca import ZeroShotClassifier
from clip_tca.data.folder import load_folder
from clip_tca.data.pictures import ImageSet

PRICE = 0.04
"""Euros for a core-hour. An assumption, not a measurement: put in what you pay."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What is measured.
        value: The figure, mostly a ratio of the two sides.
        goal: ``>=`` or ``<=`` and a number; empty where there is none.
        sides: What the figure was made from, by name, with units.
        holds: Whether what has to hold besides the goal does (such as: the same W).
    """

    what: str
    value: float
    goal: str
    sides: dict[str, str]
    holds: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if not self.goal:
            return None
        sign, number = self.goal.split()
        return self.holds and (self.value >= float(number) if sign == ">=" else self.value <= float(number))


def seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """The least processor time of ``repeat`` runs.

    On one thread this is the time that an idle machine takes; what other processes take does not count.
    """
    return min(_clocked(work, time.process_time) for _ in range(repeat))


def wall(work: Callable[[], object]) -> float:
    """Time on the clock, for work of several processes or threads."""
    return _clocked(work, time.perf_counter)


def _clocked(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that torch held at a time for ``work``, beyond what was there before: counted, not sampled."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events: list[Any] = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def embeddings(images: int, dim: int, classes: int = 7) -> tuple[Tensor, ZeroShotClassifier]:
    """Unit rows around unit class texts, shifted along a common direction, one more than the next."""
    generator = torch.Generator().manual_seed(0)
    text = functional.normalize(torch.randn(classes, dim, generator=generator), dim=1)
    z = torch.randn(images, dim, generator=generator).mul_(1.2 * dim**-0.5)
    z += text[torch.randint(classes, (images,), generator=generator)]
    z.addr_(torch.rand(images, generator=generator), torch.randn(dim, generator=generator) * dim**-0.5)
    return functional.normalize(z, dim=1), ZeroShotClassifier(text, 30.0)


def pictures(folder: Path, images: int) -> ImageSet:
    """JPEG files of 400 × 300 pixels, in two classes."""
    rng = np.random.default_rng(0)
    for i in range(images):
        place = folder / ("even" if i % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(place / f"{i:05d}.jpg", quality=90)
    return load_folder(folder)
