"""What the harness adds to the bare model when it encodes pictures, as ratios measured in one run.

    python benchmarks/encode.py [--model ViT-B-16-quickgelu] [--images 192] [--batch 64]

Bare: the model on ready tensors, same batch size. Harness: pictures decoded and preprocessed in worker processes beside
it, shards written to the store. Also the bare model with channels-last memory and with ``torch.compile``. Weights are
random: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file

from clip_tca.datasets.folder import load_folder
from clip_tca.embed import Embedder
from clip_tca.encoder import Encoder
from clip_tca.store import Store


def seconds(work: Callable[[], object]) -> float:
    """Wall time of ``work``."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pictures(folder: Path, images: int) -> None:
    """JPEG files of 400 × 300 pixels, in two classes."""
    rng = np.random.default_rng(0)
    for i in range(images):
        place = folder / ("even" if i % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(place / f"{i:05d}.jpg", quality=90)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B-16-quickgelu")
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        weights = root / "weights.safetensors"
        save_file(open_clip.create_model(options.model).state_dict(), weights)
        encoder = Encoder(options.model, str(weights), options.device)
        pictures(root / "own", options.images)
        data = load_folder(root / "own")
        domain = data.domains["own"]
        ready = torch.stack([encoder.transform(Image.open(domain.source(i))) for i in range(len(domain))])
        batches = ready.split(options.batch)
        encoder.images(batches[0])
        bare = min(seconds(lambda: [encoder.images(batch) for batch in batches]) for _ in range(2))
        rows = {"bare model": bare}
        for workers in (0, 1, 2):
            embedder = Embedder(encoder, Store(root / f"store{workers}"), workers=workers, batch=options.batch)
            rows[f"harness, {workers} workers"] = seconds(lambda embedder=embedder: embedder.pictures(data))
        last = [batch.contiguous(memory_format=torch.channels_last) for batch in batches]
        encoder.model.to(memory_format=torch.channels_last)
        rows["bare, channels-last"] = seconds(lambda: [encoder.images(batch) for batch in last])
        compiled = torch.compile(encoder.model.encode_image)
        with torch.inference_mode():
            compiled(batches[0])
            rows["bare, compiled"] = seconds(lambda: [compiled(batch) for batch in batches])
    print(
        f"{options.model}, {encoder.device}, {os.cpu_count()} cores, {options.images} images, batch {options.batch}\n"
    )
    for name, time_taken in rows.items():
        print(
            f"{name:22}  {options.images / time_taken:8.1f} images/s  {bare / time_taken:6.2f} of the bare model's rate"
        )


if __name__ == "__main__":
    main()
