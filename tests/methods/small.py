"""Small CLIP models whose weights follow from their names, so that other code can build the very same ones.

The references were made so: the authors' own repositories, on a model of OpenAI's class filled by :func:`fill`, in
float64 (their LayerNorm casts to float32; that cast was taken out). In float32, rounding alone can move logits by 1e-3.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.methods.base import Method, Task
from clip_tca.methods.tower import TowerMethod
from tests.methods.tiny import prompted

REFERENCES = Path(__file__).parent / "references"
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
TEMPLATES = (
    "a photo of a {}",
    "itap of a {}",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
VIT = {"image_size": 32, "patch_size": 16, "width": 128, "head_width": 64, "layers": 2}
RESNET = {"image_size": 64, "layers": (1, 1, 1, 1), "width": 8, "head_width": 64}
EMBEDDING = 32


def noise(name: str, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers of mean 0 and variance 1, the same wherever the name is the same."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).random(shape, dtype=np.float32)
    return torch.from_numpy((numbers - np.float32(0.5)) * np.float32(math.sqrt(12)))


def fill(model: nn.Module) -> Any:
    """Give a model weights that depend on nothing but their names and shapes, with OpenAI's logit scale of 100."""
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        if name == "logit_scale":
            new = torch.tensor(math.log(100))
        elif name.endswith(("positional_embedding", "class_embedding", "pos_embed", "cls_token")):
            new = 0.1 * noise(name, value.shape)
        elif name.endswith("token_embedding.weight"):
            new = noise(name, value.shape)
        elif name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            new = 1 + 0.2 * noise(name, value.shape)
        elif value.ndim < 2:
            new = 0.1 * noise(name, value.shape)
        else:
            inputs = value.shape[0] if name.endswith(("proj", "text_projection")) else value[0].numel()
            gain = 2 if "attn" in name else 1  # else the class or end token outweighs the content it attends to
            new = gain * noise(name, value.shape) / math.sqrt(inputs)
        state[name] = new.reshape(value.shape)
    model.load_state_dict(state)
    return model.eval()


def clip(vision: dict[str, Any]) -> Any:
    """An open_clip model of a kind OpenAI published, in small."""
    return fill(open_clip.CLIP(EMBEDDING, vision_cfg=dict(vision), text_cfg=dict(TEXT), quick_gelu=True))


def timm_clip(name: str) -> Any:
    """An open_clip model with one of timm's towers for tests."""
    vision = {"timm_model_name": name, "image_size": 160, "timm_pool": "", "timm_proj": "linear"}
    return fill(open_clip.CustomTextCLIP(EMBEDDING, vision_cfg=vision, text_cfg=dict(TEXT)))


def pictures(n: int, name: str = "pictures", size: int = 32) -> Tensor:
    """Coloured patches, ``(n, 3, size, size)``."""
    return functional.interpolate(noise(name, (n, 3, 4, 4)), size=(size, size))


def task(model: Any, templates: tuple[str, ...] = TEMPLATES, classes: tuple[str, ...] = CLASSES) -> Task:
    """The seven classes of PACS in WATT's templates."""
    prompts = [template.replace("{}", name) for template in templates for name in classes]
    with torch.no_grad():
        text = model.encode_text(tokenizer()(prompts), normalize=True).reshape(len(templates), len(classes), -1)
    return prompted(text, float(model.logit_scale.detach().exp()), model, tokenizer(), classes, templates)


@cache
def tokenizer() -> Callable[[list[str]], Tensor]:
    """OpenAI's."""
    return open_clip.get_tokenizer("ViT-B-32")


@cache
def shared_task() -> Task:
    """For tests that adapt nothing."""
    return task(clip(VIT))


def original(name: str) -> dict[str, Tensor]:
    """Logits after adaptation from the original authors' code, on these models and pictures, in float64."""
    return load_file(REFERENCES / f"{name}.safetensors")


def logits(method: Method, *batches: Tensor) -> Tensor:
    """Logits of each batch after adapting to it."""
    return torch.cat([method(batch)[1] for batch in batches])


def largest(first: Tensor, second: Tensor) -> float:
    """Largest absolute difference."""
    return float((first - second).abs().max())


def norms(model: Any) -> set[str]:
    """Names of the weights of the image tower's normalisation layers, found by the names of their classes."""
    layers = {name: layer for name, layer in model.visual.named_modules() if "Norm" in type(layer).__name__}
    return {f"visual.{name}.{weight}" for name, layer in layers.items() for weight, _ in layer.named_parameters()}


