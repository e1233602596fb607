"""Methods on the image tower: which towers can be adapted, what BatchNorm does, and BN by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torchvision.models import get_model

from clip_tca.classifier import LinearClassifier
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Inputs
from clip_tca.methods.base import Task
from clip_tca.methods.entropy import Tent, lower_parameters
from clip_tca.methods.registry import BASES, base_method
from clip_tca.methods.tower import BN, TowerMethod, norm_parameters
from tests.demo_files import write_demo
from tests.methods.small import RESNET, VIT, clip, pictures, task, timm_clip

IMAGES = 12
SHORT = {"tea": {"langevin_steps": 2}, "watt-p": {"repetitions": 1}, "watt-s": {"repetitions": 1}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> BaseRuns:
    """Twelve sketches of three classes, and the bundled model."""
    folder = write_demo(tmp_path_factory.mktemp("demo"), ["sketch"], classes=3, images=IMAGES // 3)
    embedded = Inputs("folder", data_dir=folder, model="demo", cache=False, workers=0, device="cpu").embed()
    return BaseRuns(embedded, torch.device("cpu"), IMAGES, 0, progress=False)


@pytest.mark.parametrize("name", [name for name in BASES if issubclass(base_method(name), TowerMethod)])
def test_it_runs_on_batch_norm_and_leaves_the_model_as_it_was(name, runs):
    model = runs.embedded.encoder.model
    assert any(isinstance(module, BatchNorm) for module in model.visual.modules())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    output = runs.run(name, {"lr": 0.05, "steps": 1, **SHORT.get(name, {})}, "sketch", torch.arange(IMAGES))
    assert output.logits.shape == (IMAGES, 3)
    assert output.logits.isfinite().all()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # running statistics too
    assert all(value.is_contiguous() for value in model.state_dict().values())  # laid out as the encoder had it
    assert not any(module.training for module in model.modules())


def test_pictures_are_normalised_by_their_own_batch(runs):
    """As in TENT: the same picture is embedded otherwise in other company, even before any step has an effect."""
    order = torch.arange(IMAGES)
    together = runs.run("tent", {"lr": 1e-12, "steps": 1}, "sketch", order).z
    half = runs.run("tent", {"lr": 1e-12, "steps": 1}, "sketch", order[:6]).z
    plain = runs.run("plain CLIP", {}, "sketch", order).z
    assert not torch.allclose(together[:6], half, atol=1e-3)
    assert not torch.allclose(together, plain, atol=1e-3)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet"])
def test_towers_of_timm_change_in_their_normalisation_alone_and_are_restored(name):
    model = timm_clip(name)
    method, before = Tent(task(model), steps=2), {key: value.clone() for key, value in model.state_dict().items()}
    scores = method(pictures(4, size=160))[1]
    assert torch.equal(method.predict(pictures(4, size=160))[1], scores)
    layers = {key: layer for key, layer in model.visual.named_modules() if "Norm" in type(layer).__name__}
    norms = {f"visual.{key}.{weight}" for key, layer in layers.items() for weight, _ in layer.named_parameters()}
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved
    assert moved <= norms
    method.reset()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_micro_batches_are_embedded_one_at_a_time():
    method, sizes = Tent(task(clip(VIT)), steps=2, micro_batch=3), []
    method.task.model.visual.register_forward_hook(lambda tower, given, _: sizes.append(len(given[0])))
    method(pictures(7))
    assert max(sizes) == 3


def test_sar_leaves_the_last_quarter_of_torchvision_s_networks() -> None:
    for name, adapted in {"resnet18": {"bn1", "layer1", "layer2", "layer3"}, "vit_b_16": {"encoder"}}.items():
        with torch.device("meta"):
            network = get_model(name, weights=None)
        names = {id(parameter): path for path, parameter in network.named_parameters()}
        lower = [names[id(parameter)] for parameter in lower_parameters(network, norm_parameters(network))]
        assert {path.split(".")[0] for path in lower} == adapted
        if name == "vit_b_16":
            assert {int(path.split(".")[2].removeprefix("encoder_layer_")) for path in lower} == set(range(9))


# -- BN ----------------------------------------------------------------------------------------------------------------

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
def test_bn_s_mixture_by_hand(prior: int, mean: float, variance: float) -> None:
    method = BN(Task(LinearClassifier(2 * torch.eye(2), torch.tensor([0.0, 1.0])), one_layer()), prior=prior)
    expected = (BATCH.flatten(1) - mean) / math.sqrt(variance)
    z, logits = method(BATCH)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(logits, 2 * expected + torch.tensor([0.0, 1.0]))


def test_bn_leaves_the_model_as_it_was_and_remembers_no_batch() -> None:
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


def test_an_error_in_bn_leaves_the_model_as_it_was() -> None:
    model = one_layer()
    before = model.visual[0].running_mean

    def broken(_batch: Tensor) -> Tensor:
        model.visual(BATCH)
        raise RuntimeError("out of memory")

    model.encode_image = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        BN(Task(LinearClassifier(torch.eye(2)), model))(BATCH)
    assert model.visual[0].running_mean is before
