"""Our own safetensors files: saved adapters, and embeddings with labels."""

from __future__ import annotations

import json
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.robustness.fuzzing.damage import damaged, damaged_json
from tests.robustness.fuzzing.target import Target, command, content


class Sets(Target):
    """Embeddings with labels."""

    name = "embedding set"

    @cached_property
    def seeds(self) -> list[bytes]:
        """As ``clip-tca embed --output`` writes them."""
        from clip_tca.datasets.synthetic import synthetic

        return [content(lambda path: synthetic(0, 4, 8, 20).save(path), ".safetensors")]

    def cases(self) -> SearchStrategy[Any]:
        return damaged(self.seeds) | altered(self.seeds)

    def run(self, case: bytes, folder: Path) -> bool | None:
        """Evaluate it."""
        (folder / "case.safetensors").write_bytes(case)
        methods = ["--method", "zero-shot", "--method", "linear-tca"]
        return command(["eval", "--dataset", "case.safetensors", *methods], self.names)


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
        adapters = (
            LinearTCA(self.g),
            LinearTCA(self.g, shares="global"),
            MLPTCA(self.g, steps=2),
            ConditionalTCA(self.g),
        )
        return [(type(adapter), content(adapter.fit(self.z).save, ".safetensors")) for adapter in adapters]

    def cases(self) -> SearchStrategy[Any]:
        contents = [data for _, data in self.seeds]
        kinds = st.sampled_from([kind for kind, _ in self.seeds])
        uses = st.sampled_from(("load", "explain", "out.onnx", "out.safetensors"))
        return st.tuples(kinds, damaged(contents) | altered(contents) | altered(contents), uses)

    def run(self, case: Any, folder: Path) -> bool | None:
        """Load it and continue with it, explain it, or export it."""
        kind, data, use = case
        path = folder / "case.safetensors"
        path.write_bytes(data)
        if use == "explain":
            return command(["explain", path.name], self.names)
        if use != "load":
            return command(["export", path.name, "-o", use], self.names)
        adapter = kind.load(path)
        adapter.predict(self.z)
        adapter.partial_fit(self.z[:30]).transform(self.z)
        return None


@st.composite
def altered(draw: DrawFn, contents: list[bytes]) -> bytes:
    """A whole safetensors file with tensors and metadata lost, replaced or renamed."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(draw(st.sampled_from(contents)))
        with safe_open(file.name, "pt") as source:
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118 (not a dict)
            metadata = dict(source.metadata() or {})
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        name = draw(st.sampled_from(sorted(tensors)))
        old, kind = tensors[name], draw(st.integers(0, 8))
        if kind == 0 and len(tensors) > 1:
            del tensors[name]
        elif kind == 1:
            tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))].clone()
        elif kind == 2:
            shape = draw(st.lists(st.sampled_from((0, 1, 2, 5, 8)), max_size=3))
            tensors[name] = torch.zeros(shape).to(old.dtype)
        elif kind == 3:
            kinds = (torch.float16, torch.int64, torch.uint8, torch.bool, torch.float64)
            tensors[name] = old.to(draw(st.sampled_from(kinds)))
        elif kind == 4 and old.is_floating_point() and old.numel():
            tensors[name] = old.clone()
            number = draw(st.sampled_from((float("nan"), float("inf"), 1e30, -1e-30)))
            tensors[name].view(-1)[draw(st.integers(0, old.numel() - 1))] = number
        elif kind == 5 and not old.is_floating_point():
            tensors[name] = old + draw(st.sampled_from((-1, 1, 10**6, -(1 << 40))))
        elif kind == 6 and old.ndim:
            tensors[name] = old[: max(0, len(old) - 1)].clone()
        elif kind == 7:
            tensors[draw(st.sampled_from(("x", "a.embeddings", "<script>.embeddings")))] = tensors.pop(name)
        elif metadata:
            key = draw(st.sampled_from(sorted(metadata)))
            try:
                metadata[key] = json.dumps(draw(damaged_json([json.loads(metadata[key])])))
            except ValueError:
                metadata[key] = draw(st.sampled_from(("nan", "-1", "0", "1e400", "x", "")))
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))
