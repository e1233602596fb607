"""Scores that studies share: accuracy, mean and deviation, rank correlation, R²; and a seeded order of images."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

from clip_tca.evaluation.protocols import order


def shuffled(images: int, seed: int, device: torch.device) -> Tensor:
    """All images in a seeded order."""
    return order(images, "full", 1, seed).to(device)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of correct predictions."""
    return 100 * int((predicted == labels).sum()) / len(labels)


def spread(values: list[float]) -> dict[str, float]:
    """Mean and population standard deviation."""
    return {"mean": fmean(values), "std": pstdev(values)}


def ranks(values: Sequence[float]) -> Tensor:
    """Ranks ``(n,)`` from 1; ties get their mean rank."""
    x = torch.tensor(values, dtype=torch.float64)
    below, equal = (x[None] < x[:, None]).sum(dim=1), (x[None] == x[:, None]).sum(dim=1)
    return below + (equal + 1) / 2


def pearson(x: Tensor, y: Tensor) -> float | None:
    """Pearson's coefficient; None if one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = float(torch.linalg.vector_norm(x) * torch.linalg.vector_norm(y))
    return float(x @ y) / size if size > 0 else None


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None if one of them is constant."""
    return pearson(ranks(x), ranks(y))


def signed(coefficient: float | None) -> str:
    """A correlation as text."""
    return "undefined" if coefficient is None else f"{coefficient:+.2f}"


def r_squared(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Share of the variance of ``y`` that a linear fit in ``x`` explains; None if one of them is constant."""
    coefficient = pearson(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    return None if coefficient is None else coefficient**2
