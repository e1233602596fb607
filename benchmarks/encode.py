"""What the harness adds to the bare model when it encodes pictures, as ratios measured in one run.

    python benchmarks/encode.py [--model ViT-B-16-quickgelu] [--images 192] [--batch 64]

Bare: the model on ready tensors, by as many as the harness takes at once. Harness: pictures decoded and preprocessed in
worker processes beside it, shards written to the store. Weights are random: speed does not depend on them. All by the
clock, on all cores. *At most* is what is left for the model on a CPU if decoding takes its time from the same cores and
nothing else is lost.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be run by its path

from benchmarks.measure import Row, wall
from clip_tca.datasets.folder import load_folder
from clip_tca.datasets.pictures import decode
from clip_tca.encoding.decoding import default_workers
from clip_tca.encoding.embedder import ON_CPU, Embedder
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import Store


def pictures(folder: Path, images: int) -> None:
    """JPEG files of 400 × 300 pixels, in two classes."""
    rng = np.random.default_rng(0)
    for i in range(images):
        place = folder / ("even" if i % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(place / f"{i:05d}.jpg", quality=90)


def measure(model: str, images: int, batch: int, device: str = "auto", others: tuple[int, ...] = (0, 1)) -> list[Row]:
    """Rate of the harness over that of the bare model, with the default number of workers and with ``others``."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        weights = root / "weights.safetensors"
        save_file(open_clip.create_model(model).state_dict(), weights)
        encoder = OpenClipEncoder(model, str(weights), device)
        pictures(root / "own", images)
        data = load_folder(root / "own")
        domain = data.domains["own"]
        decoded: list[torch.Tensor] = []
        opened = (decode(domain.picture(i)) for i in range(len(domain)))
        decoding = wall(lambda: decoded.extend(map(encoder.transform, opened)))
        on_cpu = encoder.device.type == "cpu"
        batches = torch.stack(decoded).split(min(batch, ON_CPU) if on_cpu else batch)
        encoder.encode_images(batches[0])
        table, usual = [], default_workers(encoder.device)
        for workers in dict.fromkeys((usual, *others)):
            bare = harness = math.inf
            for turn in range(3):  # in turns, the best of each: other work on the machine comes and goes
                bare = min(bare, wall(lambda: [encoder.encode_images(part) for part in batches]))
                embedder = Embedder(encoder, Store(root / f"store{workers}{turn}"), workers=workers, batch=batch)
                harness = min(harness, wall(lambda embedder=embedder: embedder.pictures(data)))
            table.append(
                Row(
                    f"{model}, {workers} workers{' (default)' if workers == usual else ''}: rate of the bare model's",
                    bare / harness,
                    ">= 0.95" if workers == usual else "",
                    {
                        "harness": f"{images / harness:.1f} images/s",
                        "bare": f"{images / bare:.1f}",
                        "decoding alone, one core": f"{images / decoding:.0f}",
                        **({"at most": f"{bare / (bare + decoding / (os.cpu_count() or 1)):.3f}"} if on_cpu else {}),
                    },
                )
            )
    return table


def rows(quick: bool) -> list[Row]:
    """The default model, and one that is four times faster, so that decoding weighs more."""
    if quick:
        return measure("ViT-B-32-quickgelu", 64, 32)
    return measure("ViT-B-16-quickgelu", 64, 32, others=()) + measure("ViT-B-32-quickgelu", 192, 64, others=())


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B-16-quickgelu")
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {options.images} images, batch {options.batch}")
    for row in measure(options.model, options.images, options.batch, options.device):
        print(f"{row.what}: {row.value:.2f}", *[f"{name} {value}" for name, value in row.sides.items()], sep="; ")


if __name__ == "__main__":
    main()
