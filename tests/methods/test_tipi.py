"""TIPI: the shift and its radius, and agreement with the authors' code."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from clip_tca.methods.base import Method
from clip_tca.methods.tipi import TIPI
from tests.methods.tiny import TowerContract, double_task, numbers, pictures, tiny_task, zero_shot


class TestTIPI(TowerContract):
    kind: ClassVar[type[Method]] = TIPI
    options: ClassVar[dict[str, Any]] = {"lr": 0.1, "epsilon": 0.1}
    bad: ClassVar[list[tuple[str, Any]]] = [("epsilon", -1), ("entropy_weight", -1), ("seed", -1)]
    references: ClassVar[list[str]] = ["tipi"]

    def test_parts_of_a_batch_give_the_same_step(self) -> None:
        """In double precision: the sign of a gradient near zero is a matter of rounding, which differs by machine."""
        whole, parts = (self.make(double_task(), micro_batch=size) for size in (None, 3))
        for batch in self.batches(tiny_task()):
            torch.testing.assert_close(parts(batch.double())[1], whole(batch.double())[1], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("epsilon", [2 / 255, 0.1])
    def test_shift_has_its_radius(self, epsilon: float) -> None:
        task = tiny_task()
        batch = pictures(8)
        delta = TIPI(task).epsilon * numbers(*batch.shape, seed=3)
        method = TIPI(task, epsilon=epsilon)
        shift = method.shift(batch, delta, zero_shot(task, batch)[1]) - batch
        assert shift.abs().max().item() == pytest.approx(epsilon, rel=1e-4)

    def test_shift_moves_predictions_more_than_chance(self) -> None:
        task = tiny_task()
        batch, plain = pictures(8), zero_shot(task, pictures(8))[1]
        method = TIPI(task, epsilon=0.05)
        delta = 0.05 * numbers(*batch.shape, seed=3)
        chance = method.divergence(batch + delta.sign() * 0.05, plain).mean()
        assert method.divergence(method.shift(batch, delta, plain), plain).mean() > 3 * chance

    def test_a_step_makes_predictions_more_invariant(self) -> None:
        task = tiny_task()
        batch, plain = pictures(16), zero_shot(task, pictures(16))[1]
        method = TIPI(task, lr=0.02, epsilon=0.1, entropy_weight=0)
        start = 0.1 * (2 * torch.rand(batch.shape, generator=torch.Generator().manual_seed(0)) - 1)
        shifted = method.shift(batch, start, plain)
        before = method.divergence(shifted, plain).mean().item()
        method(batch)  # with the same start, hence against this very shift
        assert method.divergence(shifted, plain).mean().item() < before

    def test_seed_decides_the_shift(self) -> None:
        one, other = (TIPI(tiny_task(), lr=0.1, seed=seed)(pictures(8))[1] for seed in (0, 1))
        assert not torch.equal(one, other)
