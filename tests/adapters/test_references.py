"""The adapters predict what the methods in plain code predict (``references/``), on made-up and on real embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier, load_embeddings
from clip_tca.adapters.conditional import fit_conditional
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
    w, offset = linear.fit(rows, g, shares=given)
    same_as(ConditionalTCA(g, **options).fit(z).logits(z), conditional.fit(rows, g, given))
    same_as(LinearTCA(g, **options).fit(z).logits(z), g.logits(rows @ w + offset))


def same_as(logits: Tensor, plain: Tensor) -> None:
    """Up to rounding, and to what the softmax ignores."""
    assert float((logits.argmax(dim=1) == plain.argmax(dim=1)).double().mean()) >= 0.999
    logits, plain = (x.double() - x.double().mean(dim=1, keepdim=True) for x in (logits, plain))
    torch.testing.assert_close(logits, plain, rtol=0, atol=2e-3 * float(plain.max() - plain.min()))


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


SETS = [
    ("embeddings/pacs", "art_painting"),
    ("embeddings/pacs", "cartoon"),
    ("embeddings/pacs", "photo"),
    ("embeddings/pacs", "sketch"),
    ("embeddings/pacs_demo", "cartoon"),
    ("embeddings/officehome", "Art"),
    ("embeddings/officehome_demo", "Real World"),
    ("embeddings/vlcs", "Caltech101"),
    ("embeddings/vlcs", "VOC2007"),
    ("clip/dtd_proto", "all"),
    ("clip/pets24", "all"),
    ("clip/whurs19_openai_vitb32", "all"),
    ("resnet18/pacs_resnet18_sketch", "target"),
]


def load(file: str, domain: str) -> tuple[LinearClassifier, Tensor, Tensor]:
    """The classifier, the embeddings and the labels of a domain beside the project; skips where it is not there."""
    path = DATA / f"{file}.safetensors"
    if not path.is_file():
        pytest.skip(f"{file} is not beside the project")
    data = load_embeddings(path)
    return data.classifier(), *data.domains[domain]


@pytest.mark.parametrize(("file", "domain"), SETS)
def test_real_embeddings(file, domain):
    g, z, _ = load(file, domain)
    compare(g, z)


@pytest.mark.parametrize("rows", ["whole", "few"])
@pytest.mark.parametrize(
    ("scored", "seen", "domain"), [("pacs_demo", "pacs", "cartoon"), ("pacs", "pacs_demo", "sketch")]
)
def test_scores_of_one_encoder_and_rows_of_another(scored, seen, domain, rows):
    (g, own, y), (_, z, _) = load(f"embeddings/{scored}", domain), load(f"embeddings/{seen}", domain)
    keep = slice(None) if rows == "whole" else (y < 3).nonzero()[:200, 0]
    logits, z = g.logits(g.prepared(own.float()))[keep], functional.normalize(z.double(), dim=1)[keep]
    fitted = ConditionalTCA().fit(z, logits=logits)
    same_as(fitted.logits(z, logits=logits), conditional.scores(z, logits, own_space=False))


@pytest.mark.parametrize("own_space", [True, False])
def test_answers(own_space):
    """Forty rows that a person has named, in the space of g and in another's: the same scores as in plain code."""
    g, z = made([80] * 6, dim=32, noise=0.3)
    y = torch.arange(6).repeat_interleave(80)[torch.randperm(480, generator=torch.Generator().manual_seed(0))]
    answers = torch.where(torch.arange(480) % 12 == 0, y, -1)
    log_p = g.log_probabilities(z)
    f = fit_conditional(z, log_p, own_space=own_space, answers=answers)
    same_as(f.anchor * log_p + z @ f.weight.T + f.bias, conditional.scores(z, log_p, None, answers, own_space))
    none = fit_conditional(z, log_p, own_space=own_space, answers=torch.full_like(y, -1))
    assert torch.equal(none.weight, fit_conditional(z, log_p, own_space=own_space).weight)
