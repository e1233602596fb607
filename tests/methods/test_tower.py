"""What methods on the image tower have in common: which towers can be adapted, and what BatchNorm does."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Inputs
from clip_tca.methods.registry import BASES, base_method
from clip_tca.methods.tent import Tent
from clip_tca.methods.tower import TowerMethod
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


def test_what_cannot_be_adapted_is_refused_by_name():
    with pytest.raises(ValueError, match="NormFreeNet: an image tower without normalisation weights"):
        Tent(task(timm_clip("test_nfnet")))
    with pytest.raises(ValueError, match="micro_batch: 2, but the image tower has BatchNorm"):
        Tent(task(clip(RESNET)), micro_batch=2)
    given = task(clip(VIT))
    with pytest.raises(ValueError, match="no images"):
        Tent(given)(pictures(4)[:0])
    with pytest.raises(ValueError, match="micro_batch: 0; allowed are None"):
        Tent(given, micro_batch=0)
    given.model.half()
    with pytest.raises(ValueError, match=r"VisionTransformer: normalisation weights in torch\.float16"):
        Tent(given)


def test_micro_batches_are_embedded_one_at_a_time():
    method, seen = Tent(task(clip(VIT)), steps=2, micro_batch=3), []
    method.task.model.visual.register_forward_hook(lambda tower, given, _: seen.append(len(given[0])))
    method(pictures(7))
    assert max(seen) == 3
