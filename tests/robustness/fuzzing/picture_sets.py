"""Data sets and heads in one file: corruptions as arrays, pictures in Parquet as the demo's are, linear heads."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.robustness.fuzzing.damage import damaged
from tests.robustness.fuzzing.embeddings import Z, npy
from tests.robustness.fuzzing.target import Target, command, content


class Corruptions(Target):
    """The ``.npy`` files of CIFAR-10-C: pictures or labels."""

    name, names = "corruption files", ("fog", "labels", "case")

    @cached_property
    def seeds(self) -> dict[str, bytes]:
        pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
        return {
            "fog.npy": content(lambda path: np.save(path, pixels), ".npy"),
            "labels.npy": content(lambda path: np.save(path, np.arange(20) % 4), ".npy"),
        }

    def cases(self) -> SearchStrategy[Any]:
        return st.sampled_from(sorted(self.seeds)).flatmap(
            lambda name: st.tuples(st.just(name), damaged([self.seeds[name]]) | npy())
        )

    def run(self, case: Any, folder: Path) -> bool | None:
        """Read the pictures, and the first of them."""
        from clip_tca.datasets.image_source import ImageSource

        name, data = case
        for other, seed in self.seeds.items():
            (folder / other).write_bytes(data if other == name else seed)
        loaded = ImageSource("cifar10-c", data_dir=folder, corruptions=["fog"]).load()
        for domain in loaded.domains.values():
            domain.image(0)
        return None


class Pictures(Target):
    """A Parquet file with encoded pictures, labels and domains."""

    name, names = "parquet pictures", ("case", "label", "domain", "image", "class")

    @cached_property
    def seeds(self) -> list[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from PIL import Image

        def picture(shade: int) -> bytes:
            file = io.BytesIO()
            Image.new("RGB", (16, 16), (shade, 99, 255 - shade)).save(file, "PNG")
            return file.getvalue()

        rows = [
            {"image": {"bytes": picture(9 * i), "path": None}, "label": ("cat", "dog")[i % 2], "domain": "ab"[i // 8]}
            for i in range(16)
        ]
        table = pa.Table.from_pylist(rows)
        return [content(lambda path, how=how: pq.write_table(table, path, compression=how), ".parquet")
                for how in ("zstd", "none")]  # fmt: skip

    def cases(self) -> SearchStrategy[Any]:
        return damaged(self.seeds)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Read the pictures, and one of each domain."""
        from clip_tca.datasets.image_source import ImageSource

        (folder / "case.parquet").write_bytes(case)
        for domain in ImageSource("folder", hub_id=str(folder / "case.parquet")).load().domains.values():
            with suppress(ValueError):  # a damaged picture is reported with its place by what decodes it
                domain.image(0)
        return None


class Heads(Target):
    """Safetensors files with the weight and bias of a linear head."""

    name = "heads"

    @cached_property
    def seeds(self) -> list[bytes]:
        from safetensors.numpy import save_file

        head = {"weight": Z[:4], "bias": np.zeros(4, dtype=np.float32)}
        return [
            content(lambda path: save_file(head, path), ".safetensors"),
            content(lambda path: save_file({"weight": Z[:4].astype(np.float16)}, path), ".safetensors"),
        ]

    def cases(self) -> SearchStrategy[Any]:
        return damaged(self.seeds)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Adapt features with the head."""
        (folder / "case.safetensors").write_bytes(case)
        (folder / "z.npy").write_bytes(content(lambda path: np.save(path, Z), ".npy"))
        words = ["adapt", "z.npy", "--head", "case.safetensors", "--write", "labels", "-o", "out.npy"]
        return command(words, ("case", "head", "dimension", "classes"))
