"""TPT: the original's own outputs on a small random CLIP, and what holds for prompts and views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.methods.base import Task
from clip_tca.methods.tpt import TPT
from tests.methods.tiny import prompted

STORED = load_file(Path(__file__).parent / "references" / "tpt.safetensors")
"""Logits of github.com/azshue/TPT (its ClipTestTimeTuning and test_time_tuning) for :func:`small_clip` and
:func:`some_views`: ``25.…`` in float32 with logit scale 25, ``100.…`` in float64 with logit scale 100; and of its
AugMixAugmenter every 56th pixel of the views of :func:`some_picture`."""

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "alarm clock")
VISION: dict[str, Any] = {"layers": 2, "width": 64, "head_width": 64, "patch_size": 16, "image_size": 32}
TEXT: dict[str, Any] = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """A parameter that depends on its name only; the original was given the same."""
    value = np.random.default_rng([0, *name.encode()]).standard_normal(shape, dtype=np.float32)
    if "ln_" in name:
        value = 0.1 * value + float(name.endswith("weight"))
    elif name.endswith("bias"):
        value = 0.1 * value
    elif "embedding" in name:
        value = 0.3 * value
    elif name.endswith("proj"):
        value = value / np.sqrt(shape[0])
    else:
        value = value / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value, dtype=np.float32))


def small_clip(kind: type[CLIP] | type[CustomTextCLIP] = CLIP) -> Any:
    model = kind(16, VISION, TEXT, quick_gelu=True)
    state = {name: weight(name.removeprefix("text."), tuple(v.shape)) for name, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def some_views(n: int = 4, views: int = 64) -> Tensor:
    generator = np.random.default_rng(3)
    base = generator.standard_normal((n, 1, 3, 32, 32), dtype=np.float32)
    noise = generator.standard_normal((n, views, 3, 32, 32), dtype=np.float32)
    amount = np.linspace(0, 1, views, dtype=np.float32)[None, :, None, None, None]
    return torch.from_numpy(base + amount * noise)


def some_picture() -> Image.Image:
    pixels = (np.random.default_rng(5).random((12, 16, 3)) * 255).astype(np.uint8)
    return Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC)


def new_task(model: Any, scale: float = 25.0) -> Task:
    text = torch.ones(1, len(CLASSES), 16)  # not used
    return prompted(text, scale, model, open_clip.SimpleTokenizer(), CLASSES, ("a photo of a {}",))


@pytest.fixture(scope="module")
def task() -> Iterator[Task]:
    model = small_clip()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    yield new_task(model)
    for name, value in model.state_dict().items():  # after every test of this file
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.token_embedding._forward_hooks


@pytest.fixture(scope="module")
def batch() -> Tensor:
    return some_views()


@pytest.mark.parametrize(
    ("name", "options"), [("steps0", {"steps": 0}), ("steps1", {}), ("steps3", {"steps": 3}), ("half", {"keep": 0.5})]
)
def test_logits_are_the_original_ones(task: Task, batch: Tensor, name: str, options: dict[str, Any]) -> None:
    torch.testing.assert_close(TPT(task, **options)(batch)[1], STORED[f"25.{name}"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_at_scale_100_the_original_in_double(batch: Tensor, steps: int) -> None:
    """In float32 near-certain images differ by 0.02: AdamW's first step is the sign of gradients near zero."""
    method = TPT(new_task(small_clip().double(), 100.0), steps=steps)
    torch.testing.assert_close(method(batch.double())[1], STORED[f"100.steps{steps}"], atol=1e-4, rtol=0)


def test_images_do_not_touch_each_other(task: Task, batch: Tensor) -> None:
    method = TPT(task)
    together = method(batch)
    single = [method(views[None]) for views in batch.flip(0)]
    for i in (0, 1):
        torch.testing.assert_close(torch.cat([pair[i] for pair in single]).flip(0), together[i])


def test_text_tower_as_a_module_of_its_own(batch: Tensor) -> None:
    custom = TPT(new_task(small_clip(CustomTextCLIP)))
    torch.testing.assert_close(custom(batch)[1], STORED["25.steps1"], atol=1e-4, rtol=0)


def test_inside_inference_mode(batch: Tensor) -> None:
    model = small_clip()
    with torch.inference_mode():
        pair = TPT(new_task(model))(batch.clone())
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in pair)
    torch.testing.assert_close(pair[1], STORED["25.steps1"], atol=1e-4, rtol=0)


def test_views_are_the_original_ones(task: Task) -> None:
    transform = image_transform_v2(PreprocessCfg(size=224), is_train=False)
    views = TPT(task).prepare(some_picture(), transform)
    assert views.shape == (64, 3, 224, 224)
    gaps = (views[:, :, ::56, ::56] - STORED["views"]).abs()
    assert float(gaps.max()) < 0.016  # a grey level, which another Pillow rounds otherwise, and that rarely
    assert float((gaps > 1e-5).float().mean()) < 0.005


def test_views_depend_on_picture_and_seed_only(task: Task) -> None:
    transform = image_transform_v2(PreprocessCfg(size=32), is_train=False)
    picture = some_picture()
    method = TPT(task, views=8)
    before = torch.random.get_rng_state()
    views = method.prepare(picture, transform)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(method.prepare(picture.copy(), transform), views)
    assert torch.equal(views[0], transform(picture))
    other = TPT(task, views=8, seed=1).prepare(picture, transform)
    assert torch.equal(other[0], views[0])
    assert not torch.equal(other[1:], views[1:])
    mirrored = method.prepare(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), transform)
    assert not torch.equal(mirrored[1:], views[1:].flip(-1))
    assert method.prepare(picture.convert("L"), transform).shape == (8, 3, 32, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "lr: 0; allowed are numbers above 0"),
        ({"steps": -1}, "steps: -1; allowed are whole numbers of at least 0"),
        ({"views": 0}, "views: 0; allowed are whole numbers of at least 1"),
        ({"keep": 1.5}, "keep: 1.5; allowed are numbers above 0"),
        ({"seed": 0.5}, "seed: 0.5"),
    ],
)
def test_bad_options(task: Task, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TPT(task, **options)


def test_pictures_without_views(task: Task) -> None:
    with pytest.raises(ValueError, match=r"batch: shape \(2, 3, 32, 32\); expected \(n, views, 3, height, width\)"):
        TPT(task)(torch.zeros(2, 3, 32, 32))


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear: a text tower without token embeddings"):
        TPT(new_task(torch.nn.Linear(2, 2)))


def test_predict_is_the_untuned_prompt(task: Task, batch: Tensor) -> None:
    torch.testing.assert_close(TPT(task).predict(batch)[1], STORED["25.steps0"], atol=1e-4, rtol=0)
