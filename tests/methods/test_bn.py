"""BN: the mixture of statistics, computed by hand, and what holds on real towers."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clip_tca.classifier import LinearClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.bn import BN
from tests.methods.small import RESNET, VIT, clip, pictures, task

BATCH = torch.tensor([[[[1.0, 3.0]]], [[[5.0, 7.0]]]])
"""Two images of one channel, with mean 4 and variance (9 + 1 + 1 + 9) / 4 = 5."""


def one_layer() -> Any:
    """BatchNorm with source mean 1 and variance 2, then nothing."""
    tower = nn.Sequential(nn.BatchNorm2d(1, eps=0), nn.Flatten())
    tower[0].running_mean.fill_(1)
    tower[0].running_var.fill_(2)
    return SimpleNamespace(visual=tower.eval(), encode_image=tower)


@pytest.mark.parametrize(
    ("prior", "mean", "variance"),
    [(0, 4.0, 5.0), (2, 2.5, 3.5), (6, 1.75, 2.75)],  # the batch counts 2 of 2, 2 of 4, 2 of 8
)
def test_the_mixture_by_hand(prior: int, mean: float, variance: float) -> None:
    method = BN(Task(LinearClassifier(2 * torch.eye(2), torch.tensor([0.0, 1.0])), one_layer()), prior=prior)
    expected = (BATCH.flatten(1) - mean) / math.sqrt(variance)
    z, logits = method(BATCH)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(logits, 2 * expected + torch.tensor([0.0, 1.0]))


def test_the_model_is_left_as_it_was_and_no_batch_is_remembered() -> None:
    model = clip(RESNET)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method = BN(task(model))
    first, second = pictures(4, "one", 64), pictures(4, "two", 64)
    alone = method(second)[1]
    method(first)
    assert torch.equal(method(second)[1], alone)
    assert torch.equal(method.predict(second)[1], alone)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = one_layer()
    before = model.visual[0].running_mean

    def broken(_batch: Tensor) -> Tensor:
        model.visual(BATCH)
        raise RuntimeError("out of memory")

    model.encode_image = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        BN(Task(LinearClassifier(torch.eye(2)), model))(BATCH)
    assert model.visual[0].running_mean is before


def test_a_tower_without_batch_norm_is_refused_by_name() -> None:
    message = "method: 'bn' changes the statistics of BatchNorm layers, and VisionTransformer has none; use a model"
    with pytest.raises(ValueError, match=re.escape(message)):
        BN(task(clip(VIT)))


@pytest.mark.parametrize("prior", [-1, math.inf, "some"])
def test_bad_options_are_named(prior: Any) -> None:
    with pytest.raises(ValueError, match=rf"prior: {prior!r}; allowed are numbers of at least 0"):
        BN(Task(LinearClassifier(torch.eye(2)), one_layer()), prior=prior)
