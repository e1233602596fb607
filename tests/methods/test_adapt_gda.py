"""ADAPT: its predictions are those of its equations, written loop by loop."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.methods.adapt_gda import ADAPT
from clip_tca.methods.base import Task

STORED = load_file(Path(__file__).parent / "references" / "rivals.safetensors")
SCALE = 40.0
Z = torch.nn.functional.normalize(STORED["embeddings"].double(), dim=1)


def task(scale: float = SCALE) -> Task:
    return Task(ZeroShotClassifier(STORED["text"].double(), scale))


def predicted(method: ADAPT, z: Tensor, size: int) -> Tensor:
    return torch.cat([method(batch)[1].softmax(dim=1) for batch in z.split(size)])


def by_the_equations(texts: Tensor, z: Tensor, scale: float, shots: int, alpha: float) -> tuple[Tensor, list[int]]:
    """Equations 8 to 10, an image, a class and a banked image at a time; and how many each bank holds at the end."""
    c, d = texts.shape
    banks: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(c)]  # image and zero-shot probabilities
    found = []
    for x in z:
        y = torch.stack([scale * x @ t for t in texts]).softmax(dim=0)
        means = []
        for k in range(c):
            mean = texts[k]
            if banks[k]:
                total = sum(float(y_j[k]) for _, y_j in banks[k])
                mean = alpha * sum(float(y_j[k]) * x_j for x_j, y_j in banks[k]) / total + (1 - alpha) * texts[k]
            means.append(mean)
        n = sum(len(bank) for bank in banks)
        scores = y.clone()
        if n >= 2:
            sigma = torch.zeros(d, d).double()
            for k in range(c):
                for x_j, _ in banks[k]:
                    sigma += torch.outer(x_j - means[k], x_j - means[k]) / n
            precision = d * torch.linalg.inv((n - 1) * sigma + sigma.trace() * torch.eye(d).double())
            for k in range(c):
                likelihood = means[k] @ precision @ x - means[k] @ precision @ means[k] / 2
                neighbours = sum(float(x @ x_j) * float(y_j[k]) for x_j, y_j in banks[k])
                scores[k] = y[k].log() + likelihood + neighbours
            scores = scores.softmax(dim=0)
        found.append(scores)
        k = int(y.argmax())
        banks[k].append((x, y))
        if len(banks[k]) > shots:
            confidences = [float(y_j.max()) for _, y_j in banks[k]]
            # the newcomer goes if it is not above the lowest of the others
            lowest = min(confidences[:-1])
            banks[k].pop(confidences.index(lowest) if confidences[-1] > lowest else -1)
    return torch.stack(found), [len(bank) for bank in banks]


@pytest.mark.parametrize(("shots", "alpha"), [(16, 0.9), (3, 0.9), (4, 0.4)])
@pytest.mark.parametrize("size", [120, 50, 1])
def test_it_follows_its_equations_whatever_the_batches(shots: int, alpha: float, size: int) -> None:
    expected, held = by_the_equations(task().classifier.text, Z, SCALE, shots, alpha)  # type: ignore[attr-defined]
    method = ADAPT(task(), shots=shots, mean_weight=alpha)
    torch.testing.assert_close(predicted(method, Z, size), expected, atol=1e-8, rtol=0)
    assert [len(bank) for bank in method.banks_] == held
    assert (expected - task().classifier.predict_proba(Z)).abs().max() > 0.1


def test_two_images_by_hand() -> None:
    """Texts e₁ and e₂, α = 1/2; two images of the first class have joined when the third is predicted."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
    method = ADAPT(Task(ZeroShotClassifier(torch.eye(2).double(), 10.0)), mean_weight=0.5)
    logits = torch.cat([method(row[None])[1] for row in x])
    a, b = 1 / (1 + math.exp(-10)), 1 / (1 + math.exp(-2))  # ŷ of the first class, for the first two images
    middle = (a * x[0] + b * x[1]) / (a + b)
    mean = torch.stack([(middle + torch.tensor([1.0, 0.0])) / 2, torch.tensor([0.0, 1.0])])
    covariance = sum(torch.outer(row - mean[0], row - mean[0]) for row in x[:2]) / 2
    precision = 2 * torch.linalg.inv(covariance + covariance.trace() * torch.eye(2).double())
    gap = (mean[0] - mean[1]) @ precision @ (x[2] - (mean[0] + mean[1]) / 2)
    gap += a * 0.6 + b * 0.96  # the cosines with the two images of the bank
    assert float(logits[2, 0] - logits[2, 1]) == pytest.approx(-2 + float(gap), rel=1e-9)


def test_the_first_two_images_are_predicted_zero_shot_and_the_third_is_not() -> None:
    method = ADAPT(task())
    torch.testing.assert_close(method(Z[:2])[1].softmax(dim=1), task().classifier.predict_proba(Z[:2]))
    third = method(Z[2:3])[1].softmax(dim=1)
    assert (third - task().classifier.predict_proba(Z[2:3])).abs().max() > 1e-3


def test_a_bank_keeps_the_most_confident_and_of_equals_the_first() -> None:
    classifier = task().classifier
    method = ADAPT(task(), shots=3)
    method(Z)
    confidence, labels = classifier.predict_proba(Z).max(dim=1)
    for k, bank in enumerate(method.banks_):
        assert [p for p, _ in bank] == pytest.approx(confidence[labels == k].sort().values[-3:].tolist())
    equals = torch.tensor([[0.8, 0.0, 0.6], [0.8, 0.0, -0.6]], dtype=torch.float64)
    method = ADAPT(Task(ZeroShotClassifier(torch.eye(3).double()[:2])), shots=1)
    method(equals)
    assert torch.equal(method.banks_[0][0][1], equals[0])


def test_images_without_spread_leave_zero_shot() -> None:
    same = Z[:1].repeat(9, 1)
    expected = task().classifier.predict_proba(same)
    torch.testing.assert_close(ADAPT(task(), mean_weight=1.0)(same)[1].softmax(dim=1), expected)


def test_reset_empties_the_banks() -> None:
    method = ADAPT(task())
    first = method(Z)[1]
    assert not torch.equal(method(Z)[1], first)
    method.reset()
    assert torch.equal(method(Z)[1], first)


def test_a_head_s_classes_start_at_the_directions_of_their_weights() -> None:
    weight = STORED["text"].double()
    head = ADAPT(Task(LinearClassifier(SCALE * weight / weight.norm(dim=1, keepdim=True))))
    torch.testing.assert_close(predicted(head, Z, 50), predicted(ADAPT(task()), Z, 50), atol=1e-6, rtol=0)
