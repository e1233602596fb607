"""How much surer g is than it should be, told by neighbours: no label is needed.

An image and its nearest neighbour are mostly of one class. A g that is as sure as it is right says about the same of
both; one that is sure of everything, as a fine-tuned network is of a new domain, also where it errs, is contradicted by
its own opinion of the neighbour. Its temperature is the t ≥ 1 at which p(c | z) ∝ exp(l_c / t) predicts best, in
log-likelihood, what g says of the neighbour. There the derivative by 1/t is zero: the logits that p expects are those
that the neighbour's probabilities expect. On whole domains of CLIP-like embeddings t is not far from 1; t³ on the
features of a fine-tuned ResNet-18 is in docs/paper.md.

Neighbours share errors, so t says too little. ConditionalTCA starts from g at t³ (:data:`POWER`; 2, 3 and 4 are alike
on CLIP-like embeddings, and 3 is best on the features of ResNet-18). A g that is surer than twice what its neighbours
allow (:data:`TWICE`) would also outweigh everything else afterwards: it is cooled to twice for good, so that the unit
in which a head gives its logits hardly matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from clip_tca.core.tensors import exact, is_fake

POWER = 3
TWICE = 2.0
LARGEST = 1e4
"""The largest t that is looked for."""
CLOSE = 1e-6
"""How closely the logarithm of a temperature is looked for."""
MOST_STEPS = 48


NEAR = 512
"""Rows whose neighbours are looked for at a time."""


def nearest(y: Tensor, count: int) -> Tensor:
    """Indices ``(n, k)`` of the ``count`` nearest other rows of each row of ``y`` ``(n, r)``, the nearest first."""
    squares, found = y.square().sum(dim=1), []
    for start in range(0, len(y), NEAR):
        distance = torch.addmm(squares, y[start : start + NEAR], y.T, alpha=-2)
        distance.diagonal(start).fill_(float("inf"))
        found.append(distance.topk(min(count, len(y) - 1), largest=False).indices)
    return torch.cat(found)


def temperature(log_g: Tensor, neighbour: Tensor) -> Tensor:
    """t ``()`` from log-probabilities ``log_g`` ``(n, c)`` of rows and the indices ``(n,)`` of their neighbours.

    The logits that p expects fall as t grows.
    """
    parts = log_g.split(NEAR)

    def total(weights: Iterable[Tensor]) -> Tensor:
        return torch.stack([exact((p * part).sum()) for p, part in zip(weights, parts, strict=True)]).sum()

    wanted = total(log_g[near].exp() for near in neighbour.split(NEAR))

    def surplus(log_t: Tensor) -> Tensor:
        t = log_t.exp()
        return total((part / t).softmax(dim=1) for part in parts) - wanted

    return falls_to_zero(surplus, torch.zeros_like(wanted), torch.full_like(wanted, math.log(LARGEST))).exp()


def falls_to_zero(value: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a falling function is zero between ``low`` and ``high``; one of them where it is not zero between them.

    Chandrupatla's method: bisection, and inverse quadratic interpolation where three points lie as that needs them.
    """
    a, at_a, b, at_b = high, value(high), low, value(low)
    outside, nearer = (at_b <= 0) | (at_a > 0), torch.where(at_b <= 0, low, high)
    part = torch.full_like(low, 0.5)
    for _ in range(MOST_STEPS):
        least = CLOSE / (b - a).abs().clamp_min(CLOSE)
        if not is_fake(low) and bool(outside | (least > 0.5) | (at_a == 0)):
            break
        new = a + torch.minimum(torch.maximum(part, least), 1 - least) * (b - a)
        at_new = value(new)
        same = (at_new > 0) == (at_a > 0)
        c, at_c = torch.where(same, a, b), torch.where(same, at_a, at_b)
        b, at_b = torch.where(same, b, a), torch.where(same, at_b, at_a)
        a, at_a = new, at_new
        x, y = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        curved = at_a * at_c / ((at_b - at_a) * (at_b - at_c))
        curved = curved + (c - a) / (b - a) * at_a * at_b / ((at_c - at_a) * (at_c - at_b))
        part = torch.where((y.square() < x) & ((1 - y).square() < 1 - x), curved, 0.5)
    return torch.where(outside, nearer, torch.where(at_a.abs() < at_b.abs(), a, b))
