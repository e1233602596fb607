"""MLPTCA: the non-linear form of LinearTCA, a residual MLP behind the linear map."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clip_tca.adapters import diagnosis, residual_mlp
from clip_tca.adapters.accumulator import Accumulator
from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.adapters.linear import LinearTCA, Shrinkage
from clip_tca.adapters.reservoir import Reservoir
from clip_tca.adapters.shares import row_weights
from clip_tca.adapters.solvers import Solver
from clip_tca.adapters.state import SavedState
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole
from clip_tca.core.tensors import exact

TARGET_ROWS = 4096
"""Rows of the pseudo-source to which the MLP is fitted, at most."""


@dataclass(eq=False, repr=False, kw_only=True)
class MLPTCA(LinearTCA):
    """A residual MLP behind the linear map: it fits the whole distribution of the pseudo-source, not its moments alone.

    First the linear part is set in closed form, then the perceptron by Adam on the energy distance (see
    :mod:`clip_tca.adapters.residual_mlp`), on an evenly spread sample of at most ``memory`` embeddings, always from the
    same seeded start.

    Attributes:
        layers: 2 or 3.
        hidden: Width of the hidden layers; None is d.
        steps: Adam steps; 0 leaves the map at the identity.
        lr: Learning rate.
        seed: Of the first layers' weights.
        memory: Rows on which the MLP is fitted.

    The other options are those of :class:`LinearTCA`, whose ``solver`` and ``shrinkage`` stay at their defaults.

    Learned state: ``loss_`` and ``start_loss_`` (of the linear part alone), and that of :class:`LinearTCA`.
    """

    layers: Literal[2, 3] = 2
    hidden: int | None = None
    solver: Solver = field(default="monge", init=False)
    shrinkage: Shrinkage = field(default="auto", init=False)
    lr: float = 1e-4
    seed: int = 0
    memory: int = 768

    linear: ClassVar[bool] = False

    loss_ = property(lambda self: float(self.learned("loss")), doc="Loss after fitting.")
    start_loss_ = property(lambda self: float(self.learned("start_loss")), doc="Loss of its linear part alone.")

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_whole("layers", self.layers, 2, 3)
        check_whole("seed", self.seed, 0)
        check_whole("hidden", self.hidden, also=None)
        check_whole("memory", self.memory, 2)

    def _declare(self, device: torch.device, dtype: torch.dtype, first: int) -> dict[str, Accumulator]:
        self._rows = Reservoir(self.memory, self.classifier.dim, device, dtype, first)
        return {**super()._declare(device, dtype, first), "rows": self._rows}

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        super()._observe(z, labels, logits)
        self._rows.update(z)

    def _solve(self) -> dict[str, Tensor]:
        solution, rows, d = self._align(), self._rows.rows(), self.classifier.dim
        target = self._target(rows, solution["shares"])
        steps = int(self.steps) if len(rows) > 1 and len(target[0]) else 0
        if steps == 0:
            solution["W"], solution["offset"] = torch.eye(d).to(solution["W"]), torch.zeros_like(solution["offset"])
        moved = torch.addmm(solution["offset"].to(rows.dtype), rows, solution["W"].to(rows.dtype))
        parameters = residual_mlp.start(d, self.layers, self.hidden or d, self.seed, rows.device, rows.dtype)
        view = residual_mlp.view(self.classifier.weight.to(rows))
        frame, fitted, loss, start_loss = residual_mlp.fit(moved, target, view, parameters, steps, float(self.lr))
        solution |= {"centre": frame[0], "scale": frame[1], "loss": loss, "start_loss": start_loss}
        return solution | {f"mlp.{i}": parameter for i, parameter in enumerate(fitted)}

    def _target(self, like: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-source rows ``(m, d)``, evenly thinned to at most ``TARGET_ROWS``, and weights ``(m,)`` of sum one."""
        chosen = self._select()
        chosen = chosen[:: max(1, -(-len(chosen) // TARGET_ROWS))]
        rows = self._bank.rows[chosen].to(like)
        if self.shares in ("global", "oracle"):
            return rows, torch.full_like(rows[:, 0], 1 / max(1, len(rows)))
        return rows, row_weights(shares, self._bank.group[chosen]).to(like)

    def _move(self, z: Tensor) -> Tensor:
        frame = self._solved("centre", z), self._solved("scale", z)
        moved = torch.addmm(self._solved("offset", z), z, self._solved("W", z))
        return residual_mlp.apply(moved, frame, [self._solved(f"mlp.{i}", z) for i in range(2 * self.layers)])

    def _score(self, z: Tensor) -> Tensor:
        moved = self._move(z)  # scored as it is, even by a g that scales what comes from outside
        return self.classifier.exact_logits(moved).to(moved.dtype)

    @classmethod
    def diagnose(cls, saved: SavedState, classifier: LinearClassifier | None) -> Diagnosis:
        """Figures of a fitted state that need no labels."""
        solution, rows = saved.part("solution"), exact(saved.tensors["rows.rows"])
        layers = [exact(solution[f"mlp.{i}"]) for i in range(sum(name.startswith("mlp.") for name in solution))]
        frame = exact(solution["centre"]), exact(solution["scale"])
        moved = residual_mlp.apply(torch.addmm(solution["offset"], rows, solution["W"]), frame, layers)
        squares = (moved - rows).square().sum(dim=1).mean()
        after = None if classifier is None else classifier.exact_logits(moved).argmax(dim=1)
        return diagnosis.of_alignment(saved, squares, diagnosis.changed(rows, classifier, after))
