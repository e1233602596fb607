"""The rounds of ConditionalTCA: assign every row by equation (1), estimate by equation (2), again and again.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from clip_tca.adapters.class_priors import Prior
from clip_tca.adapters.gaussians import Axes, Gaussians, SoftStatistics
from clip_tca.adapters.overconfidence import POWER, TWICE, nearest, temperature
from clip_tca.adapters.statistics import Moments
from clip_tca.core.tensors import CHUNK, exact

NEIGHBOURS = 3
"""Nearest neighbours of each row from which the first covariance is taken."""
NEIGHBOUR_ROWS = 512
"""Rows among which neighbours are looked for (or 8 for each class, if that is more)."""


def spread(z: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` rows of ``z`` ``(n, d)``: the same rows in whatever order they come.

    They are spread evenly along the first coordinate, and where that is equal, as zeros of features are, by their sum.
    """
    order = z.sum(dim=1).argsort(stable=True)
    return order[z[order, 0].argsort(stable=True)][:: -(-len(z) // most)]


def local_covariance(y: Tensor, neighbours: Tensor) -> Tensor:
    """Covariance ``(r, r)`` of the differences of rows ``(n, r)`` to their ``neighbours`` ``(n, k)``, of trace 1.

    Neighbours are mostly of one class, whatever g takes them for.
    """
    scatter = exact(y.new_zeros(y.shape[1], y.shape[1]))
    for part, near in zip(y.split(CHUNK), neighbours.split(CHUNK), strict=True):
        for column in near.T:
            gap = part - y[column]
            scatter += gap.T @ gap
    return scatter / scatter.trace().clamp_min(torch.finfo(scatter.dtype).tiny)


@dataclass
class Assignment:
    """All rows with what g says of them, ready for rounds of equations (1) and (2).

    Attributes:
        axes: Their principal axes.
        y: ``(n, r)`` rows along them.
        log_g: ``(n, c)`` log p⁰, of a g that is at most twice as sure as its neighbours allow.
        anchor: λ.
        shrinkage: a.
        some: Indices of the rows among which neighbours are looked for.
        neighbours: ``(m, k)`` nearest neighbours of each of them, as places among them.
        start_temperature: ``()`` at which g makes the first assignment, lest its sure errors decide the first means.
        excess: ``()`` what the logits of g have been divided by.
        told: ``()`` temperature of ``log_g`` that its neighbours ask for.
    """

    axes: Axes
    y: Tensor
    log_g: Tensor
    anchor: float
    shrinkage: float
    some: Tensor
    neighbours: Tensor
    start_temperature: Tensor
    excess: Tensor
    told: Tensor

    @classmethod
    def of(
        cls, z: Tensor, log_g: Tensor, anchor: float, shrinkage: float, moments: Moments | None = None
    ) -> Assignment:
        """Of the rows of ``z`` ``(n, d)`` and their log-probabilities ``log_g`` ``(n, c)``."""
        axes, y = Axes.of(z, moments)
        some = spread(z, max(NEIGHBOUR_ROWS, 8 * log_g.shape[1]))
        neighbours = nearest(y[some], NEIGHBOURS)
        told = torch.ones_like(exact(log_g[0, 0]))
        if len(z) >= 8 * log_g.shape[1]:  # among fewer the nearest is often of another class
            told = temperature(log_g[some], neighbours[:, 0])
        excess, told = (told / TWICE).clamp_min(1.0), told.clamp_max(TWICE)
        log_g = (log_g / excess).log_softmax(dim=1)
        return cls(axes, y, log_g.to(y.dtype), anchor, shrinkage, some, neighbours, told**POWER, excess, told)

    def _first(self) -> Tensor:
        """The first assignment ``(n, c)``."""
        return (exact(self.log_g) / self.start_temperature).softmax(dim=1)

    @cached_property
    def _start(self) -> tuple[SoftStatistics, Gaussians, list[tuple[Tensor, Tensor]]]:
        """Statistics of the first q, the Gaussians with the first S, and the distances of all rows: so runs begin."""
        c = self.log_g.shape[1]
        soft = SoftStatistics.empty(self.axes, c)
        parts = (self.y, self.log_g, self._first())
        for y, log_p, q in zip(*(part.split(CHUNK) for part in parts), strict=True):
            soft.add(y, q, exact(log_p).exp())
        zero = torch.zeros_like(soft.counts)
        local = local_covariance(self.y[self.some], self.neighbours)
        first = Gaussians.fit(self.axes, soft, self.shrinkage, zero, zero[0], local)
        return soft, first, [first.distances(y) for y in self.y.split(CHUNK)]

    def run(self, rounds: int, prior: Prior, ramp: Tensor) -> tuple[Gaussians, SoftStatistics, Tensor, Tensor]:
        """Assign and estimate ``rounds`` times from the first q; β grows to its full weight over ``ramp`` of them.

        Returns the last Gaussians, the soft statistics of the last assignment, the mean length of
        :meth:`Gaussians.leave_one_out`, and the last assignment q ``(n, c)``.
        """
        n, c = self.log_g.shape
        soft, first, known = self._start
        posterior = self._first()
        parts = list(zip(self.y.split(CHUNK), self.log_g.split(CHUNK), posterior.split(CHUNK), known, strict=True))
        for step in range(rounds):
            trust = ((step + 1) / ramp).clamp_max(1.0) * min(1.0, n / (8 * c))
            if step == 0:
                fitted = replace(first, log_prior=prior(soft.support), trust=trust)
            else:
                fitted = Gaussians.fit(self.axes, soft, self.shrinkage, prior(soft.support), trust)
            soft, length = SoftStatistics.empty(self.axes, c), torch.zeros_like(self.axes.scatter[0])
            for y, log_p, q, (score, lengths) in parts:  # q is overwritten in place
                if step == 0:
                    likelihood = fitted.without_own_share(score.clone(), q)
                else:
                    likelihood, lengths = fitted.leave_one_out(y, q)
                q.copy_(likelihood.add_(log_p, alpha=self.anchor).softmax(dim=1))
                soft.add(y, q, log_p.exp())
                length += lengths.sum() / n
        return fitted, soft, length, posterior

    def disputed(self, posterior: Tensor) -> Tensor:
        """How sure g is, on average, of its predictions that q = ``posterior`` ``(n, c)`` changes; 0 where none is.

        Its confidence is what its neighbours allow: about how often a g is right that is no stranger to the images.
        """
        total, number = torch.zeros_like(self.excess), torch.zeros_like(self.excess)
        for log_p, q in zip(self.log_g.split(CHUNK), posterior.split(CHUNK), strict=True):
            confidence, named = (exact(log_p) / self.told).softmax(dim=1).max(dim=1)
            changed = exact(q.argmax(dim=1) != named)
            total, number = total + (confidence * changed).sum(), number + changed.sum()
        return total / number.clamp_min(1.0)
