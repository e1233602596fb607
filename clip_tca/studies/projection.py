"""Projection of embeddings to two dimensions by PCA, t-SNE or UMAP, and label placement in scatter plots."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters.statistics import moments

PROJECTIONS = ("pca", "tsne", "umap")

_PACKAGES = {"tsne": ("sklearn.manifold", "scikit-learn"), "umap": ("umap", "umap-learn")}
"""Module and package of the methods of other libraries."""


def imported(method: str) -> Any:
    """The module of a method; the error names its package if that is not installed."""
    module, package = _PACKAGES[method]
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"method: {method!r} needs {package}: pip install {package} (or take method pca, which needs nothing)"
        ) from None


def rounded(x: Tensor) -> list[list[float]]:
    """Coordinates for a record: with four decimals, which are enough for a figure."""
    return [[round(value, 4) for value in row] for row in x.tolist()]


def principal_axes(z: Tensor) -> tuple[Tensor, Tensor, float]:
    """Centre ``(d,)`` and two principal axes ``(d, 2)`` of the rows of ``z``, and their share of the variance.

    The sign of an axis is arbitrary; its largest component is made positive, so that rounding can't mirror a figure.
    """
    m = moments(z)
    values, vectors = torch.linalg.eigh(m.covariance)
    axes = vectors[:, -2:].flip(1)
    axes = axes * axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)).sign()
    return m.mean, axes, float(values[-2:].sum() / values.sum().clamp_min(torch.finfo(values.dtype).tiny))


def neighbours(z: Tensor, method: str, seed: int) -> Tensor:
    """Coordinates ``(n, 2)`` by t-SNE or UMAP, on the CPU. They preserve neighbours, not distances."""
    module, rows, near = imported(method), z.cpu().numpy(), max(1, min(30, (len(z) - 1) // 3))
    if method == "tsne":
        points = module.TSNE(perplexity=near, init="pca", random_state=seed).fit_transform(rows)
    else:
        points = module.UMAP(n_neighbors=max(2, near // 2), random_state=seed, n_jobs=1).fit_transform(rows)
    return torch.from_numpy(points).double()


def label_places(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    others: Sequence[tuple[float, float]] = (),
) -> list[tuple[float, float]]:
    """Centres of labels near their points that cover no other label and no point; all in fractions of a panel.

    Each label takes the first free place above, below or beside its point, then one farther away; without any free
    place, the first. A point is taken to be as wide and high as a line of text; ``others`` have no label.
    """
    taken = [(x, y, height) for x, y in (*points, *others)]
    placed: list[tuple[float, float]] = []
    for (px, py), width in zip(points, widths, strict=True):
        across = (width + height) / 2
        places = [
            (px + side * across * min(step, 3), py + up * height * step)
            for step in range(1, 2 * len(points) + 2)
            for side, up in _AROUND
        ]
        x, y = next((place for place in places if _free(*place, width, height, taken)), places[0])
        taken.append((x, y, width))
        placed.append((x, y))
    return placed


_AROUND = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))


def _free(x: float, y: float, width: float, height: float, taken: list[tuple[float, float, float]]) -> bool:
    """Whether a label is inside the panel and overlaps nothing."""
    inside = width / 2 <= x <= 1 - width / 2 and height / 2 <= y <= 1 - height / 2
    near = 1 - 1e-9  # touching is not overlapping
    return inside and all(
        abs(x - other) >= near * (width + wide) / 2 or abs(y - level) >= near * height for other, level, wide in taken
    )
