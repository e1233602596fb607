"""The rounds of ConditionalTCA: assign every row by equation (1), estimate by equation (2), again and again.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from clip_tca.adapters.candidates import Drift, Sight, drift
from clip_tca.adapters.class_priors import Prior
from clip_tca.adapters.gaussians import Axes, Gaussians, SoftStatistics
from clip_tca.adapters.overconfidence import POWER, TWICE, nearest, temperature
from clip_tca.adapters.statistics import Moments
from clip_tca.core.tensors import CHUNK, exact, is_fake

NEIGHBOURS = 3
"""Nearest neighbours of each row from which the first covariance is taken."""
NEIGHBOUR_ROWS = 512
"""Rows among which neighbours are looked for (or 8 for each class, if that is more)."""
FEW_CLASSES = 64
"""Up to as many all are scored in every round."""
CELLS = 2**19
"""Rows × classes assigned together: few enough to stay in the processor's cache between one step and the next."""
SMALLEST_BLOCK = 128
EXPECTED = 4.0
"""By how much the best scores are allowed to be less than expected when classes are left out (else it is repeated)."""


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
class Block:
    """Rows that are assigned together.

    Attributes:
        rows: Which.
        reach: The largest of their lengths, in units of the standard deviations along the axes.
        posterior: ``(m, k)`` their last assignment q to ``classes``; None before the first round.
        classes: ``(k,)`` the classes of which they have more than rounding; None for all.
        sight: Their scores for all classes, if the next round may need fewer.
    """

    rows: slice | Tensor
    reach: float = math.inf
    posterior: Tensor | None = None
    classes: Tensor | None = None
    sight: Sight | None = None

    def predicted(self) -> Tensor:
        """The most likely class of each row ``(m,)``."""
        if self.posterior is None:
            raise ValueError("no round was made")
        best = self.posterior.argmax(dim=1)
        return best if self.classes is None else self.classes[best]


