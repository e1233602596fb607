from __future__ import annotations

import torch

from clip_tca.methods.tent import Tent, entropy
from tests.methods.small import RESNET, VIT, TowerFacts, clip, largest, logits, original, pictures, task

FIRST, SECOND = pictures(8, "first").double(), pictures(8, "second").double()
LARGE = (pictures(8, "first", 64).double(), pictures(8, "second", 64).double())


class TestTent(TowerFacts):
    method = Tent


def vit(**options: float) -> Tent:
    return Tent(task(clip(VIT).double()), **options)


def resnet(**options: float) -> Tent:
    return Tent(task(clip(RESNET).double()), **options)


def test_gives_what_the_code_of_clipartt_gives() -> None:
    theirs = original("tent")
    assert largest(logits(vit(), FIRST, SECOND), theirs["vit"]) < 1e-4
    assert largest(logits(vit(continual=True), FIRST, SECOND), theirs["continual"]) < 1e-4
    assert largest(logits(vit(lr=1e-4), FIRST), theirs["1e-4"]) < 1e-4
    assert largest(logits(vit(), FIRST[:1]), theirs["single"]) < 1e-4
    assert largest(logits(resnet(), *LARGE), theirs["resnet"]) < 1e-4
    assert largest(theirs["vit"][:8], theirs["plain"]) > 5, "the reference has adapted"


def test_gives_what_the_first_authors_code_gives_online() -> None:
    assert largest(logits(resnet(steps=1, continual=True), *LARGE)[8:], original("tent")["original-online"]) < 1e-4


def test_single_precision_follows() -> None:
    ours = logits(Tent(task(clip(VIT))), FIRST.float(), SECOND.float())
    assert largest(ours, original("tent")["vit"]) < 0.02


def test_entropy_falls() -> None:
    method = vit()
    before = method.logits(method.embed(FIRST))
    assert entropy(logits(method, FIRST)).mean() < entropy(before).mean() - 0.1


def test_entropy_of_a_coin() -> None:
    torch.testing.assert_close(entropy(torch.tensor([[3.0, 3.0], [0.0, 200.0]])), torch.tensor([2.0, 1.0]).log())
