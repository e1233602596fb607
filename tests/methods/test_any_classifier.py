"""Methods with a linear classifier that no text built: a bias, and class weights of different lengths."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.methods.base import Task, prototypes, scaled_rows
from clip_tca.methods.registry import BASES, base_method
from tests.methods.tiny import copy, pictures, prompted, tiny_task, zero_shot

ON_TEXT = ("clipartt", "watt-p", "watt-s", "tpt")
ON_THE_TOWER = [name for name in BASES if name not in (*ON_TEXT, "bn")]
"""Methods that need no text; BN needs BatchNorm, which this tower has not."""
FIXED = ("tent", "eata", "sar", "tsd", "tea", "tipi", "plc", "tda", "transclip", "stata", "zlap", "gmm")
"""Methods that predict by g itself before their first step; T3A, AdaNPC, OGA and DMN replace or extend it."""


@pytest.fixture
def task() -> Task:
    made = tiny_task()
    lengths = torch.linspace(6, 18, 5)[:, None]
    bias = torch.tensor([0.5, -1.0, 0.0, 2.0, -0.5])
    return Task(LinearClassifier(made.classifier.weight / 12 * lengths, bias), made.model)


def batch_of(task: Task, method: type) -> Tensor:
    return zero_shot(tiny_task(), pictures(8))[0] if method.sees == "embeddings" else pictures(8)


@pytest.mark.parametrize("name", ON_THE_TOWER)
def test_a_method_runs_with_any_linear_classifier(task: Task, name: str) -> None:
    kind: Any = base_method(name)
    before, batch = copy(task), batch_of(task, kind)
    method = kind(task)
    z, start = method.predict(batch)
    if name in FIXED:
        torch.testing.assert_close(start, task.classifier.logits(z), atol=1e-4, rtol=0)
    logits = method(batch)[1]
    assert logits.shape == (8, 5)
    assert logits.isfinite().all()
    method.reset()
    assert all(torch.equal(value, before[key]) for key, value in task.model.state_dict().items())
    torch.testing.assert_close(method(batch)[1], logits)


@pytest.mark.parametrize("name", ON_THE_TOWER)
def test_a_text_classifier_as_plain_weights_gives_the_same(name: str) -> None:
    kind: Any = base_method(name)
    made = prompted(torch.nn.functional.normalize(torch.randn(1, 5, 16), dim=2), 12.0, tiny_task().model)
    plain = Task(LinearClassifier(made.classifier.weight, normalize=True), tiny_task().model)
    batch = batch_of(made, kind)
    torch.testing.assert_close(kind(plain)(batch)[1].float(), kind(made)(batch)[1], atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ON_TEXT)
def test_a_method_on_text_says_that_it_needs_prompts(task: Task, name: str) -> None:
    kind: Any = base_method(name)
    message = f"method: {name!r} works on text prompts, and this classifier has none; give class names and a model"
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(task)


def test_rows_and_prototypes() -> None:
    g = LinearClassifier(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.ones(2))
    rows, scale = scaled_rows(g)
    assert scale == 3
    torch.testing.assert_close(scale * rows, g.weight)
    torch.testing.assert_close(prototypes(g), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    text = ZeroShotClassifier(torch.eye(2), 7.0)
    assert scaled_rows(text) == (text.text, 7.0)
    assert prototypes(text) is text.text
