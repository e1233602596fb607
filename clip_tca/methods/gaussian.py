"""Gaussians of classes with one covariance, as a linear classifier: what OGA and DOTA share."""

from __future__ import annotations

from torch import Tensor


def discriminant(means: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Weights ``(classes, d)`` and bias ``(classes,)`` of log N(z; μ_c, Σ), without what all classes share."""
    weights = means @ precision
    return weights, -(weights * means).sum(dim=1) / 2
