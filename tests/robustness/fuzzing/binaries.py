"""Pictures, weights, and the shards of the embedding store."""

from __future__ import annotations

import io
import json
import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.robustness.fuzzing.damage import damaged, values
from tests.robustness.fuzzing.target import Target, Unclear, command, content

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
        variants: list[tuple[Any, str, dict[str, Any]]] = [
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
        contents = []
        for image, form, options in variants:
            file = io.BytesIO()
            image.save(file, form, **options)
            contents.append(file.getvalue())
        return contents

    def cases(self) -> SearchStrategy[Any]:
        return st.tuples(damaged(self.seeds), st.booleans())

    def run(self, case: Any, folder: Path) -> bool | None:
        """What can be decoded is RGB of a sane size; what can't is refused with a reason."""
        from clip_tca.datasets.pictures import MAX_PIXELS, decode, fault, mark

        source, in_file = case
        if in_file:
            (folder / "case.img").write_bytes(source)
            source = folder / "case.img"
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
            return [content(lambda path: torch.jit.trace(layer, torch.zeros(2, 6)).save(str(path)), ".pt")]

    def cases(self) -> SearchStrategy[Any]:
        return damaged(self.seeds)

    def run(self, case: bytes, folder: Path) -> bool | None:
        """Read the tensors."""
        from clip_tca.encoding.torchscript import is_torchscript, read_torchscript

        path = folder / "case.pt"
        path.write_bytes(case)
        if not is_torchscript(path):
            return False
        read_torchscript(path)
        return None


class Shards(Target):
    """Shards and entries of the embedding store: what is damaged counts as missing."""

    name, names = "store", ()

    @cached_property
    def seeds(self) -> dict[str, bytes]:
        """The files of a store, by their paths in it."""
        import tempfile

        with tempfile.TemporaryDirectory() as root:
            self.write(Path(root))
            return {
                path.relative_to(root).as_posix(): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()
            }

    def entry(self, root: Path) -> Any:
        """The one entry of the store in ``root``."""
        from clip_tca.encoding.store import Store

        return Store(root).entry({"model": "demo"}, len(Z), {"title": "x"})

    def write(self, root: Path) -> None:
        """Make the store."""
        import torch

        self.entry(root).write(0, torch.from_numpy(Z))

    def cases(self) -> SearchStrategy[Any]:
        entry, shard = (
            [self.seeds[path] for path in self.seeds if path.endswith(kind)] for kind in (".json", "tensors")
        )
        odd = st.fixed_dictionaries({"images": values, "title": values}).map(lambda about: json.dumps(about).encode())
        return st.tuples(damaged(shard), damaged(entry) | odd)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Read and list."""
        shard, entry = case
        for name in self.seeds:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(entry if name.endswith(".json") else shard)
        rows = self.entry(folder).read(0)
        if rows is not None and not np.array_equal(rows.numpy(), Z):
            raise Unclear("a damaged shard was taken for a whole one")
        os.environ["CLIP_TCA_CACHE"] = str(folder)
        command(["cache", "list"], codes=(0,))
        return rows is not None