class TowerFacts:
    """What holds for every method on the image tower."""

    method: Callable[..., TowerMethod]
    quick: ClassVar[dict[str, Any]] = {"steps": 2}

    def made(self, model: Any | None = None, **options: Any) -> TowerMethod:
        return self.method(task(clip(VIT) if model is None else model, TEMPLATES[:3]), **{**self.quick, **options})

    def test_reset_restores_every_bit_of_the_model(self) -> None:
        method = self.made()
        before = {name: value.clone() for name, value in method.task.model.state_dict().items()}
        method(pictures(4))
        after = method.task.model.state_dict()
        assert {name for name in after if not torch.equal(after[name], before[name])} == norms(method.task.model)
        method.reset()
        after = method.task.model.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in after)

    def test_every_batch_starts_anew_unless_continual(self) -> None:
        first, second = pictures(4, "one"), pictures(4, "two")
        alone, anew, continual = self.made(), self.made(), self.made(continual=True)
        expected = logits(alone, second)
        assert torch.equal(logits(anew, first, second)[4:], expected)
        assert largest(logits(continual, first, second)[4:], expected) > 1e-3
        continual.reset()
        assert torch.equal(logits(continual, second), expected)

    def test_predict_uses_the_weights_as_they_are(self) -> None:
        method = self.made()
        z, scores = method(pictures(4))
        weights = method.weights()
        again, same = method.predict(pictures(4))
        assert torch.equal(again, z)
        assert torch.equal(same, scores)
        assert all(map(torch.equal, method.weights(), weights))
        method.reset()
        assert largest(method.predict(pictures(4))[1], scores) > 1e-3

    def test_no_gradient_is_left(self) -> None:
        method = self.made()
        z, scores = method(pictures(4))
        assert not z.requires_grad
        assert not scores.requires_grad
        assert all(not p.requires_grad and p.grad is None for p in method.task.model.parameters())
        torch.testing.assert_close(z.norm(dim=1), torch.ones(4))
        texts = method.task.prompts.embeddings
        text = functional.normalize(texts.mean(dim=0), dim=1) if method.ensemble else texts[0]
        torch.testing.assert_close(scores, method.task.prompts.scale * z @ text.T)

    def test_works_inside_inference_mode(self) -> None:
        expected = logits(self.made(), pictures(4))
        model = clip(VIT)
        with torch.inference_mode():
            method = self.made(model)  # task.text is made here too, and the batch: tensors that refuse gradients
            given = logits(method, pictures(4) + 0)
        assert torch.equal(given, expected)
        with torch.no_grad():
            assert torch.equal(logits(self.made(), pictures(4)), expected)

    def test_micro_batches_give_the_same_result_in_less_memory(self) -> None:
        batch = pictures(7).double()
        expected = logits(self.made(clip(VIT).double()), batch)
        method = self.made(clip(VIT).double(), micro_batch=3)
        seen: list[int] = []
        method.task.model.visual.register_forward_hook(lambda tower, given, _: seen.append(len(given[0])))
        assert largest(logits(method, batch), expected) < 1e-8
        assert max(seen) == 3
        single = self.made(micro_batch=3)(pictures(7))[0]
        assert largest(single, self.made()(pictures(7))[0]) < 1e-5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lr": 0.0}, "lr: 0.0; allowed are numbers above 0"),
            ({"lr": float("nan")}, "lr: nan"),
            ({"lr": "fast"}, "lr: 'fast'"),
            ({"steps": 0}, "steps: 0; allowed are whole numbers of at least 1"),
            ({"steps": 1.5}, "steps: 1.5"),
            ({"micro_batch": 0}, "micro_batch: 0; allowed are None"),
            ({"continual": "no"}, "continual: 'no'; allowed are true and false"),
        ],
    )
    def test_bad_options_are_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            self.method(shared_task(), **options)

    def test_an_empty_batch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no images"):
            self.method(shared_task())(pictures(4)[:0])

    @pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet"])
    def test_towers_of_timm(self, name: str) -> None:
        method = self.made(timm_clip(name))
        self.check_tower(method, pictures(4, size=160))

    def test_resnet_normalises_by_the_batch_and_keeps_its_statistics(self) -> None:
        method = self.made(clip(RESNET))
        self.check_tower(method, pictures(4, size=64))
        assert not any(module.training for module in method.task.model.modules())
        with pytest.raises(ValueError, match="micro_batch: 2, but the image tower has BatchNorm"):
            self.made(clip(RESNET), micro_batch=2)

    def check_tower(self, method: TowerMethod, batch: Tensor) -> None:
        model = method.task.model
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert method(batch)[1].isfinite().all()
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert moved
        assert moved <= norms(model)
        method.reset()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_towers_that_cannot_be_adapted_are_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="NormFreeNet: an image tower without normalisation weights"):
            self.made(timm_clip("test_nfnet"))
        model = clip(VIT)
        given = task(model)
        model.half()
        with pytest.raises(ValueError, match=r"VisionTransformer: normalisation weights in torch\.float16"):
            self.method(given)
