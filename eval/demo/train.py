"""Train the demo's CLIP from scratch on drawn photos and their captions: minutes on two CPU cores, no download.

    python eval/demo/train.py --output eval/demo

Only the photo style is trained on (pictures of seed 1) and only the photo style is validated (seed 2, the prompt
``a photo of a {}``). The evaluation set (seed 0, all four styles) is measured once, at the very end, with the weights
as they were written. ``--validate-only`` leaves that out: it is for choosing how to train without looking.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from clip_tca.core.files import sha256, write_tensors, write_text
from clip_tca.datasets.demo import CLASSES, IMAGES, STYLES, VERSION, Attributes, draw, scene

TRAINING_SEED, VALIDATION_SEED, EVALUATION_SEED = 1, 2, 0
PROMPT = "a photo of a {}"
STORED = 72  # training pictures are kept a little larger than the input, for crops

MODEL: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {
        "image_size": 64,
        "layers": 6,
        "width": 128,
        "head_width": 32,
        "patch_size": 8,
        "pool_type": "avg",
        "pos_embed_type": "sin_cos_2d",
    },
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 3},
}
PREPROCESS: dict[str, Any] = {
    "size": 64,
    "mode": "RGB",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}

# What people write as prompts: nothing but the name.
PLAIN = (
    "a photo of a {}", "a photo of the {}.", "itap of a {}", "itap of the {}.", "a bad photo of the {}.",
    "a bad photo of a {}.", "a good photo of the {}.", "a close-up photo of a {}.", "a picture of a {}",
    "an image of a {}", "a origami {}.", "a {} in a video game.", "art of the {}.", "art of a {}",
    "there is a {} here", "this is a {}.", "a {}", "the {}", "{}",
)  # fmt: skip
OPENINGS = (
    "a photo of", "a picture of", "itap of", "art of", "a bad photo of", "a good photo of", "an image of", "this is",
    "there is", "a snapshot of", "", "", "",
)  # fmt: skip


def caption(name: str, about: Attributes, mirrored: bool, rng: np.random.Generator) -> str:
    """One of many ways to say what is in a picture; most mention colour, size, pose or place."""
    if rng.random() < 0.3:
        return str(rng.choice(PLAIN)).format(name)
    before, after = [], []
    if about.size and rng.random() < 0.6:
        before.append(about.size)
    if rng.random() < 0.75:
        (after if name == "person" else before).append(f"in {about.colour}" if name == "person" else about.colour)
    if about.pose != "standing" and rng.random() < 0.6:
        after.append(about.pose)
    if about.facing and rng.random() < 0.3:
        facing = about.facing if not mirrored else {"left": "right", "right": "left"}[about.facing]
        after.append(f"facing {facing}")
    if rng.random() < 0.6:
        after.append(about.place)
    noun = " ".join([*before, name])
    article = "the" if rng.random() < 0.3 else "an" if noun[0] in "aeiou" else "a"
    return " ".join([str(rng.choice(OPENINGS)), article, noun, *after]).strip() + ("." if rng.random() < 0.5 else "")


def _drawn(job: tuple[str, int, int]) -> tuple[np.ndarray, Attributes]:
    """A training picture, made smaller, and what is in it (runs in a worker process)."""
    name, index, seed = job
    image, about = scene("photo", name, index, seed)
    return np.asarray(image.resize((STORED, STORED), Image.Resampling.BICUBIC)), about


def training_pictures(images: int) -> tuple[Tensor, list[tuple[str, Attributes]]]:
    """``images`` photos of each class as ``(n, 3, 72, 72)`` bytes, with their names and attributes."""
    jobs = [(name, index, TRAINING_SEED) for index in range(images) for name in CLASSES]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        drawn = list(pool.map(_drawn, jobs, chunksize=64))
    pixels = torch.from_numpy(np.stack([pixels for pixels, _ in drawn])).permute(0, 3, 1, 2).contiguous()
    return pixels, [(name, about) for (name, _, _), (_, about) in zip(jobs, drawn, strict=True)]


def augmented(pixels: Tensor, mirrored: Tensor, generator: torch.Generator) -> Tensor:
    """A batch of bytes as normalised inputs: mirrored where told, cropped, shifted, slightly recoloured."""
    n = len(pixels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    theta = torch.zeros(n, 2, 3)
    scale = uniform(0.78, 1.04)
    theta[:, 0, 0] = scale * uniform(0.94, 1.06) * (1 - 2 * mirrored.float())
    theta[:, 1, 1] = scale
    theta[:, :, 2] = uniform(-1, 1, 2) * (1 - scale).abs()[:, None]
    size = PREPROCESS["size"]
    grid = functional.affine_grid(theta, [n, 3, size, size], align_corners=False)
    x = functional.grid_sample(pixels.float() / 255, grid, padding_mode="reflection", align_corners=False)
    x = x * uniform(0.85, 1.15, 1, 1, 1) * uniform(0.95, 1.05, 3, 1, 1) + uniform(-0.05, 0.05, 1, 1, 1)
    return (x.clamp(0, 1) - PREPROCESS["mean"][0]) / PREPROCESS["std"][0]


def pictures(style: str, images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Preprocessed pictures of all classes in a style, and their labels."""
    preprocess = image_transform_v2(PreprocessCfg(**PREPROCESS), is_train=False)
    x = [preprocess(draw(style, name, index, seed)) for name in CLASSES for index in range(images)]
    return torch.stack(x), torch.arange(len(CLASSES)).repeat_interleave(images)


