"""One round of ConditionalTCA, block by block of rows: equation (1), and the sums of equation (2).

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`. Where there are many
classes, those that float32 could not tell from nothing are left out of it (:mod:`clip_tca.adapters.candidates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from clip_tca.adapters.candidates import Drift, Sight, drift
from clip_tca.adapters.gaussians import Density, Gaussians, SoftStatistics

EXPECTED = 4.0
"""By how much best scores are thought to be less than expected; where it is more, classes are left out once more."""


@dataclass
class Block:
    """Rows that are assigned together.

    Attributes:
        y: ``(m, r)`` the rows along the axes.
        log_g: ``(m, c)`` log p⁰.
        temperature: ``()`` at which g makes the first assignment.
        reach: The largest of their lengths, in units of the standard deviations along the axes.
        posterior: ``(m, k)`` their last assignment q to ``classes``; None before the first round.
        classes: ``(k,)`` the classes of which they have more than rounding; None for all.
        less: By how much their best scores are less than expected, at most, as far as known.
        lengths: ``(m,)`` their squared lengths in the metric S⁻¹, with its factor: of the first S and of the last.
        first: Their scores for all classes in the first round, where they are sure enough for a bound to be of use.
        last: The same, of the last round in which they were scored for all.
    """

    y: Tensor
    log_g: Tensor
    temperature: Tensor
    reach: float = math.inf
    less: float = EXPECTED
    posterior: Tensor | None = None
    classes: Tensor | None = None
    lengths: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    first: Sight | None = None
    last: Sight | None = None

    @cached_property
    def scale(self) -> Tensor:
        """1 / Σ_c p⁰^(1/t) ``(m, 1)`` at the temperature of the first assignment."""
        return self._powers(self.log_g).sum(dim=1, keepdim=True).reciprocal_()

    def start(self, log_p: Tensor) -> Tensor:
        """The first assignment, of log p⁰ = ``log_p`` ``(m, k)`` for any classes."""
        return self._powers(log_p).mul_(self.scale)

    def _powers(self, log_p: Tensor) -> Tensor:
        return (log_p / self.temperature).exp_()

    def length(self, fitted: Gaussians, density: Density) -> Tensor:
        """Squared lengths ``(m,)`` in the metric of ``fitted``."""
        for metric, lengths in self.lengths:
            if metric is fitted.factor:
                return lengths
        lengths = density.lengths(self.y)
        self.lengths = [*self.lengths[:1], (fitted.factor, lengths)]
        return lengths

    def predicted(self) -> Tensor:
        """The most likely class of each row ``(m,)``."""
        if self.posterior is None:
            raise ValueError("no round was made")
        best = self.posterior.argmax(dim=1)
        return best if self.classes is None else self.classes[best]


class Scores(NamedTuple):
    """Scores of a block for ``classes`` ``(k,)``, None for all, each ``(m, k)``.

    Attributes:
        classes: Which.
        log_p: log p⁰.
        evidence: P, which is λ log p⁰ + γ log π_c.
        upper: U, which is P and β log N(y; m_c, S).
        total: Equation (1): the same with m_c without the row's own share.
    """

    classes: Tensor | None
    log_p: Tensor
    evidence: Tensor
    upper: Tensor
    total: Tensor


class Round:
    """Every block is assigned by the Gaussians ``fitted`` and added to the statistics ``soft``."""

    def __init__(self, fitted: Gaussians, soft: SoftStatistics, anchor: float, dtype: torch.dtype) -> None:
        """Of rows of ``dtype``, with λ = ``anchor``."""
        self.fitted, self.soft, self.anchor = fitted, soft, anchor
        self.density, self.log_prior = fitted.density(dtype), fitted.log_prior.to(dtype)
        self.rounding = torch.finfo(dtype).eps / 2 / len(self.log_prior)
        self._drifts: dict[int, Drift] = {}

    def assign(self, block: Block, widths: Tensor | None) -> None:
        """Assign the rows of ``block`` anew.

        With ``widths`` ``(r,)``, the standard deviations of all rows along the axes, classes are left out by a bound.
        """
        shared = self.density.half * block.length(self.fitted, self.density)
        scores = None if widths is None else self._bounded(block, shared, widths)
        scores = scores or self._score(block, shared, None)
        classes, log_p, posterior = scores.classes, scores.log_p, scores.total.softmax(dim=1)
        if widths is not None:
            held = (posterior.amax(dim=0) > self.rounding).nonzero()[:, 0]
            sure = 2 * len(held) <= block.log_g.shape[1]
            if classes is None:
                sight = Sight.of(self.fitted, scores.total, scores.upper, scores.evidence, shared) if sure else None
                block.last, block.first = sight, sight if block.posterior is None else block.first
            if sure:
                classes = held if classes is None else classes[held]
                log_p, posterior = log_p[:, held], posterior[:, held]
        block.classes, block.posterior = classes, posterior
        self.soft.add(block.y, posterior, log_p.exp(), classes)

    def _bounded(self, block: Block, shared: Tensor, widths: Tensor) -> Scores | None:
        """Scores for the classes that the bound leaves; None if it leaves too many, or there is none."""
        sight = block.first if block.posterior is None else block.last
        if sight is None:
            return None
        earlier = id(sight.fitted)
        if earlier not in self._drifts:
            self._drifts[earlier] = drift(sight.fitted, self.fitted, widths)
        bound = sight.bound(self.fitted, self._drifts[earlier], block.reach)
        while True:
            near = bound + block.less > math.log(self.rounding)
            if block.classes is not None:
                near[block.classes] = True
            classes = near.nonzero()[:, 0]
            if 2 * len(classes) > len(near):
                return None
            scores = self._score(block, shared, classes)
            less = sight.shortfall(self.fitted, scores.total.amax(dim=1) - shared)
            if less <= block.less:
                return scores
            block.less = less

    def _score(self, block: Block, shared: Tensor, classes: Tensor | None) -> Scores:
        log_p = block.log_g if classes is None else block.log_g[:, classes]
        prior = self.log_prior if classes is None else self.log_prior[classes]
        evidence = torch.add(prior, log_p, alpha=self.anchor)
        gaussian = self.density.scores(block.y, shared, classes)
        upper = gaussian + evidence
        if block.posterior is None:
            own = self.density.own_share(block.start(log_p), classes)
            total = torch.addcmul(upper, gaussian, own, out=own)
        elif block.classes is None:
            own = self.density.own_share(block.posterior)
            total = torch.addcmul(upper, gaussian, own, out=own)
        else:
            own = self.density.own_share(block.posterior, block.classes)
            places = block.classes if classes is None else torch.searchsorted(classes, block.classes)
            total = upper.index_add(1, places, gaussian[:, places] * own)
        return Scores(classes, log_p, evidence, upper, total)
