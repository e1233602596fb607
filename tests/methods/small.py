"""Small CLIP models and pictures from arithmetic alone, the same on every machine, so that other code can build them.

References on :func:`clip`, of OpenAI's class filled by :func:`fill`, were made in float64 by the authors' own
repositories (their LayerNorm casts to float32; that cast was taken out). In float32, rounding alone can move logits by
1e-3. References on :func:`tiny_task`, of a few thousand weights, were made in float32.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task, TextPrompts

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


def prompted(
    text: Tensor,
    scale: float,
    model: Any = None,
    tokenizer: Callable[[list[str]], Tensor] = lambda texts: torch.empty(0),
    classes: tuple[str, ...] = (),
    templates: tuple[str, ...] = ("{}", "a {}"),
) -> Task:
    """A task with the text embeddings of all templates, as an evaluation builds it."""
    return Task(ZeroShotClassifier(text, scale), model, TextPrompts(classes, templates, text, scale, tokenizer))


# -- models of the kinds that OpenAI published -------------------------------------------------------------------------


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


# -- the tiny model ----------------------------------------------------------------------------------------------------


def numbers(*shape: int, seed: int) -> Tensor:
    """Numbers from −1 to 1 without visible order: a hash of their position."""
    mask = 0xFFFFFFFF
    x = torch.arange(torch.Size(shape).numel()) + seed * 1_000_003
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & mask
    x = x ^ (x >> 16)
    return (x.double() / mask * 2 - 1).float().reshape(shape)


def patterns(n: int, seed: int = 0, noise: float = 1.5) -> Tensor:
    """Noisy patterns, one of five for each picture in turn, ``(n, 3, 16, 16)``."""
    clean = functional.interpolate(numbers(5, 3, 4, 4, seed=77), size=16, mode="nearest") * 1.5
    return clean[torch.arange(n) % 5] + noise * numbers(n, 3, 16, 16, seed=1000 + seed)


@cache
def _model_and_text(layers: int) -> tuple[CLIP, Tensor]:
    """A vision transformer of width 32, every weight by its position, and texts where the clean patterns are."""
    vision = CLIPVisionCfg(layers=layers, width=32, head_width=16, patch_size=4, image_size=16)
    text_tower = CLIPTextCfg(context_length=8, vocab_size=64, width=16, heads=2, layers=1)
    model = CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text_tower).eval()
    with torch.no_grad():
        for number, (name, value) in enumerate(sorted(model.named_parameters())):
            new = numbers(*value.shape, seed=number) if value.ndim else torch.zeros(())
            if value.ndim >= 2:
                value.copy_(new * (3 / value[0].numel()) ** 0.5)
            else:
                value.copy_(0.2 * new + (1 if name.endswith("weight") else 0))
        clean = functional.normalize(model.encode_image(patterns(5, noise=0.0)), dim=1)
    text = torch.stack([clean - clean.mean(dim=0) + 0.1 * numbers(5, 16, seed=500 + t) for t in range(2)])
    return model, functional.normalize(text, dim=2)


def tiny_task(scale: float = 12.0, layers: int = 4, dtype: torch.dtype = torch.float32) -> Task:
    """Five classes in two templates, and a model that knows them, more or less."""
    model, text = _model_and_text(layers)
    return prompted(
        text.to(dtype),
        scale,
        deepcopy(model).to(dtype),
        lambda texts: torch.tensor([[ord(letter) % 63 for letter in f"{text:8}"[-8:]] for text in texts]),
        ("circle", "square", "star", "tree", "wave"),
        ("a {}", "the {}"),
    )


def zero_shot(task: Task, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings and logits of the model as it is."""
    with torch.no_grad():
        z = functional.normalize(task.model.encode_image(batch), dim=1)
        return z, task.classifier.logits(z)
