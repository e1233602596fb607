"""How closely two measurements go together: Spearman's coefficient, and R² of a straight line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ranks(values: Sequence[float]) -> Tensor:
    """Ranks ``(n,)`` from 1; equal values share the mean of theirs."""
    x = torch.tensor(values, dtype=torch.float64)
    below, equal = (x[None] < x[:, None]).sum(dim=1), (x[None] == x[:, None]).sum(dim=1)
    return below + (equal + 1) / 2


def pearson(x: Tensor, y: Tensor) -> float | None:
    """Pearson's coefficient; None where one of them does not change."""
    x, y = x - x.mean(), y - y.mean()
    size = float(torch.linalg.vector_norm(x) * torch.linalg.vector_norm(y))
    return float(x @ y) / size if size > 0 else None


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None where one of them does not change."""
    return pearson(ranks(x), ranks(y))


def r_squared(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Share of the variance of ``y`` that a straight line in ``x`` explains; None where one does not change."""
    line = pearson(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    return None if line is None else line**2
