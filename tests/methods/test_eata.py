"""EATA: which images count, and agreement with the authors' code."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from clip_tca.methods.base import Method
from clip_tca.methods.eata import EATA
from tests.methods.tiny import TowerContract, changed, copy, pictures, prompted, tiny_task, zero_shot


class TestEATA(TowerContract):
    kind: ClassVar[type[Method]] = EATA
    options: ClassVar[dict[str, Any]] = {"lr": 0.3}
    bad: ClassVar[list[tuple[str, Any]]] = [("margin", 1.5), ("margin", float("nan")), ("redundancy", -0.1)]
    references: ClassVar[list[str]] = ["eata"]

    def test_without_reliable_images_nothing_changes(self) -> None:
        task = tiny_task()
        before = copy(task)
        EATA(task, lr=0.3, margin=0)(pictures(16))
        assert not changed(task, before)

    def test_redundant_images_do_not_count(self) -> None:
        task = tiny_task()
        method = EATA(task, lr=0.3, redundancy=0)
        method(pictures(16))  # the first batch has nothing to be redundant to
        before = copy(task)
        method(pictures(16, seed=1))
        assert not changed(task, before)

    def test_chosen_images_are_reliable_and_new(self) -> None:
        task = tiny_task()
        method = EATA(task, margin=0.4)
        logits = torch.tensor([[9.0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [1, 1, 1, 1, 1]])
        assert method.choose(logits).tolist() == [True, True, False]
        # against the average of classes 0 and 1, class 2 is new and class 0 is not (cosine 0.71, limit 0.55)
        assert method.choose(logits.roll(2, dims=1)[:1]).tolist() == [True]
        assert method.choose(logits[:1]).tolist() == [False]

    def test_entropy_of_chosen_images_falls(self) -> None:
        task = tiny_task()
        method = EATA(task, lr=0.02)
        plain = zero_shot(task, pictures(16))[1]
        chosen = method.choose(plain)
        method.reset()
        certainty = [logits[chosen].softmax(dim=1).max(dim=1)[0].mean() for logits in (plain, method(pictures(16))[1])]
        assert certainty[1] > certainty[0]

    @pytest.mark.parametrize(("classes", "published"), [(10, 0.4), (1000, 0.05)])
    def test_default_redundancy_is_the_published_one(self, classes: int, published: float) -> None:
        task = tiny_task()
        many = prompted(torch.randn(1, classes, 16), 12.0, task.model)
        assert EATA(many).redundancy == pytest.approx(published)