@dataclass
class Assignment:
    """All rows with what g says of them, ready for rounds of equations (1) and (2).

    Attributes:
        axes: Their principal axes.
        y: ``(n, r)`` rows along them.
        log_g: ``(n, c)`` log p⁰, of a g that is at most twice as sure as its neighbours allow.
        named: ``(n,)`` the classes that g predicts.
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
    named: Tensor
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
        """Of the rows of ``z`` ``(n, d)`` and their log-probabilities ``log_g`` ``(n, c)``, which are overwritten."""
        axes, y = Axes.of(z, moments)
        some = spread(z, max(NEIGHBOUR_ROWS, 8 * log_g.shape[1]))
        neighbours = nearest(y[some], NEIGHBOURS)
        told = torch.ones_like(axes.scatter[0])
        if len(z) >= 8 * log_g.shape[1]:  # among fewer the nearest is often of another class
            told = temperature(log_g[some], neighbours[:, 0])
        excess, told = (told / TWICE).clamp_min(1.0), told.clamp_max(TWICE)
        for part in log_g.split(CHUNK):
            torch.log_softmax(part / excess, dim=1, out=part)
        named = log_g.argmax(dim=1)
        return cls(axes, y, log_g, named, anchor, shrinkage, some, neighbours, told**POWER, excess, told)

    @cached_property
    def _bounded(self) -> bool:
        """Whether classes are left out by a bound: it looks at values, which a GPU would have to be waited for."""
        return self.log_g.shape[1] > FEW_CLASSES and self.y.device.type == "cpu" and not is_fake(self.y)

    @cached_property
    def _widths(self) -> Tensor:
        """Standard deviations ``(r,)`` of the rows along the axes, those of next to none raised to a little."""
        variances = self.axes.scatter / self.axes.n
        return (variances + 1e-6 * variances.mean()).clamp_min(torch.finfo(variances.dtype).tiny).sqrt()

    @cached_property
    def blocks(self) -> list[Block]:
        """All rows; where classes are left out, those together that g predicts alike."""
        n, c = self.log_g.shape
        size = min(CHUNK, max(SMALLEST_BLOCK, CELLS // c))
        if not self._bounded:
            return [Block(slice(start, start + size)) for start in range(0, n, size)]
        units = self._widths.reciprocal().square().to(self.y.dtype)
        blocks = []
        for rows in self.named.argsort(stable=True).split(size):
            reach = float((self.y[rows].square_() @ units).amax().sqrt())
            blocks.append(Block(rows, reach))
        return blocks

    def _log_g(self, block: Block, classes: Tensor | None) -> Tensor:
        """log p⁰ of a block ``(m, k)``."""
        if classes is None or isinstance(block.rows, slice):
            return self.log_g[block.rows]
        return self.log_g[block.rows[:, None], classes]

    @cached_property
    def _start(self) -> tuple[SoftStatistics, Gaussians]:
        """Statistics of the first q, and the Gaussians with the first S: so runs begin."""
        soft = SoftStatistics.empty(self.axes, self.log_g.shape[1])
        for block in self.blocks:
            log_p = self._log_g(block, None)
            soft.add(self.y[block.rows], self._first(log_p), log_p.exp())
        zero = torch.zeros_like(soft.counts)
        local = local_covariance(self.y[self.some], self.neighbours)
        return soft, Gaussians.fit(self.axes, soft, self.shrinkage, zero, zero[0], local)

    def _first(self, log_p: Tensor) -> Tensor:
        """The first assignment of rows with log p⁰ = ``log_p`` ``(m, c)``."""
        return (log_p / self.start_temperature).softmax(dim=1)

    def run(self, rounds: int, prior: Prior, ramp: Tensor) -> tuple[Gaussians, SoftStatistics, Tensor, Tensor]:
        """Assign and estimate ``rounds`` times from the first q; β grows to its full weight over ``ramp`` of them.

        Returns the last Gaussians, the soft statistics of the last assignment, the mean of :meth:`Density.lengths`, and
        the most likely class of each row ``(n,)``.
        """
        n, c = self.log_g.shape
        soft, first = self._start
        for block in self.blocks:
            block.posterior = block.classes = None
        for step in range(rounds):
            trust = ((step + 1) / ramp).clamp_max(1.0) * min(1.0, n / (8 * c))
            if step == 0:
                fitted = replace(first, log_prior=prior(soft.support), trust=trust)
            else:
                fitted = Gaussians.fit(self.axes, soft, self.shrinkage, prior(soft.support), trust)
            soft, length = SoftStatistics.empty(self.axes, c), torch.zeros_like(self.axes.scatter[0])
            assigned = Round(self, fitted, soft)
            for block in self.blocks:
                length += assigned.assign(block) / n
        predicted = torch.empty_like(self.named)
        for block in self.blocks:
            predicted[block.rows] = block.predicted()
        return fitted, soft, length, predicted

    def disputed(self, predicted: Tensor) -> Tensor:
        """How sure g is, on average, of its predictions in whose place q has ``predicted`` ``(n,)``; 0 where none is.

        Its confidence is what its neighbours allow: about how often a g is right that is no stranger to the images.
        """
        total = torch.zeros_like(self.excess)
        changed = exact(predicted != self.named)
        for log_p, weight in zip(self.log_g.split(CHUNK), changed.split(CHUNK), strict=True):
            total += exact((log_p / self.told).softmax(dim=1).amax(dim=1)) @ weight
        return total / changed.sum().clamp_min(1.0)


class Round:
    """One round: every block is assigned by equation (1) and added to the soft statistics of equation (2)."""

    def __init__(self, rows: Assignment, fitted: Gaussians, soft: SoftStatistics) -> None:
        """By the Gaussians ``fitted``; the assignments are added to ``soft``."""
        self.rows, self.fitted, self.soft = rows, fitted, soft
        self.density, self.log_prior = fitted.density(rows.y.dtype), fitted.log_prior.to(rows.y.dtype)
        self.classes = len(self.log_prior)
        self.rounding = torch.finfo(rows.y.dtype).eps / 2 / self.classes
        self._drifts: dict[int, Drift] = {}

    def assign(self, block: Block) -> Tensor:
        """Assign the rows of ``block``; the sum of their lengths ``()`` in the metric S⁻¹."""
        y = self.rows.y[block.rows]
        lengths = self.density.lengths(y)
        classes, log_p, scores = self._candidates(block, y, lengths) or (None, *self._all(block, y, lengths))
        posterior = scores.softmax(dim=1)
        if self.rows._bounded:
            held = (posterior.amax(dim=0) > self.rounding).nonzero()[:, 0]
            if 2 * len(held) <= self.classes:
                classes = held if classes is None else classes[held]
                log_p, posterior = log_p[:, held], posterior[:, held]
            else:
                classes = block.sight = None
        block.classes, block.posterior = classes, posterior
        self.soft.add(y, posterior, log_p.exp(), classes)
        return exact(lengths.sum())

    def _all(self, block: Block, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """log p⁰ and scores ``(m, c)`` for all classes; they are what later rounds are bounded by."""
        log_p, evidence, near, upper = self._parts(block, y, lengths, None)
        scores = self._without_own_share(block, near, upper, None, log_p)
        if self.rows._bounded:
            block.sight = Sight.of(self.fitted, scores, upper, evidence, self.density.half * lengths)
        return log_p, scores

    def _candidates(self, block: Block, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The classes ``(k,)`` that the bound leaves, log p⁰ and scores ``(m, k)``; None if it leaves too many."""
        sight, held = block.sight, block.classes
        if sight is None or held is None:
            return None
        bound = sight.bound(self.fitted, self._drift(sight.fitted), block.reach)
        shortfall = EXPECTED
        while True:
            near_enough = bound + shortfall > math.log(self.rounding)
            near_enough[held] = True
            classes = near_enough.nonzero()[:, 0]
            if 2 * len(classes) > self.classes:
                return None
            log_p, _, near, upper = self._parts(block, y, lengths, classes)
            scores = self._without_own_share(block, near, upper, classes, log_p)
            found = sight.shortfall(self.fitted, scores.amax(dim=1) - self.density.half * lengths)
            if found <= shortfall:
                return classes, log_p, scores
            shortfall = found

    def _parts(
        self, block: Block, y: Tensor, lengths: Tensor, classes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log p⁰, P, the Gaussians' part and U ``(m, k)``."""
        log_p = self.rows._log_g(block, classes)
        prior = self.log_prior if classes is None else self.log_prior[classes]
        evidence = torch.add(prior, log_p, alpha=self.rows.anchor)
        near = self.density.scores(y, lengths, classes)
        return log_p, evidence, near, near + evidence

    def _without_own_share(
        self, block: Block, near: Tensor, upper: Tensor, classes: Tensor | None, log_p: Tensor
    ) -> Tensor:
        """Equation (1), each row without its own share of the mean of a class, ``(m, k)``."""
        held = block.classes
        posterior = self.rows._first(log_p) if block.posterior is None else block.posterior
        less = self.density.without_own_share(posterior, held).sub_(1)
        if held is None:
            return torch.addcmul(upper, near, less)
        places = held if classes is None else torch.searchsorted(classes, held)
        return upper.index_add(1, places, near[:, places] * less)

    def _drift(self, earlier: Gaussians) -> Drift:
        if id(earlier) not in self._drifts:
            self._drifts[id(earlier)] = drift(earlier, self.fitted, self.rows._widths)
        return self._drifts[id(earlier)]
