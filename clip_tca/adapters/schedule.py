"""When a stream is solved again: rarely while its images are alike, sooner when they change.

After a solution, the mean of the new images is compared with that of all before. Two means of m and n images drawn
alike differ by ‖gap‖² ≈ v(1/m + 1/n), with v the variance of the images over all dimensions: a stream is *steady* as
long as the gap is no larger than :data:`SLACK` times that. A map is due

* in a steady stream, when the new images are a quarter of all, or half of all from :data:`MANY` images on;
* in one that is not, or of which nothing is known, when they are a tenth, or a sixth from :data:`LATER` images on;
* at once if it overrules g far more often on the new images than on those before, as it does when a stream comes to
  classes that it has not seen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

JUDGED = 16
"""New images after which they are judged: does the map still fit them, are they like those before?"""

KEPT = 256
"""Rows of a batch that are kept until then."""

MANY, LATER = 512, 2048
SLACK = 1.4


class Schedule:
    """What a stream has brought since the last solution, and whether that is reason to solve again.

    Attributes:
        pending: Images since the last solution.
        last: Images in the last batch.
    """

    def __init__(self) -> None:
        """No images yet."""
        self.pending = self.last = 0
        self._unjudged: deque[Tensor] = deque(maxlen=JUDGED)  # bounded, though nobody may ever predict
        self._overruled = self._judged = 0
        self.solved()

    def add(self, images: int, rows: Tensor | None = None) -> None:
        """Count a batch of new ``images``; its ``rows`` ``(n, d)`` are given where there is a map to judge by."""
        self.pending += images
        self.last = images
        if rows is not None:
            self._unjudged.append(rows if images < KEPT else rows[-KEPT:].clone())
            self._fresh += images

    def solved(self) -> None:
        """Start anew: there is a map of all images."""
        self.pending = self._fresh = self._summed = 0
        self._sum: Tensor | None = None
        self._steady = False
        self._unjudged.clear()

    def due(self, seen: int, overruled: Callable[[Tensor], int], before: Callable[[], tuple[Tensor, Tensor]]) -> bool:
        """Whether to solve again after ``seen`` images.

        Args:
            seen: Images in all.
            overruled: For how many of some rows the map and g predict different classes.
            before: Mean ``(d,)`` and variance ``()`` of the images that the map was solved for.
        """
        few = max(1, seen // (10 if seen < LATER else 6))
        many = max(1, seen // (4 if seen < MANY else 2))
        unfit = False
        if self._fresh >= min(JUDGED, few):
            rows = torch.cat(list(self._unjudged))
            self._unjudged.clear()
            self._fresh = 0
            self._compare(rows, seen - self.pending, *before())
            unfit = self._judge(overruled(rows), len(rows))
        return unfit or self.pending >= (many if self._steady else few)

    def _compare(self, rows: Tensor, n: int, mean: Tensor, variance: Tensor) -> None:
        """See whether the new rows, and those before them since the last solution, are like the n that it has seen."""
        self._sum = rows.sum(dim=0) if self._sum is None else self._sum + rows.sum(dim=0)
        self._summed += len(rows)
        gap = (self._sum / self._summed - mean).square().sum()
        self._steady = bool(gap <= SLACK * variance * (1 / self._summed + 1 / n))

    def _judge(self, overruled: int, images: int) -> bool:
        """Whether the map overrules g far more often than usual; that many count as at most so many."""
        usual: float = images * (self._overruled + 1) / (self._judged + 8)
        most = usual + 2 * math.sqrt(usual) + 4
        self._overruled += min(overruled, round(most))
        self._judged += images
        return overruled > most
