"""PLC: what one step does, and agreement with the T3A repository's PLClf."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from clip_tca.methods.base import Method, Task
from clip_tca.methods.plc import PLC
from tests.methods.tiny import Contract, pictures, tiny_task, zero_shot


class TestPLC(Contract):
    kind: ClassVar[type[Method]] = PLC
    options: ClassVar[dict[str, Any]] = {"lr": 0.01}
    bad: ClassVar[list[tuple[str, Any]]] = [("threshold", 1.1), ("threshold", "high")]
    references: ClassVar[list[str]] = ["plc"]

    def updated(self, task: Task) -> set[str]:
        return set()

    def test_confident_labels_become_more_probable(self) -> None:
        task = tiny_task()
        z, logits = zero_shot(task, pictures(16))
        before, label = logits.softmax(dim=1).max(dim=1)
        confident = before > 0.9
        assert 0 < confident.sum() < 16
        after = PLC(task, lr=1e-3)(z)[1].softmax(dim=1).gather(1, label[:, None])[:, 0]
        assert (after - before)[confident].mean() > 0

    def test_nothing_confident_nothing_changes(self) -> None:
        task = tiny_task()
        z, logits = zero_shot(task, pictures(16))
        torch.testing.assert_close(PLC(task, lr=0.01, threshold=1)(z)[1], logits)

    def test_predicts_without_adapting(self) -> None:
        task = tiny_task()
        method = PLC(task, lr=0.01)
        z, logits = zero_shot(task, pictures(16))
        torch.testing.assert_close(method.predict(z)[1], logits)
        adapted = method(z)[1]
        assert torch.equal(method.predict(z)[1], adapted)

    def test_embeddings_come_back_as_they_are(self) -> None:
        task = tiny_task()
        z = zero_shot(task, pictures(16))[0]
        torch.testing.assert_close(PLC(task, lr=0.01)(z)[0], z)
