"""Pictures, weights, and the shards of our store."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import warnings
from argparse import Namespace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzing.mutations import JUNK, damaged
from benchmarks.fuzzing.target import Target, Unclear, made

Z = np.random.default_rng(0).standard_normal((53, 6)).astype(np.float32)


class Images(Target):
    """Pictures, as the folder and the hub give them."""

    name, share, names = "images", 6.0, ()

    @cached_property
    def seeds(self) -> list[bytes]:
        """Every format that counts as an image, in several modes."""
        from PIL import Image

        noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (33, 40, 3), dtype=np.uint8))
        deep = Image.fromarray(np.random.default_rng(1).integers(0, 65536, (20, 20)).astype(np.uint16))
        ways: list[tuple[Any, str, dict[str, Any]]] = [
            (noise, "JPEG", {}), (noise, "JPEG", {"progressive": True}), (noise.convert("CMYK"), "JPEG", {}),
            (noise.convert("L"), "JPEG", {}), (noise, "PNG", {}), (noise.convert("RGBA"), "PNG", {}), (deep, "PNG", {}),
            (noise.convert("P"), "PNG", {"transparency": 3}), (noise.convert("1"), "PNG", {}), (noise, "WEBP", {}),
            (noise, "WEBP", {"lossless": True}), (noise.convert("RGBA"), "WEBP", {}), (noise, "BMP", {}),
            (noise.convert("P"), "BMP", {}), (noise, "TIFF", {}), (noise, "TIFF", {"compression": "tiff_lzw"}),
            (noise, "TIFF", {"compression": "tiff_deflate"}), (noise, "TIFF", {"compression": "jpeg"}),
            (deep, "TIFF", {}), (noise.convert("F").resize((9, 9)), "TIFF", {}), (noise.convert("LAB"), "TIFF", {}),
            (noise.convert("P"), "GIF", {"save_all": True, "append_images": [noise.rotate(90), noise.rotate(180)]}),
            (noise, "PPM", {}), (deep, "PPM", {}),
        ]  # fmt: skip
        found = []
        for image, form, options in ways:
            file = io.BytesIO()
            image.save(file, form, **options)
            found.append(file.getvalue())
        return found

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """What can be decoded is RGB of a sane size; what can't is refused with a reason."""
        from clip_tca.datasets.pictures import MAX_PIXELS, decode, fault, mark

        data = damaged(rng.choice(self.seeds), rng, self.seeds)
        source: Any = data
        if rng.random() < 0.2:
            source = folder / "case.img"
            source.write_bytes(data)
        reason = fault(source)
        mark(source)
        if reason is not None and (not reason.strip() or "\n" in reason):
            raise Unclear(f"fault() says {reason!r}")
        picture = decode(source)
        if picture.mode != "RGB" or not 0 < picture.width * picture.height <= MAX_PIXELS:
            raise Unclear(f"decoded to {picture.mode}, {picture.size}")
        return None


class Weights(Target):
    """Weights files: read without running what is in them."""

    name = "weights"

    @cached_property
    def seeds(self) -> list[bytes]:
        """A TorchScript archive, as OpenAI published its models."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4)).eval()
            return [made(lambda path: torch.jit.trace(layer, torch.zeros(2, 6)).save(str(path)), ".pt")]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read the tensors."""
        from clip_tca.encoding.torchscript import is_torchscript, read_torchscript

        path = folder / "case.pt"
        path.write_bytes(damaged(self.seeds[0], rng, self.seeds))
        if not is_torchscript(path):
            return False
        read_torchscript(path)
        return None


class Store(Target):
    """Shards and entries of the embedding store: what is damaged counts as missing."""

    name, names = "store", ()

    @cached_property
    def seeds(self) -> list[bytes]:
        """A shard and an entry."""
        import torch

        from clip_tca.encoding.store import _write

        shard = made(lambda path: _write(path, torch.from_numpy(Z)), ".safetensors")
        return [shard, json.dumps({"title": "x", "images": 53, "model": "demo"}).encode()]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read and list."""
        from clip_tca.cli import cache
        from clip_tca.encoding.store import Entry

        place = folder / "embeddings" / ("0" * 32)
        place.mkdir(parents=True)
        (place / "00000.safetensors").write_bytes(damaged(self.seeds[0], rng, self.seeds))
        entry = damaged(self.seeds[1], rng, self.seeds)
        junk = json.dumps({"images": rng.choice(JUNK), "title": rng.choice(JUNK)}).encode()
        (place / "entry.json").write_bytes(entry if rng.random() < 0.5 else junk)
        rows = Entry(place, 53, {}).read(0)
        if rows is not None and not np.array_equal(rows.numpy(), Z):
            raise Unclear("a damaged shard was taken for a whole one")
        os.environ["CLIP_TCA_CACHE"] = str(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            cache.show(Namespace())
        return rows is not None
