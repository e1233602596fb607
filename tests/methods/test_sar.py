"""SAR: the climb, the recovery, which layers, and agreement with the authors' code."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from open_clip.model import CLIPVisionCfg, _build_vision_tower
from torch import Tensor

from clip_tca.methods.base import Method, Task
from clip_tca.methods.sar import SAR, lower_parameters
from clip_tca.methods.tower import norm_parameters
from tests.methods.tiny import TowerContract, changed, copy, names, pictures, tiny_task


class TestSAR(TowerContract):
    kind: ClassVar[type[Method]] = SAR
    options: ClassVar[dict[str, Any]] = {"lr": 0.3}
    bad: ClassVar[list[tuple[str, Any]]] = [("margin", -0.1), ("rho", -1), ("recovery", -1), ("rho", None)]
    references: ClassVar[list[str]] = ["sar", "sar_momentum", "sar_recovery"]

    def updated(self, task: Task) -> set[str]:
        return names(task, "") - names(task, "resblocks.3") - names(task, "ln_post")

    @pytest.mark.parametrize("rho", [0.05, 0.2])
    def test_gradient_is_taken_at_distance_rho(self, rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
        method = SAR(tiny_task(), lr=0.3, rho=rho)
        seen: list[Tensor] = []
        embed = method.embed

        def spy(batch: Tensor) -> Tensor:
            seen.append(torch.cat([parameter.detach().flatten() for parameter in method.parameters]))
            return embed(batch)

        monkeypatch.setattr(method, "embed", spy)
        method(pictures(16))
        start, climbed, _ = seen
        assert (climbed - start).norm().item() == pytest.approx(rho, rel=1e-3)

    def test_recovers_when_the_loss_has_collapsed(self) -> None:
        task = tiny_task()
        before = copy(task)
        SAR(task, lr=0.3, recovery=10)(pictures(16))
        assert not changed(task, before)

    def test_twelve_blocks_lose_the_last_three(self) -> None:
        task = tiny_task(layers=12)
        before = copy(task)
        SAR(task, lr=0.3)(pictures(16))
        kept = {number for number in range(12) if changed(task, before) & names(task, f"resblocks.{number}.")}
        assert kept == set(range(9))
        assert names(task, "ln_pre") < changed(task, before)

    def test_resnet_loses_its_last_stage(self) -> None:
        tower = _build_vision_tower(8, CLIPVisionCfg(layers=(1, 1, 1, 1), width=8, image_size=32))
        lower = {id(parameter) for parameter in lower_parameters(tower, norm_parameters(tower))}
        stages = {name.split(".")[0] for name, parameter in tower.named_parameters() if id(parameter) in lower}
        assert stages == {"bn1", "bn2", "bn3", "layer1", "layer2", "layer3"}