@torch.no_grad()
def accuracy(model: open_clip.CLIP, x: Tensor, y: Tensor, tokenizer: open_clip.SimpleTokenizer) -> float:
    """Zero-shot accuracy in per cent with the prompt ``a photo of a {}``."""
    model.eval()
    text = model.encode_text(tokenizer([PROMPT.format(name) for name in CLASSES]), normalize=True)
    right = sum(
        int(((model.encode_image(part, normalize=True) @ text.T).argmax(1) == labels).sum())
        for part, labels in zip(x.split(256), y.split(256), strict=True)
    )
    model.train()
    return 100 * right / len(y)


def train(options: argparse.Namespace, tokenizer: open_clip.SimpleTokenizer) -> open_clip.CLIP:
    """Train from scratch with open_clip's contrastive loss, AdamW, warm-up and cosine decay."""
    started = time.perf_counter()
    pixels, about = training_pictures(options.images)
    validation = pictures("photo", 60, VALIDATION_SEED)
    print(f"{len(pixels)} photos drawn in {time.perf_counter() - started:.0f} s", flush=True)

    torch.manual_seed(options.seed)
    generator, rng = torch.Generator().manual_seed(options.seed), np.random.default_rng(options.seed)
    vision = {**MODEL["vision_cfg"], "patch_dropout": options.patch_dropout}
    model, loss = open_clip.CLIP(**{**MODEL, "vision_cfg": vision}), open_clip.ClipLoss()
    plain = [p for p in model.parameters() if p.ndim < 2]
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98))
    per_epoch = len(pixels) // options.batch
    order = torch.empty(0, dtype=torch.long)
    running, started = 0.0, time.perf_counter()
    for step in range(options.steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(pixels), generator=generator)
        warm = min(1.0, (step + 1) / (0.06 * options.steps))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * warm * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        rows = order[step % per_epoch * options.batch :][: options.batch]
        mirrored = torch.rand(len(rows), generator=generator) < 0.5
        words = [caption(*about[i], m, rng) for i, m in zip(rows.tolist(), mirrored.tolist(), strict=True)]
        image, text, scale = model(augmented(pixels[rows], mirrored, generator), tokenizer(words))
        error = loss(image, text, scale)
        optimizer.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        running += error.item()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            seen = (step % options.every) + 1
            print(
                f"step {step + 1:5d}/{options.steps}  loss {running / seen:.3f}  scale {scale.item():.1f}  "
                f"photo validation {accuracy(model, *validation, tokenizer):.1f} %  "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )
            running = 0.0
    return model


def write(model: open_clip.CLIP, folder: Path) -> None:
    """The weights as float16 and the configuration with their hash; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    path = folder / "model.safetensors"
    write_tensors(path, weights, {"format": "pt", "pictures": str(VERSION)})
    config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS, "sha256": sha256(path)}
    write_text(folder / "open_clip_config.json", json.dumps(config, indent=2) + "\n")


def load(folder: Path) -> open_clip.CLIP:
    """The model as users load it: float16 on disk, float32 in memory."""
    config = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))
    model = open_clip.CLIP(**config["model_cfg"])
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights, strict=True)
    return model.eval()


def main() -> None:
    """Train, write, and measure the evaluation set once."""
    parser = argparse.ArgumentParser(description="Train the demo's CLIP from scratch.")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights and configuration")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights, the data order and the captions")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=3500, help="training pictures for each class")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--patch-dropout", type=float, default=0.25, help="share of patches left out while training")
    parser.add_argument("--every", type=int, default=100, help="steps between two lines of progress")
    parser.add_argument("--validate-only", action="store_true", help="do not look at the evaluation set")
    options = parser.parse_args()

    started = time.perf_counter()
    tokenizer = open_clip.SimpleTokenizer(context_length=MODEL["text_cfg"]["context_length"])
    write(train(options, tokenizer), options.output)
    model = load(options.output)
    count, size = sum(p.numel() for p in model.parameters()), (options.output / "model.safetensors").stat().st_size
    print(f"{count:,} parameters, {size / 1e6:.1f} MB, {(time.perf_counter() - started) / 60:.1f} minutes in all")
    validation = accuracy(model, *pictures("photo", 60, VALIDATION_SEED), tokenizer)
    print(f"photo validation with the written weights: {validation:.1f} %")
    if not options.validate_only:
        for style in STYLES:
            figure = accuracy(model, *pictures(style, IMAGES, EVALUATION_SEED), tokenizer)
            print(f"zero-shot on the evaluation set, {style}: {figure:.1f} %")


if __name__ == "__main__":
    main()
