"""The graph of nearest neighbours over which transductive methods pass class assignments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 1024
"""Rows compared with all others at a time."""


def nearest(z: Tensor, others: Tensor, k: int, *, itself: bool = True) -> tuple[Tensor, Tensor]:
    """Cosine ``(n, k)`` and index ``(n, k)`` of the ``k`` nearest of ``others`` for each row of ``z``, all unit rows.

    With ``itself=False`` the two are the same rows, and none is its own neighbour. Where there are fewer than ``k``,
    all of them.
    """
    k = min(k, len(others) - (not itself))
    found = []
    for start in range(0, len(z), ROWS_AT_ONCE):
        cosine = z[start : start + ROWS_AT_ONCE] @ others.T
        if not itself:
            cosine[:, start:].fill_diagonal_(-torch.inf)
        found.append(cosine.topk(k))
    return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])


@dataclass(frozen=True)
class Graph:
    """Edges from each of n nodes to k others: weights and targets ``(n, k)``; an edge counts in both directions."""

    weights: Tensor
    targets: Tensor

    @classmethod
    def of_images(cls, weights: Tensor, targets: Tensor, texts: int) -> Graph:
        """A graph whose first nodes are texts, which have edges only from images, given as ``(images, k)``."""
        none = weights.new_zeros(texts, weights.shape[1]), targets.new_zeros(texts, weights.shape[1])
        return cls(torch.cat([none[0], weights]), torch.cat([none[1], targets]))

    def degrees(self) -> Tensor:
        """The row sums of W + Wᵀ ``(n,)``."""
        return self.weights.sum(dim=1).index_add_(0, self.targets.flatten(), self.weights.flatten())

    def __matmul__(self, x: Tensor) -> Tensor:
        """(W + Wᵀ) x of values ``(n, classes)`` at the nodes."""
        along = (self.weights[..., None] * x[self.targets]).sum(dim=1)
        against = (self.weights[..., None] * x[:, None]).flatten(0, 1)
        return along.index_add_(0, self.targets.flatten(), against)
