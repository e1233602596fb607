"""Our own safetensors files: saved adapters, and embeddings with labels."""

from __future__ import annotations

import json
import random
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.mutations import damaged, damaged_json
from benchmarks.fuzzing.target import Target, made


class Sets(Target):
    """Our own files of embeddings with labels."""

    name = "embedding set"

    @cached_property
    def seeds(self) -> list[bytes]:
        """As ``embed --output`` writes them."""
        from clip_tca.datasets.synthetic import synthetic

        return [made(lambda path: synthetic(0, 4, 8, 20).save(path), ".safetensors")]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Load, and evaluate what could be loaded."""
        import clip_tca

        data = damaged(self.seeds[0], rng, self.seeds)
        path = folder / "case.safetensors"
        path.write_bytes(data if rng.random() < 0.5 else _shuffled(self.seeds[0], rng))
        clip_tca.evaluate(str(path), methods=["zero-shot", "linear-tca"])
        return None


class States(Target):
    """Saved adapters."""

    name, share = "states", 3.0

    @cached_property
    def seeds(self) -> list[tuple[Any, bytes]]:
        """Of every class of adapter."""
        from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
        from clip_tca.datasets.synthetic import synthetic

        data = synthetic(0, 4, 8, 20)
        self.g = ZeroShotClassifier(data.text, data.scale)
        self.z = data.domains["shifted"][0]
        kinds = (
            LinearTCA(self.g),
            LinearTCA(self.g, balance="global"),
            MLPTCA(self.g, steps=2),
            ConditionalTCA(self.g),
        )
        return [(type(kind), made(kind.fit(self.z).save, ".safetensors")) for kind in kinds]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Load and go on with it, explain it, or export it."""
        from argparse import Namespace

        from clip_tca.adapters.head_export import export, load_head
        from clip_tca.cli import explain

        path = folder / "case.safetensors"
        kind, data = rng.choice(self.seeds)
        whole = [data for _, data in self.seeds]
        path.write_bytes(damaged(data, rng, whole) if rng.random() < 0.4 else _shuffled(data, rng))
        way = rng.randrange(3)
        if way == 0:
            adapter = kind.load(path, self.g)
            adapter.predict(self.z)
            adapter.partial_fit(self.z[:30]).transform(self.z)
        elif way == 1:
            explain._state(path, Namespace(class_names=None))
        else:
            export(load_head(path), folder / rng.choice(("out.onnx", "out.safetensors")))
        return None


def _shuffled(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with tensors and metadata lost, replaced or renamed."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(data)
        with safe_open(file.name, "pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a dict)
            metadata = dict(content.metadata() or {})
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(tensors))
        old, kind = tensors[name], rng.randrange(9)
        if kind == 0:
            del tensors[name]
        elif kind == 1:
            tensors[name] = tensors[rng.choice(sorted(tensors))].clone()
        elif kind == 2:
            tensors[name] = torch.zeros([rng.choice((0, 1, 2, 5, 8)) for _ in range(rng.randrange(4))]).to(old.dtype)
        elif kind == 3:
            tensors[name] = old.to(rng.choice((torch.float16, torch.int64, torch.uint8, torch.bool, torch.float64)))
        elif kind == 4 and old.is_floating_point() and old.numel():
            tensors[name] = old.clone()
            tensors[name].view(-1)[rng.randrange(old.numel())] = rng.choice((float("nan"), float("inf"), 1e30, -1e-30))
        elif kind == 5 and not old.is_floating_point():
            tensors[name] = old + rng.choice((-1, 1, 10**6, -(1 << 40)))
        elif kind == 6 and old.ndim:
            tensors[name] = old[: max(0, len(old) - 1)].clone()
        elif kind == 7:
            tensors[rng.choice(("x", "a.embeddings", "<script>.embeddings"))] = tensors.pop(name)
        elif metadata:
            key = rng.choice(sorted(metadata))
            try:
                metadata[key] = json.dumps(damaged_json(json.loads(metadata[key]), rng))
            except ValueError:
                metadata[key] = rng.choice(("nan", "-1", "0", "1e400", "x", ""))
        if not tensors:
            break
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))
