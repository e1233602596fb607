"""What methods cost: seconds of the adapter and of the base method, memory, number of images."""

from __future__ import annotations

from dataclasses import dataclass

from clip_tca.evaluation.base_runs import BaseOutput, BaseRuns
from clip_tca.evaluation.protocols import Clock
from clip_tca.evaluation.streams import Draw
from clip_tca.results.schema import PLAIN_CLIP


@dataclass
class Cost:
    """What a method cost over all domains and seeds.

    In the online setting solving is part of predicting. ``base_seconds`` include decoding and encoding;
    ``base_memory_bytes`` is the peak beyond what was allocated before; ``embeds``: the base method embeds the images.
    """

    adapting_seconds: float = 0.0
    predicting_seconds: float = 0.0
    base_seconds: float = 0.0
    base_memory_bytes: int | None = None
    images: int = 0
    embeds: bool = False

    @classmethod
    def of(cls, clock: Clock, base: BaseOutput | None, images: int) -> Cost:
        """Of one domain and seed."""
        if base is None:
            return cls(clock.adapting, clock.predicting, images=images)
        return cls(clock.adapting, clock.predicting, base.seconds, base.memory, images, base.embeds)

    def __add__(self, other: Cost) -> Cost:
        peaks = [peak for peak in (self.base_memory_bytes, other.base_memory_bytes) if peak is not None]
        return Cost(
            self.adapting_seconds + other.adapting_seconds,
            self.predicting_seconds + other.predicting_seconds,
            self.base_seconds + other.base_seconds,
            max(peaks, default=None),
            self.images + other.images,
            self.embeds or other.embeds,
        )


def plain_cost(runs: BaseRuns, draws: dict[str, Draw]) -> Cost:
    """The cost of the model without adaptation, on the images drawn of each domain, in the same batches."""
    total = Cost()
    for domain, draw in draws.items():
        output = runs.run(PLAIN_CLIP, {}, domain, draw.seen, draw.sizes)
        total += Cost.of(Clock(), output, len(draw.seen))
    return total
