"""ZERO and MTA: their authors' outputs on views whose embeddings are given, and what holds for both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.registry import base_method
from tests.methods.tiny import REFERENCES

STORED = load_file(REFERENCES / "views.safetensors")
"""Texts, images ``(12, 64, 3, 2, 2)`` whose pixels are their embeddings, and what the authors' code returns for them:
votes of the class Zero of FarinaMatteo/zero, logits of solve_mta of MaxZanella/MTA on GitHub."""
SCALE = 30.0


class Pixels(nn.Module):
    """A model whose embeddings are the pixels."""

    def encode_image(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE), Pixels())


def made(name: str, task: Task, **options: Any) -> Any:
    kind: Any = base_method(name)
    return kind(task, **options)


@pytest.mark.parametrize(("stored", "keep"), [("zero", 0.3), ("zero_few", 0.1)])
def test_votes_of_zero_are_the_original_ones(task: Task, stored: str, keep: float) -> None:
    votes = STORED[stored]
    logits = made("zero", task, keep=keep)(STORED["images"])[1]
    torch.testing.assert_close(logits.exp(), votes / votes.sum(dim=1, keepdim=True), atol=1e-6, rtol=0)
    assert (logits.argmax(dim=1) != task.classifier.predict(STORED["images"][:, 0].flatten(1))).any()
    if stored == "zero_few":
        assert (votes.sum(dim=1) == 7).any()  # a tie of six votes was broken


@pytest.mark.parametrize(
    ("stored", "options"), [("mta", {}), ("mta_sharp", {"affinity_weight": 0.5, "entropy_weight": 0.05})]
)
def test_logits_of_mta_are_the_original_ones(task: Task, stored: str, options: dict[str, Any]) -> None:
    z, logits = made("mta", task, **options)(STORED["images"])
    torch.testing.assert_close(logits, STORED[stored], atol=1e-3, rtol=0)
    torch.testing.assert_close(task.classifier.logits(z), logits)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(12))
    assert (logits - made("mta", task).predict(STORED["images"])[1]).abs().max() > 0.3


def test_a_tie_that_no_other_view_decides_goes_to_the_tied_class_that_the_next_view_scores_higher(task: Task) -> None:
    task = Task(ZeroShotClassifier(torch.eye(3, 12), SCALE), Pixels())
    rows = torch.zeros(3, 12)
    rows[0, 0], rows[1, 1] = 1, 1
    rows[2, :3] = torch.tensor([0.5, 0.6, 0.61])  # the least certain, for the third class
    logits = made("zero", task, keep=0.7)(rows.reshape(1, 3, 3, 2, 2))[1]
    assert logits[0].argmax() == 1


@pytest.mark.parametrize("name", ["zero", "mta"])
def test_images_do_not_touch_each_other_and_equal_views_give_zero_shot(name: str, task: Task) -> None:
    method, images = made(name, task), STORED["images"]
    together = method(images)
    single = [method(image[None]) for image in images]
    for part in (0, 1):
        torch.testing.assert_close(torch.cat([pair[part] for pair in single]), together[part])
    same = images[:, :1].expand(-1, 5, -1, -1, -1)
    plain = task.classifier.predict(images[:, 0].flatten(1))
    assert torch.equal(method(same)[1].argmax(dim=1), plain)
    assert torch.equal(method(images[:, :1])[1].argmax(dim=1), plain)
    assert torch.equal(method.predict(images)[1].argmax(dim=1), plain)
    with torch.inference_mode():
        assert not any(tensor.is_inference() for tensor in method(images.clone()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("zero", {"keep": 0}, "keep: 0; allowed are numbers above 0"),
        ("zero", {"views": 0}, "views: 0; allowed are whole numbers of at least 1"),
        ("mta", {"entropy_weight": 0}, "entropy_weight: 0; allowed are numbers above 0"),
        ("mta", {"rounds": 0}, "rounds: 0; allowed are whole numbers of at least 1"),
    ],
)
def test_bad_options_are_named(task: Task, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        made(name, task, **options)


def test_pictures_without_views_are_named(task: Task) -> None:
    with pytest.raises(ValueError, match=r"batch: shape \(2, 3, 2, 2\); expected \(n, views, 3, height, width\)"):
        made("mta", task)(torch.zeros(2, 3, 2, 2))
