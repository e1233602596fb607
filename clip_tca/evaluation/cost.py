"""What methods cost: seconds of the adapter and of the base method, memory, number of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.protocols import Clock
from clip_tca.evaluation.streams import Draw
from clip_tca.results.schema import PLAIN_CLIP

Number = TypeVar("Number", int, float)


@dataclass
class Cost:
    """What a method cost over all domains and seeds.

    In the online setting solving is part of predicting. ``base_seconds`` include decoding and encoding;
    ``base_memory_bytes`` is the peak of the base method beyond what was allocated before, ``memory_bytes`` that of all
    the method does, the highest of the domains and seeds; ``memory_bytes_per_image`` is the same of each peak divided
    by its images. ``embeds``: the base method embeds the images.
    """

    adapting_seconds: float = 0.0
    predicting_seconds: float = 0.0
    base_seconds: float = 0.0
    base_memory_bytes: int | None = None
    images: int = 0
    embeds: bool = False
    memory_bytes: int | None = None
    memory_bytes_per_image: float | None = None

    @classmethod
    def of(cls, clock: Clock, base: BaseOutput | None, images: int, memory: int | None = None) -> Cost:
        """Of one domain and seed; ``memory`` is the peak of adapting and predicting."""
        seconds, of_base, embeds = (base.seconds, base.memory, base.embeds) if base else (0.0, None, False)
        peak = _highest(of_base, memory)
        each = None if peak is None else peak / images
        return cls(clock.adapting, clock.predicting, seconds, of_base, images, embeds, peak, each)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.adapting_seconds + other.adapting_seconds,
            self.predicting_seconds + other.predicting_seconds,
            self.base_seconds + other.base_seconds,
            _highest(self.base_memory_bytes, other.base_memory_bytes),
            self.images + other.images,
            self.embeds or other.embeds,
            _highest(self.memory_bytes, other.memory_bytes),
            _highest(self.memory_bytes_per_image, other.memory_bytes_per_image),
        )


def _highest(*peaks: Number | None) -> Number | None:
    """The highest of the peaks that are known."""
    return max((peak for peak in peaks if peak is not None), default=None)


def plain_cost(runs: BaseRuns, draws: dict[str, Draw]) -> Cost:
    """The cost of the model without adaptation, on the images drawn of each domain, in the same batches."""
    total = Cost()
    for domain, draw in draws.items():
        output = runs.run(PLAIN_CLIP, {}, domain, draw.seen, draw.sizes)
        total += Cost.of(Clock(), output, len(draw.seen))
    return total
