"""Methods with a linear classifier that no text built, on networks of timm with their own heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clip_tca.classifier import LinearClassifier
from clip_tca.encoding.backbone import Backbone
from clip_tca.methods.base import Task
from clip_tca.methods.registry import BASES, base_method
from clip_tca.methods.weights import T3A
from tests.methods.small import numbers, patterns, prompted, tiny_task, zero_shot
from tests.small_networks import timm_network

ON_TEXT = ("clipartt", "watt-p", "watt-s", "tpt")
FIXED = ("zero", "mta", "tent", "eata", "sar", "tsd", "tea", "tipi", "plc", "tda", "transclip", "stata", "zlap", "gmm")
"""Methods that predict by g itself before their first step; T3A, AdaNPC, OGA and DMN replace or extend it."""
METHODS = [name for name in BASES if name not in ON_TEXT]
SHORT: dict[str, dict[str, Any]] = {"tent": {"steps": 2}, "tea": {"langevin_steps": 2}}
TOWERS = {"test_resnet": 64, "test_vit": 160}
"""Networks of timm, and the size of pictures for them."""
PAIRS = [(name, tower) for tower in TOWERS for name in METHODS if (name, tower) != ("bn", "test_vit")]


def own_head(name: str) -> Task:
    """A small network of timm as f and g, as its encoder splits it."""
    network = timm_network(name, classes=5)
    layer: nn.Linear = network.get_classifier()
    head = LinearClassifier(2 * numbers(*layer.weight.shape, seed=5), layer.bias.detach().clone())
    network.reset_classifier(0)
    return Task(head, Backbone(network, {"mean": [0.5] * 3, "std": [0.5] * 3}).eval().requires_grad_(False))


def seen_by(name: str, images: Tensor) -> Tensor:
    """The images, or three views of each."""
    views = [images, images.flip(-1), images.roll(3, -1)]
    return torch.stack(views, dim=1) if name in ("zero", "mta") else images


@pytest.mark.parametrize(("name", "tower"), PAIRS)
def test_raw_features_go_in_and_come_out(name: str, tower: str) -> None:
    task = own_head(tower)
    before = {key: value.clone() for key, value in task.model.state_dict().items()}
    images = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(images, size=TOWERS[tower])
    with torch.no_grad():
        features = task.model.encode_image(images)
    kind: Any = base_method(name)
    batch = features if kind.sees == "embeddings" else seen_by(name, images)
    method = kind(task, **SHORT.get(name, {}))
    z, start = method.predict(batch)
    if kind.sees == "embeddings" or tower == "test_vit":  # BatchNorm sees the batch in the others
        torch.testing.assert_close(z, features)
    if name in FIXED:
        torch.testing.assert_close(start, task.classifier.logits(z), atol=1e-4, rtol=1e-4)
    logits = method(batch)[1]
    assert logits.shape == (6, 5)
    assert logits.isfinite().all()
    method.reset()
    assert all(torch.equal(value, before[key]) for key, value in task.model.state_dict().items())
    torch.testing.assert_close(method(batch)[1], logits)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "bn"])  # which needs BatchNorm
def test_a_text_classifier_as_plain_weights_gives_the_same(name: str) -> None:
    kind: Any = base_method(name)
    task = prompted(nn.functional.normalize(numbers(1, 5, 16, seed=7), dim=2), 12.0, tiny_task().model)
    plain = Task(LinearClassifier(task.classifier.weight, normalize=True), tiny_task().model)
    batch = zero_shot(tiny_task(), patterns(8))[0] if kind.sees == "embeddings" else seen_by(name, patterns(8))
    torch.testing.assert_close(kind(plain)(batch)[1].float(), kind(task)(batch)[1], atol=1e-3, rtol=0)


def test_t3a_by_hand() -> None:
    """Raw rows decide class and entropy; rows of unit length make the new weights."""
    head = LinearClassifier(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0.0, 1.0]))
    method = T3A(Task(head), filter_k=None)
    z = torch.tensor([[3.0, 4.0], [30.0, 0.0]])
    logits = method(z)[1]
    second = torch.tensor([0.6, 1.8]) / torch.tensor([0.6, 1.8]).norm()  # (0, 1) and (0.6, 0.8); the first stays (1, 0)
    torch.testing.assert_close(method.weights_, torch.stack([torch.tensor([1.0, 0.0]), second]))
    torch.testing.assert_close(logits, 3 * z @ method.weights_.T)  # 3: mean length of the class weights
