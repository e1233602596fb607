"""Scores that studies share: accuracy, mean and deviation, and a seeded order of images."""

from __future__ import annotations

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
