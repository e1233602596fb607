"""TSD: the memory, the consistency filter, and agreement with the authors' code."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.nn import functional

from clip_tca.methods.base import Method
from clip_tca.methods.tsd import TSD
from tests.methods.tiny import TowerContract, changed, copy, pictures, tiny_task, zero_shot


class TestTSD(TowerContract):
    kind: ClassVar[type[Method]] = TSD
    options: ClassVar[dict[str, Any]] = {"lr": 0.01}
    bad: ClassVar[list[tuple[str, Any]]] = [("entries", 0), ("similarity", "dot")]
    references: ClassVar[list[str]] = ["tsd", "tsd_cosine"]

    def test_only_consistent_images_count(self) -> None:
        logits = torch.eye(5)[[0, 1, 2]]
        similarity = torch.eye(5)[[0, 3, 2]]
        assert TSD(tiny_task()).agree(logits, similarity).tolist() == [True, False, True]
        assert TSD(tiny_task(), consistent=False).agree(logits, similarity).all()

    def test_without_agreement_nothing_changes(self) -> None:
        task = tiny_task()
        before = copy(task)
        method = TSD(task, lr=0.01)
        method.labels = method.labels.roll(1)  # every prototype stands for another class
        method.remember = lambda z, logits: None  # type: ignore[method-assign]
        method(pictures(16))
        assert not changed(task, before)

    def test_memory_starts_with_the_texts_and_keeps_the_most_certain(self) -> None:
        task = tiny_task()
        method = TSD(task, entries=3)
        text = functional.normalize(task.prompts.embeddings.mean(dim=0), dim=1)
        torch.testing.assert_close(method.memory, text)
        z, logits = zero_shot(task, pictures(40))
        method.remember(z, logits)
        p = torch.cat([task.prompts.scale * text @ text.T, logits]).softmax(dim=1)
        entropy = -(p * p.log()).sum(dim=1)
        for number in range(5):
            expected = entropy[p.argmax(dim=1) == number].sort()[0][:3]
            torch.testing.assert_close(method.uncertainty[method.labels == number].sort()[0], expected)

    def test_a_step_brings_prototypes_and_classifier_together(self) -> None:
        task = tiny_task()
        method = TSD(task, lr=1e-3)
        batch = pictures(16)
        z, logits = zero_shot(task, batch)
        after = method(batch)[0]
        prototypes = functional.normalize(method.prototypes(), dim=1)
        target = logits.softmax(dim=1).log_softmax(dim=1)
        kept = method.agree(logits, z @ prototypes.T)
        distance = [
            functional.kl_div(target[kept], (rows @ prototypes.T).softmax(dim=1)[kept], reduction="batchmean")
            for rows in (z, after)
        ]
        assert 0 < kept.sum() < 16
        assert distance[1] < distance[0]
