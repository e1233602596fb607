"""Small CLIP models whose weights follow from their names, so that other code can build the very same ones.

The references were made so: the authors' own repositories, on a model of OpenAI's class filled by :func:`fill`, in
float64 (their LayerNorm casts to float32; that cast was taken out). In float32, rounding alone can move logits by 1e-3.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.methods.base import Method, Task
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


def original(name: str) -> dict[str, Tensor]:
    """Logits after adaptation from the original authors' code, on these models and pictures, in float64."""
    return load_file(REFERENCES / f"{name}.safetensors")


def logits(method: Method, *batches: Tensor) -> Tensor:
    """Logits of each batch after adapting to it."""
    return torch.cat([method(batch)[1] for batch in batches])


def largest(first: Tensor, second: Tensor) -> float:
    """Largest absolute difference."""
    return float((first - second).abs().max())
