from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from clip_tca.methods.watt import WattP, WattS
from tests.methods.small import TEMPLATES, VIT, TowerFacts, clip, largest, logits, original, pictures, shared_task, task

FIRST, SECOND = pictures(8, "first").double(), pictures(8, "second").double()


class TestWattP(TowerFacts):
    method = WattP
    quick: ClassVar[dict[str, Any]] = {"steps": 1, "repetitions": 2, "lr": 1e-3}


class TestWattS(TestWattP):
    method = WattS


def vit(kind: type[WattP | WattS], templates: tuple[str, ...] = TEMPLATES, **options: float) -> WattP | WattS:
    return kind(task(clip(VIT).double(), templates), **options)


def test_gives_what_the_original_gives() -> None:
    theirs = original("watt")
    assert largest(logits(vit(WattS), FIRST), theirs["s"]) < 1e-4
    assert largest(logits(vit(WattS, lr=1e-3, steps=1, repetitions=2), FIRST, SECOND), theirs["s-1e-3"]) < 1e-4
    assert largest(logits(vit(WattP, repetitions=3), FIRST), theirs["p"]) < 1e-4
    assert largest(logits(vit(WattP, lr=1e-3, steps=1, repetitions=2), FIRST, SECOND), theirs["p-1e-3"]) < 1e-4
    assert largest(theirs["s"], theirs["plain"]) > 1, "the reference has adapted"


def test_single_precision_follows() -> None:
    method = WattP(task(clip(VIT)), lr=1e-3, steps=1, repetitions=2)
    assert largest(logits(method, FIRST.float()), original("watt")["p-1e-3"][:8]) < 0.02


@pytest.mark.parametrize("kind", [WattP, WattS])
def test_one_image_alone_is_predicted_by_the_mean_of_the_templates(kind: type[WattP | WattS]) -> None:
    given = logits(vit(kind, repetitions=1), FIRST[:1])
    assert largest(given, original("watt")["single"]) < 1e-4
    assert largest(given, original("watt")["plain"][:1]) < 1e-4


def test_in_parallel_the_weights_are_the_mean_over_the_templates() -> None:
    together = vit(WattP, TEMPLATES[:2], repetitions=1)
    together(FIRST)
    alone = [vit(WattP, (template,), repetitions=1) for template in TEMPLATES[:2]]
    for method in alone:
        method(FIRST)
    for mean, *each in zip(together.weights(), *(method.weights() for method in alone), strict=True):
        torch.testing.assert_close(mean, sum(each) / 2)


def test_with_one_template_there_is_nothing_to_average() -> None:
    parallel, sequence = (vit(kind, TEMPLATES[:1], repetitions=1) for kind in (WattP, WattS))
    assert torch.equal(logits(parallel, FIRST), logits(sequence, FIRST))


def test_defaults_are_the_published_ones() -> None:
    parallel, sequence = WattP(shared_task()), WattS(shared_task())
    assert (parallel.lr, parallel.steps, parallel.repetitions) == (1e-4, 2, 50)
    assert (sequence.lr, sequence.steps, sequence.repetitions) == (1e-4, 2, 5)


def test_repetitions_are_checked() -> None:
    with pytest.raises(ValueError, match="repetitions: 0; allowed are whole numbers of at least 1"):
        WattP(shared_task(), repetitions=0)
