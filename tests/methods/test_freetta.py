"""FreeTTA: its predictions are those of its equations, written loop by loop."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.freetta import FreeTTA

STORED = load_file(Path(__file__).parent / "references" / "rivals.safetensors")
SCALE = 40.0
Z = torch.nn.functional.normalize(STORED["embeddings"].double(), dim=1)


def task(scale: float = SCALE) -> Task:
    return Task(ZeroShotClassifier(STORED["text"].double(), scale))


def in_batches(method: FreeTTA, z: Tensor, size: int) -> Tensor:
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def by_the_equations(texts: Tensor, z: Tensor, scale: float, alpha: float, beta: float, scaled: bool) -> Tensor:
    """Equations 8 and 11 to 13, an image and a class at a time."""
    c, d = texts.shape
    length = math.sqrt(scale) if scaled else 1.0
    means = [length * t for t in texts]
    counts, n, sigma, found = [1 / c] * c, 1.0, torch.eye(d).double(), []
    for row in z:
        x = length * row
        p = torch.stack([scale * row @ t for t in texts]).softmax(dim=0)
        w = math.exp(beta * sum(float(q * q.log()) for q in p))
        precision = torch.linalg.inv(sigma)
        log_joint = [math.log(counts[y] / n) - float((x - means[y]) @ precision @ (x - means[y])) / 2 for y in range(c)]
        gamma = torch.tensor(log_joint, dtype=torch.float64).softmax(dim=0)
        for y in range(c):
            means[y] = (counts[y] * means[y] + w * gamma[y] * x) / (counts[y] + w * gamma[y])
        spread = sum(gamma[y] * torch.outer(x - means[y], x - means[y]) for y in range(c))
        sigma = (n * sigma + w * spread) / (n + w)
        counts, n = [counts[y] + w * float(gamma[y]) for y in range(c)], n + w
        precision = torch.linalg.inv(sigma)
        gaussian = [means[y] @ precision @ (x - means[y] / 2) + math.log(counts[y] / n) for y in range(c)]
        found.append(torch.stack([scale * row @ texts[y] + alpha * gaussian[y] for y in range(c)]))
    return torch.stack(found)


@pytest.mark.parametrize(
    ("alpha", "beta", "scaled"), [(0.2, 4.5, True), (1.0, 0.0, True), (0.05, 1.0, True), (20.0, 0.5, False)]
)
@pytest.mark.parametrize("size", [120, 50, 1])
def test_it_follows_its_equations_whatever_the_batches(alpha: float, beta: float, scaled: bool, size: int) -> None:
    expected = by_the_equations(task().classifier.text, Z, SCALE, alpha, beta, scaled)  # type: ignore[attr-defined]
    found = in_batches(FreeTTA(task(), gaussian_weight=alpha, certainty=beta, scaled=scaled), Z, size)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-9)
    assert (found.softmax(dim=1) - task().classifier.predict_proba(Z)).abs().max() > 0.05


def test_one_image_by_hand() -> None:
    """Texts e₁ and e₂ and the image e₁, at scale 4: features have length 2."""
    method = FreeTTA(Task(ZeroShotClassifier(torch.eye(2).double(), 4.0)), gaussian_weight=0.5, certainty=1.0)
    logits = method(torch.tensor([[1.0, 0.0]]).double())[1][0]
    p = 1 / (1 + math.exp(-4))  # both the zero-shot probability and the posterior of the first class
    w = math.exp(p * math.log(p) + (1 - p) * math.log(1 - p))
    a = w * (1 - p) / (0.5 + w * (1 - p))  # how far the second mean goes from (0, 2) to (2, 0)
    mean = torch.tensor([[2.0, 0.0], [2 * a, 2 - 2 * a]], dtype=torch.float64)
    away = (torch.tensor([2.0, 0.0]) - mean[1]).double()
    sigma = (torch.eye(2).double() + w * (1 - p) * torch.outer(away, away)) / (1 + w)
    precision = torch.linalg.inv(sigma)
    prior = torch.tensor([0.5 + w * p, 0.5 + w * (1 - p)], dtype=torch.float64) / (1 + w)
    torch.testing.assert_close(method.means_, mean)
    torch.testing.assert_close(method.covariance_, sigma)
    torch.testing.assert_close(method.counts_ / method.total_, prior)
    x = torch.tensor([2.0, 0.0]).double()
    gaussian = mean @ precision @ x - (mean @ precision * mean).sum(dim=1) / 2 + prior.log()
    torch.testing.assert_close(logits, torch.tensor([4.0, 0.0]).double() + 0.5 * gaussian)


def test_posteriors_start_as_the_zero_shot_probabilities() -> None:
    start = FreeTTA(task(), gaussian_weight=1.0).predict(Z)[1] - task().classifier.logits(Z)
    torch.testing.assert_close(start.softmax(dim=1), task().classifier.predict_proba(Z))


def test_uncertain_images_count_little() -> None:
    strict, even = FreeTTA(task(), certainty=1e4), FreeTTA(task(), certainty=0.0)
    strict(Z), even(Z)
    assert even.total_ == pytest.approx(1 + len(Z))
    assert 1 <= strict.total_ < 1 + len(Z) / 2
    for method in (strict, even):
        assert float(method.counts_.sum()) == pytest.approx(method.total_)


def test_reset_forgets_all_images() -> None:
    method = FreeTTA(task())
    first = method(Z)[1]
    assert not torch.equal(method(Z)[1], first)
    method.reset()
    assert torch.equal(method(Z)[1], first)
