"""The paper's two-dimensional shifts, the data of the study ``toy``: clusters of the source and of the test domain.

Its appendix ("Analysis Details") gives them as code. Each cluster is N(centre, spread² I), 30 points of the source with
spread 1 and 250 of the test domain:

========== ============================= =========================================
shift      source centres                test centres, with their spreads
========== ============================= =========================================
linear     (0, 0), (15, 15), (0, 10)     (7, 7) 2 · (0, 20) 2.5 · (21, 21) 3
nonlinear  (0, 0), (10, 10), (0, 10),    (5, 5) 3 · (10, 10) 1 · (0, 20) 2 ·
           (−5, −10)                     (−9, 1) 2.5
========== ============================= =========================================

That code has no classes. Here a test cluster gets the class of the source cluster in the pairing with the least total
movement (in ``linear`` the last two are listed in the other order). There is always an affine map between three pairs
of centres, but not between these four: that makes the second shift non-linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SOURCE_POINTS, TEST_POINTS = 30, 250
"""Points of a cluster, in the paper."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Points:
    """Points ``(n, 2)`` and the classes ``(n,)`` of their clusters, in the test domain for scoring only."""

    x: Tensor
    y: Tensor

    def centres(self) -> Tensor:
        """Mean of each class ``(classes, 2)``."""
        return torch.stack([self.x[self.y == label].mean(dim=0) for label in range(int(self.y.max()) + 1)])


@dataclass(frozen=True)
class Shift:
    """Source centre of each class; centre, spread and class of each test cluster, in the order of the paper's code."""

    source: tuple[Point, ...]
    test: tuple[tuple[Point, float, int], ...]

    def draw(self, seed: int, points: int = TEST_POINTS) -> tuple[Points, Points]:
        """Source and test domain, in float64; ``points`` is the number for each test cluster.

        The numbers are those of the paper's code after ``torch.manual_seed(seed)``.
        """
        generator = torch.Generator().manual_seed(seed)

        def cluster(n: int, centre: Point, spread: float) -> Tensor:
            return torch.randn(n, 2, generator=generator) * spread + torch.tensor(centre)

        source = [cluster(SOURCE_POINTS, centre, 1.0) for centre in self.source]
        test = [cluster(points, centre, spread) for centre, spread, _ in self.test]
        labels = torch.tensor([label for *_, label in self.test])
        return (
            Points(torch.cat(source).double(), torch.arange(len(source)).repeat_interleave(SOURCE_POINTS)),
            Points(torch.cat(test).double(), labels.repeat_interleave(points)),
        )


SHIFTS = {
    "linear": Shift(((0, 0), (15, 15), (0, 10)), (((7, 7), 2.0, 0), ((0, 20), 2.5, 2), ((21, 21), 3.0, 1))),
    "nonlinear": Shift(
        ((0, 0), (10, 10), (0, 10), (-5, -10)),
        (((5, 5), 3.0, 0), ((10, 10), 1.0, 1), ((0, 20), 2.0, 2), ((-9, 1), 2.5, 3)),
    ),
}
