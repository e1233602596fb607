"""What an adapter has seen of a stream, and when it solves again.

Single rows are kept until there are enough of them: observing each on its own would cost far more. With
``refresh="auto"`` a solution is due when the number of rows has grown enough since the last one, or as soon as the map
overrules g on far more rows of a class than before, which happens when a stream reaches a new class. For an even
stream, all solutions together cost about three fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

FEWEST, MOST = 16, 256  # new rows that trigger a check that the map still fits, and rows of a batch that are checked
FULL_GROWTH = 5.0  # rows, as a share of those solved for, that are worth a new solution once a sample is full


class Stream:
    """The rows of a stream: ``observed`` holds their moments and samples, ``waiting`` those not yet added to these."""

    def __init__(self, observed: Any, classes: int, device: torch.device) -> None:
        self.observed, self.device = observed, device
        self.seen = 0  # rows
        self.solved_at = 0  # rows seen at the last solution; 0 before the first
        self.waiting: list[tuple[Tensor, Tensor | None]] = []  # rows and another method's logits, if there are any
        self.unchecked: list[Tensor] = []
        self.overruled, self.checked = torch.zeros(classes, device=device), 0

    def add(self, rows: Tensor, logits: Tensor | None) -> None:
        self.waiting.append((rows.clone(), logits))  # the caller may use its tensor again
        self.seen += len(rows)

    @property
    def waiting_rows(self) -> int:
        return sum(len(rows) for rows, _ in self.waiting)

    def take_waiting(self) -> tuple[Tensor, Tensor | None]:
        """The waiting rows and their logits; after that none wait."""
        rows, logits = zip(*self.waiting, strict=True)
        self.waiting = []
        return torch.cat(rows), None if logits[0] is None else torch.cat(logits)

    def is_due(
        self, rows: Tensor, refresh: Literal["auto"] | int, growth: float, overruled: Callable[[Tensor], Tensor]
    ) -> bool:
        """Whether to solve again after the newest ``rows``; ``overruled`` counts by class where the map overrules g."""
        new = self.seen - self.solved_at
        if refresh != "auto" or not self.solved_at:
            return not self.solved_at or new >= int(refresh)
        self.unchecked.append(rows[-MOST:])
        changed = sum(map(len, self.unchecked)) >= FEWEST and self._changes(overruled)
        return changed or new >= max(FEWEST, (FULL_GROWTH if self.observed.full else growth) * self.solved_at)

    def _changes(self, overruled: Callable[[Tensor], Tensor]) -> bool:
        """Whether far more of the unchecked rows of some class are overruled than is usual."""
        rows, self.unchecked = torch.cat(self.unchecked), []
        counts, n = overruled(rows), len(rows)
        usual = self.overruled * (n / (self.checked + FEWEST))
        self.overruled, self.checked = self.overruled + counts, self.checked + n
        return bool((counts > usual + 2 * usual.sqrt() + 2 + n / 64).any())  # two standard deviations of a count
