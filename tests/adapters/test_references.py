"""The adapters predict what the methods in plain code predict (``references/``), on made-up and on real embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier, load_embeddings
from tests.adapters.references import conditional, linear
from tests.conftest import DATA

EVEN = [60] * 4
CASES = {
    "few classes": {"counts": EVEN},
    "many classes": {"counts": [15] * 60, "dim": 32},
    "more classes than dimensions": {"counts": [20] * 30, "dim": 8},
    "fewer images than dimensions": {"counts": [10] * 4, "dim": 96},
    "fewer than 8 images a class": {"counts": [3] * 40, "dim": 48},
    "fewer than 8 images": {"counts": [2, 2, 2]},
    "unequal classes": {"counts": [300, 120, 50, 20, 8, 3], "dim": 32},
    "absent classes": {"counts": [100, 100, 0, 0, 0, 0], "dim": 32},
    "one class": {"counts": [0, 120, 0], "dim": 24},
    "an over-confident head": {"counts": EVEN, "scale": 600.0, "head": True},
    "a head with a bias": {"counts": EVEN, "head": True, "bias": 4.0},
    "a head that is hardly sure": {"counts": EVEN, "scale": 5.0, "head": True, "bias": 0.3},
    "given shares": {"counts": [90, 60, 30, 10], "shares": [0.5, 0.3, 0.15, 0.05]},
    "given shares, one of them zero": {"counts": [90, 60, 30, 0], "shares": [3, 2, 1, 0]},
    "classes that lie apart": {"counts": EVEN, "noise": 0.05, "shift": 0.3},
    "noise": {"counts": EVEN, "noise": 1.0},
}


def made(
    counts: list[int],
    dim: int = 24,
    scale: float = 30.0,
    noise: float = 0.15,
    shift: float = 1.0,
    head: bool = False,
    bias: float = 0.0,
    seed: int = 0,
) -> tuple[LinearClassifier, Tensor]:
    """A classifier, and images of each class around its weight, all moved in one direction, some further."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    text = functional.normalize(drawn(len(counts), dim) + drawn(1, dim), dim=1)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=generator)]
    moved = shift * torch.rand(len(y), 1, generator=generator, dtype=torch.float64)
    z = text[y] + noise * drawn(len(y), dim) + moved * functional.normalize(drawn(1, dim), dim=1)
    if head:
        return LinearClassifier(scale * text, bias * drawn(len(counts))), 1.5 * z + 0.1
    return ZeroShotClassifier(text, scale), functional.normalize(z, dim=1)


def compare(g: LinearClassifier, z: Tensor, shares: list[float] | None = None) -> None:
    """Both adapters on ``z`` in its own dtype, the references in float64."""
    rows, given = g.prepared(z).double(), None if shares is None else torch.tensor(shares)
    options = {} if shares is None else {"shares": shares}
    weight, bias = conditional.fit(rows, g, given)
    w, offset = linear.fit(rows, g, shares=given)
    expected = {ConditionalTCA: rows @ weight.T + bias, LinearTCA: g.logits(rows @ w + offset)}
    for kind, logits in expected.items():
        adapted = kind(g, **options).fit(z)
        same = (adapted.predict(z) == logits.argmax(dim=1)).double().mean()
        assert float(same) >= 0.999, kind.__name__
        span = float(logits.max() - logits.min())
        torch.testing.assert_close(adapted.logits(z).double(), logits, rtol=0, atol=1e-3 * span)


@pytest.mark.parametrize("name", CASES)
def test_made_up_cases(name):
    case = dict(CASES[name])
    shares = case.pop("shares", None)
    for seed in range(2):
        compare(*made(**case, seed=seed), shares)


@pytest.mark.parametrize("seed", range(24))
def test_cases_drawn_at_random(seed):
    generator = torch.Generator().manual_seed(seed)

    def drawn(low: float, high: float) -> float:
        return float(low + (high - low) * torch.rand((), generator=generator))

    classes, fall = int(drawn(2, 20)), drawn(0.6, 1.0)
    counts = [max(1, int(drawn(20, 150) * fall**c)) for c in range(classes)]
    head = seed % 3 == 0
    scale, bias = drawn(5, 100), drawn(0, 3) * head
    g, z = made(counts, int(drawn(2, 64)), scale, drawn(0.05, 0.5), drawn(0, 2), head, bias, seed)
    compare(g, z, counts if seed % 4 == 0 else None)


def test_more_images_than_classes_are_counted_on():
    """Above 10,000 images LinearTCA counts on an evenly spread sample; ConditionalTCA sees 8,192 in any case."""
    g, z = made([4000, 3000, 2000, 1000, 500], dim=16)
    w, offset = linear.fit(z, g)
    assert len(z) > 10_000
    adapted = LinearTCA(g).fit(z)
    torch.testing.assert_close(adapted.W_, w, rtol=0, atol=1e-6)
    torch.testing.assert_close(adapted.offset_, offset, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("file", "domain"),
    [
        ("embeddings/pacs.safetensors", "art_painting"),
        ("embeddings/pacs.safetensors", "cartoon"),
        ("embeddings/pacs.safetensors", "photo"),
        ("embeddings/pacs.safetensors", "sketch"),
        ("embeddings/pacs_demo.safetensors", "cartoon"),
        ("embeddings/officehome.safetensors", "Art"),
        ("embeddings/vlcs.safetensors", "Caltech101"),
        ("embeddings/vlcs.safetensors", "VOC2007"),
        ("clip/dtd_proto.safetensors", "all"),
        ("clip/pets24.safetensors", "all"),
        ("resnet18/pacs_resnet18_sketch.safetensors", "target"),
    ],
)
def test_real_embeddings(file, domain):
    if not (DATA / file).is_file():
        pytest.skip(f"{file} is not beside the project")
    data = load_embeddings(DATA / file)
    compare(data.classifier(), data.domains[domain][0])
