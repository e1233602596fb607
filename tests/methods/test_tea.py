"""TEA: energies, chains and their range, and agreement with the authors' code."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from clip_tca.methods.base import Method
from clip_tca.methods.tea import MEAN, STD, TEA
from tests.methods.tiny import TowerContract, numbers, pictures, tiny_task, zero_shot


class TestTEA(TowerContract):
    kind: ClassVar[type[Method]] = TEA
    options: ClassVar[dict[str, Any]] = {"buffer": 10, "langevin_steps": 4}
    bad: ClassVar[list[tuple[str, Any]]] = [
        ("langevin_steps", -1),
        ("langevin_lr", -1),
        ("langevin_std", -1),
        ("buffer", 0),
        ("restart", 2),
        ("seed", 0.5),
    ]
    references: ClassVar[list[str]] = ["tea"]

    def prepare(self, method: Any) -> None:
        method.chains = dict(enumerate(numbers(method.buffer, 3, 16, 16, seed=9)))

    def test_energy_is_minus_the_log_of_the_sum(self) -> None:
        task = tiny_task()
        batch = pictures(4)
        expected = -zero_shot(task, batch)[1].exp().sum(dim=1).log()
        torch.testing.assert_close(TEA(task).energy(batch).detach(), expected)

    def test_a_step_lowers_the_energy_of_images_against_samples(self) -> None:
        method = TEA(tiny_task(), lr=1e-3, langevin_steps=4)
        batch, samples = pictures(16), method.sample(pictures(16))
        before = (method.energy(batch).mean() - method.energy(samples).mean()).item()
        method.reset()  # the same samples again
        method(batch)
        assert (method.energy(batch).mean() - method.energy(samples).mean()).item() < before

    def test_chains_go_downhill(self) -> None:
        method = TEA(tiny_task(), langevin_std=0)
        method.langevin_steps = 0
        start = method.energy(method.sample(pictures(16))).mean()
        method.reset()
        method.langevin_steps = 20
        assert method.energy(method.sample(pictures(16))).mean() < start

    def test_chains_start_in_pixels_and_pass_through_the_normalisation(self) -> None:
        samples = TEA(tiny_task(), langevin_steps=0).sample(pictures(64))
        low, high = samples.amin(dim=(0, 2, 3)), samples.amax(dim=(0, 2, 3))
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        torch.testing.assert_close(low, (-1 - mean) / std, atol=0.01, rtol=0)
        torch.testing.assert_close(high, (1 - mean) / std, atol=0.01, rtol=0)

    def test_normalisation_is_the_models_own(self) -> None:
        task = tiny_task()
        task.model.visual.preprocess_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        samples = TEA(task, langevin_steps=0).sample(pictures(64))
        assert samples.amin().item() > -3.001
        assert samples.amax().item() < 1.001
        assert samples.amin().item() < -2.99

    def test_a_visited_chain_goes_on(self) -> None:
        method = TEA(tiny_task(), buffer=1, restart=0, langevin_steps=0)
        first = method.sample(pictures(1))
        assert torch.equal(method.sample(pictures(1)), first)
        method = TEA(tiny_task(), buffer=1, restart=1, langevin_steps=0)
        assert not torch.equal(method.sample(pictures(1)), method.sample(pictures(1)))

    def test_seed_decides_the_samples(self) -> None:
        one, other = (TEA(tiny_task(), langevin_steps=1, seed=seed).sample(pictures(4)) for seed in (0, 1))
        assert not torch.equal(one, other)
