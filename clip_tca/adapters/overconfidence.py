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

import torch
from torch import Tensor

from clip_tca.core.tensors import CHUNK, exact

POWER = 3
TWICE = 2.0
LARGEST = 1e4
"""The largest t that is looked for."""


def nearest(y: Tensor, count: int) -> Tensor:
    """Indices ``(n, k)`` of the ``count`` nearest other rows of each row of ``y`` ``(n, r)``, the nearest first."""
    squares, found = y.square().sum(dim=1), []
    for start in range(0, len(y), CHUNK):
        distance = torch.addmm(squares, y[start : start + CHUNK], y.T, alpha=-2)
        distance.diagonal(start).fill_(float("inf"))
        found.append(distance.topk(min(count, len(y) - 1), largest=False).indices)
    return torch.cat(found)


def temperature(log_g: Tensor, neighbour: Tensor) -> Tensor:
    """t ``()`` from log-probabilities ``log_g`` ``(n, c)`` of rows and the indices ``(n,)`` of their neighbours.

    By bisection: the logits that p expects fall as t grows.
    """
    logits = exact(log_g)
    wanted = (logits.exp()[neighbour] * logits).sum()
    low, high = torch.zeros_like(wanted), torch.full_like(wanted, math.log(LARGEST))
    for _ in range(32):
        middle = (low + high) / 2
        sure = ((logits / middle.exp()).softmax(dim=1) * logits).sum() > wanted
        low, high = torch.where(sure, middle, low), torch.where(sure, high, middle)
    return low.exp()
