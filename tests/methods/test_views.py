"""TPT, ZERO and MTA: their authors' outputs, and what holds for prompts and views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.views import MTA, TPT, Zero
from tests.methods.small import REFERENCES, prompted

TUNED = load_file(REFERENCES / "tpt.safetensors")
"""Logits of github.com/azshue/TPT (its ClipTestTimeTuning and test_time_tuning) for :func:`small_clip` and
:func:`batch`: ``25.…`` in float32 with logit scale 25, ``100.…`` in float64 with logit scale 100; and of its
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


@pytest.fixture(scope="module")
def batch() -> Tensor:
    """Four images in 64 views of growing noise."""
    generator = np.random.default_rng(3)
    base = generator.standard_normal((4, 1, 3, 32, 32), dtype=np.float32)
    noise = generator.standard_normal((4, 64, 3, 32, 32), dtype=np.float32)
    amount = np.linspace(0, 1, 64, dtype=np.float32)[None, :, None, None, None]
    return torch.from_numpy(base + amount * noise)


def some_picture() -> Image.Image:
    pixels = (np.random.default_rng(5).random((12, 16, 3)) * 255).astype(np.uint8)
    return Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC)


def tpt_task(model: Any, scale: float = 25.0) -> Task:
    text = torch.ones(1, len(CLASSES), 16)  # not used
    return prompted(text, scale, model, open_clip.SimpleTokenizer(), CLASSES, ("a photo of a {}",))


@pytest.fixture(scope="module")
def prompts() -> Iterator[Task]:
    model = small_clip()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    yield tpt_task(model)
    for name, value in model.state_dict().items():  # after every test of this file
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.token_embedding._forward_hooks


@pytest.mark.parametrize(
    ("name", "options"), [("steps0", {"steps": 0}), ("steps1", {}), ("steps3", {"steps": 3}), ("half", {"keep": 0.5})]
)
def test_tpt_s_logits_are_the_original_ones(prompts: Task, batch: Tensor, name: str, options: dict[str, Any]) -> None:
    torch.testing.assert_close(TPT(prompts, **options)(batch)[1], TUNED[f"25.{name}"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_at_scale_100_tpt_is_the_original_in_double(batch: Tensor, steps: int) -> None:
    """In float32 near-certain images differ by 0.02: AdamW's first step is the sign of gradients near zero."""
    method = TPT(tpt_task(small_clip().double(), 100.0), steps=steps)
    torch.testing.assert_close(method(batch.double())[1], TUNED[f"100.steps{steps}"], atol=1e-4, rtol=0)


def test_images_of_tpt_do_not_touch_each_other_and_predict_is_the_untuned_prompt(prompts: Task, batch: Tensor) -> None:
    method = TPT(prompts)
    together = method(batch)
    single = [method(views[None]) for views in batch.flip(0)]
    for i in (0, 1):
        torch.testing.assert_close(torch.cat([pair[i] for pair in single]).flip(0), together[i])
    torch.testing.assert_close(method.predict(batch)[1], TUNED["25.steps0"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [CLIP, CustomTextCLIP])
def test_tpt_in_inference_mode_with_either_text_tower(kind: Any, batch: Tensor) -> None:
    model = small_clip(kind)
    with torch.inference_mode():
        pair = TPT(tpt_task(model))(batch.clone())
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in pair)
    torch.testing.assert_close(pair[1], TUNED["25.steps1"], atol=1e-4, rtol=0)


def test_views_are_the_original_ones(prompts: Task) -> None:
    transform = image_transform_v2(PreprocessCfg(size=224), is_train=False)
    views = TPT(prompts).prepare(some_picture(), transform)
    assert views.shape == (64, 3, 224, 224)
    gaps = (views[:, :, ::56, ::56] - TUNED["views"]).abs()
    assert float(gaps.max()) < 0.016  # a grey level, which another Pillow rounds otherwise, and that rarely
    assert float((gaps > 1e-5).float().mean()) < 0.005


def test_views_depend_on_picture_and_seed_only(prompts: Task) -> None:
    transform = image_transform_v2(PreprocessCfg(size=32), is_train=False)
    picture = some_picture()
    method = TPT(prompts, views=8)
    before = torch.random.get_rng_state()
    views = method.prepare(picture, transform)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(method.prepare(picture.copy(), transform), views)
    assert torch.equal(views[0], transform(picture))
    other = TPT(prompts, views=8, seed=1).prepare(picture, transform)
    assert torch.equal(other[0], views[0])
    assert not torch.equal(other[1:], views[1:])
    mirrored = method.prepare(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), transform)
    assert not torch.equal(mirrored[1:], views[1:].flip(-1))
    assert method.prepare(picture.convert("L"), transform).shape == (8, 3, 32, 32)


# -- ZERO and MTA ------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("stored", "keep"), [("zero", 0.3), ("zero_few", 0.1)])
def test_votes_of_zero_are_the_original_ones(task: Task, stored: str, keep: float) -> None:
    votes = STORED[stored]
    logits = Zero(task, keep=keep)(STORED["images"])[1]
    torch.testing.assert_close(logits.exp(), votes / votes.sum(dim=1, keepdim=True), atol=1e-6, rtol=0)
    assert (logits.argmax(dim=1) != task.classifier.predict(STORED["images"][:, 0].flatten(1))).any()
    if stored == "zero_few":
        assert (votes.sum(dim=1) == 7).any()  # a tie of six votes was broken


@pytest.mark.parametrize(
    ("stored", "options"), [("mta", {}), ("mta_sharp", {"affinity_weight": 0.5, "entropy_weight": 0.05})]
)
def test_logits_of_mta_are_the_original_ones(task: Task, stored: str, options: dict[str, Any]) -> None:
    z, logits = MTA(task, **options)(STORED["images"])
    torch.testing.assert_close(logits, STORED[stored], atol=1e-3, rtol=0)
    torch.testing.assert_close(task.classifier.logits(z), logits)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(12))
    assert (logits - MTA(task).predict(STORED["images"])[1]).abs().max() > 0.3


def test_a_tie_that_no_other_view_decides_goes_to_the_tied_class_that_the_next_view_scores_higher(task: Task) -> None:
    task = Task(ZeroShotClassifier(torch.eye(3, 12), SCALE), Pixels())
    rows = torch.zeros(3, 12)
    rows[0, 0], rows[1, 1] = 1, 1
    rows[2, :3] = torch.tensor([0.5, 0.6, 0.61])  # the least certain, for the third class
    logits = Zero(task, keep=0.7)(rows.reshape(1, 3, 3, 2, 2))[1]
    assert logits[0].argmax() == 1


@pytest.mark.parametrize("kind", [Zero, MTA])
def test_images_do_not_touch_each_other_and_equal_views_give_zero_shot(kind: Any, task: Task) -> None:
    method, images = kind(task), STORED["images"]
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
