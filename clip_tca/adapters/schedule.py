"""When a stream is solved again: rarely while its images are alike, sooner when they change.

After a solution, the mean of the new images is compared with that of all before. Two means of m and n images drawn
alike differ by ‖gap‖² ≈ v(1/m + 1/n), with v the variance of the images over all dimensions: a stream is *steady* as
long as the gap is no larger than :data:`SLACK` times that. A map is due

* when a tenth of all images is new, or a sixth of fewer than :data:`FIRST` or more than :data:`LATER` images;
* in a steady stream only when a quarter is new, from :data:`SOME` images of each class on, or half, from :data:`MANY`;
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

FIRST, LATER = 64, 2048
SOME, MANY = 16, 64
SLACK = 1.4


class Schedule:
    """What a stream has brought since the last solution, and whether that is reason to solve again.

    Attributes:
        pending: Images since the last solution.
        last: Images in the last batch.
    """

    def __init__(self, classes: int) -> None:
        """No images yet, of so many classes."""
        self._classes = classes
        self.pending = self.last = 0
        self._unjudged: deque[Tensor] = deque(maxlen=JUDGED)  # bounded, though nobody may ever predict
        self._overruled = self._judged = 0
        self._again: Tensor | None = None
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
        few = many = max(1, seen // (10 if FIRST <= seen < LATER else 6))
        if seen >= SOME * self._classes:
            many = seen // (4 if seen < MANY * self._classes else 2)
        if self._again is not None:
            self._tally(overruled(self._again), len(self._again))
            self._again = None
        if self._fresh < min(JUDGED, few):
            return self.pending >= (many if self._steady else few)
        rows = torch.cat(list(self._unjudged))
        self._unjudged.clear()
        self._fresh = 0
        self._compare(rows, seen - self.pending, *before())
        found, usual = overruled(rows), len(rows) * (self._overruled + 1) / (self._judged + 8)
        if found > usual + 2 * math.sqrt(usual) + 4 or self.pending >= (many if self._steady else few):
            self._again = rows  # what counts as usual is how often the next map overrules g on them
            return True
        self._tally(found, len(rows))
        return False

    def _tally(self, overruled: int, images: int) -> None:
        self._overruled += overruled
        self._judged += images

    def _compare(self, rows: Tensor, n: int, mean: Tensor, variance: Tensor) -> None:
        """See whether the new rows, and those before them since the last solution, are like the n that it has seen."""
        self._sum = rows.sum(dim=0) if self._sum is None else self._sum + rows.sum(dim=0)
        self._summed += len(rows)
        gap = (self._sum / self._summed - mean).square().sum()
        self._steady = bool(gap <= SLACK * variance * (1 / self._summed + 1 / max(1, n)))
