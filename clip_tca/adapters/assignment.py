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
from clip_tca.adapters.rounds import Block, Round
from clip_tca.adapters.statistics import Moments
from clip_tca.adapters.symmetric import symmetric_product
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
            scatter += symmetric_product(gap, gap)
    return scatter / scatter.trace().clamp_min(torch.finfo(scatter.dtype).tiny)


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
        bounded: Whether classes are left out by a bound, and rounds that change nothing: that looks at values, which a
            GPU would have to be waited for, and with few classes there is nothing to leave out.
        before: ``(n,)`` largest probabilities of g, and the classes that have them, in the order of the rows as given.
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
    bounded: bool
    before: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls, z: Tensor, log_g: Tensor, anchor: float, shrinkage: float, moments: Moments | None = None
    ) -> Assignment:
        """Of the rows of ``z`` ``(n, d)`` and their log-probabilities ``log_g`` ``(n, c)``, which are overwritten."""
        some = spread(z, max(NEIGHBOUR_ROWS, 8 * log_g.shape[1]))
        sure, named = log_g.max(dim=1)
        order, before = None, (sure.exp_(), named)
        bounded = log_g.shape[1] > FEW_CLASSES and z.device.type == "cpu" and not is_fake(z)
        if bounded:  # those together that g predicts alike: few classes are left for each block
            order = named.argsort(stable=True)
            log_g, named, some = log_g[order], named[order], order.argsort()[some]
        axes, y = Axes.of(z, moments, order)
        neighbours = nearest(y[some], NEIGHBOURS)
        told = torch.ones_like(axes.scatter[0])
        if len(z) >= 8 * log_g.shape[1]:  # among fewer the nearest is often of another class
            told = temperature(log_g[some], neighbours[:, 0])
        excess, told = (told / TWICE).clamp_min(1.0), told.clamp_max(TWICE)
        if is_fake(excess) or bool(excess > 1):
            for part in log_g.split(CHUNK):
                torch.log_softmax(part / excess, dim=1, out=part)
        return cls(
            axes, y, log_g, named, anchor, shrinkage, some, neighbours, told**POWER, excess, told, bounded, before
        )

    @cached_property
    def _widths(self) -> Tensor | None:
        """Standard deviations ``(r,)`` of the rows along the axes, those of next to none raised to a little."""
        variances = self.axes.scatter / self.axes.n
        widths = (variances + 1e-6 * variances.mean()).clamp_min(torch.finfo(variances.dtype).tiny).sqrt()
        return widths if self.bounded else None

    @cached_property
    def _blocks(self) -> list[Block]:
        """All rows."""
        blocks, size = [], min(CHUNK, max(SMALLEST_BLOCK, CELLS // max(self.log_g.shape[1], self.y.shape[1])))
        for y, log_g in zip(self.y.split(size), self.log_g.split(size), strict=True):
            blocks.append(Block(y, log_g, self.start_temperature))
            if self._widths is not None:
                units = self._widths.square().reciprocal_().to(y.dtype)
                blocks[-1].reach = float((y.square() @ units).amax().sqrt())
        return blocks

    @cached_property
    def _start(self) -> tuple[SoftStatistics, Gaussians]:
        """Statistics of the first q, and the Gaussians with the first S: so runs begin."""
        soft = SoftStatistics.empty(self.axes, self.log_g.shape[1])
        for block in self._blocks:
            soft.add(block.y, block.start(block.log_g), block.log_g.exp())
        zero = torch.zeros_like(soft.counts)
        local = local_covariance(self.y[self.some], self.neighbours)
        return soft, Gaussians.fit(self.axes, soft, self.shrinkage, zero, zero[0], local)

    @cached_property
    def _known(self) -> list[tuple[SoftStatistics, Gaussians]]:
        """The last Gaussians that were estimated, with what from; empty before."""
        return []

    def _fit(self, soft: SoftStatistics, log_prior: Tensor, trust: Tensor) -> Gaussians:
        """The Gaussians of ``soft``: the last ones, where that has not changed since."""
        if self.bounded:
            for known, fitted in self._known:
                if soft.same_as(known, torch.finfo(self.y.dtype).eps):
                    return replace(fitted, log_prior=log_prior, trust=trust)
        fitted = Gaussians.fit(self.axes, soft, self.shrinkage, log_prior, trust)
        self._known[:] = [(soft, fitted)]
        return fitted

    def run(self, rounds: int, prior: Prior, ramp: Tensor) -> tuple[Gaussians, SoftStatistics, Tensor]:
        """Assign and estimate ``rounds`` times from the first q; β grows to its full weight over ``ramp`` of them.

        Returns the last Gaussians, the soft statistics of the last assignment, and the most likely class of each row
        ``(n,)``.
        """
        n, c = self.log_g.shape
        soft, fitted = self._start
        for block in self._blocks:
            block.posterior = block.classes = None
        for step in range(rounds):
            trust = ((step + 1) / ramp).clamp_max(1.0) * min(1.0, n / (8 * c))
            before, log_prior = fitted, prior(soft.support)
            if step == 0:
                fitted = replace(fitted, log_prior=log_prior, trust=trust)
            else:
                fitted = self._fit(soft, log_prior, trust)
            if self.bounded and step > 1 and fitted.same_as(before, torch.finfo(self.y.dtype).eps):
                break  # nothing would change any more
            soft = SoftStatistics.empty(self.axes, c)
            made = Round(fitted, soft, self.anchor, self.y.dtype)
            for block in self._blocks:
                made.assign(block, self._widths)
        return fitted, soft, torch.cat([block.predicted() for block in self._blocks])

    def disputed(self, predicted: Tensor) -> Tensor:
        """How sure g is, on average, of its predictions in whose place q has ``predicted`` ``(n,)``; 0 where none is.

        Its confidence is what its neighbours allow: about how often a g is right that is no stranger to the images.
        """
        total, changed = torch.zeros_like(self.excess), predicted != self.named
        for log_p, these in zip(self.log_g.split(CHUNK), changed.split(CHUNK), strict=True):
            if is_fake(these) or bool(these.any()):
                total += exact((log_p / self.told).softmax(dim=1).amax(dim=1)) @ exact(these)
        return total / changed.sum().clamp_min(1)
