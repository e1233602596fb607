"""Methods on the image tower, on the bundled model: a real convolutional tower with BatchNorm."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Inputs
from clip_tca.methods.registry import BASES, base_method
from clip_tca.methods.tower import TowerMethod
from tests.demo_files import write_demo

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
    found = runs.run(name, {"lr": 0.05, "steps": 1, **SHORT.get(name, {})}, "sketch", torch.arange(IMAGES))
    assert found.logits.shape == (IMAGES, 3)
    assert found.logits.isfinite().all()
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


def test_weights_below_the_last_quarter_change_in_sar(runs):
    from clip_tca.methods.sar import lower_parameters
    from clip_tca.methods.tower import norm_parameters

    tower = runs.embedded.encoder.model.visual
    names = {id(parameter): name for name, parameter in tower.named_parameters()}
    lower = [names[id(parameter)] for parameter in lower_parameters(tower, norm_parameters(tower))]
    assert "trunk.bn1.weight" in lower
    assert {name.split(".")[2] for name in lower if ".blocks." in name} == {"0", "1", "2", "3", "4", "5"}
    assert not any(name.startswith("trunk.bn2") for name in lower)
