"""What methods cost: seconds of the adapter and of the base method, memory, images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from clip_tca.evaluation.base_runs import Bases, Pairs
from clip_tca.evaluation.protocols import Clock, order
from clip_tca.results.names import PLAIN


@dataclass
class Cost:
    """What a method cost over all domains and seeds.

    Attributes:
        adapting_seconds: Of the adapter (in the online setting solving is part of predicting).
        predicting_seconds: Of the adapter.
        base_seconds: Of the base method, decoding and encoding included.
        base_memory_bytes: That the base method needed at most beyond what was there; None if that is not known.
        images: Images seen.
        embeds: Whether the base method embeds the images itself.
    """

    adapting_seconds: float = 0.0
    predicting_seconds: float = 0.0
    base_seconds: float = 0.0
    base_memory_bytes: int | None = None
    images: int = 0
    embeds: bool = False

    @classmethod
    def of(cls, clock: Clock, base: Pairs | None, images: int) -> Cost:
        """Of one domain and seed."""
        if base is None:
            return cls(clock.adapting, clock.predicting, images=images)
        return cls(clock.adapting, clock.predicting, base.seconds, base.memory, images, base.embeds)

    def __add__(self, other: Cost) -> Cost:
        """Of both together."""
        memory = [bytes_ for bytes_ in (self.base_memory_bytes, other.base_memory_bytes) if bytes_ is not None]
        return Cost(
            self.adapting_seconds + other.adapting_seconds,
            self.predicting_seconds + other.predicting_seconds,
            self.base_seconds + other.base_seconds,
            max(memory, default=None),
            self.images + other.images,
            self.embeds or other.embeds,
        )


def plain_cost(bases: Bases, protocol: str) -> dict[str, Any]:
    """The cost of the model as it is, on the same images in the same batches."""
    spent = Cost()
    for domain, (_, truth) in bases.embedded.data.domains.items():
        seen = order(len(truth), protocol, bases.batch, 0)
        spent += Cost.of(Clock(), bases.run(PLAIN, {}, domain, seen), len(seen))
    return asdict(spent)
