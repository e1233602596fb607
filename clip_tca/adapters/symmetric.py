"""Symmetric matrices: products of which half is enough, and eigenvectors without threads that wait for each other."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 96
"""Columns of a product computed together: few enough to leave out nearly half, enough to be fast."""

ONE_THREAD = 1024
"""Dimensions up to which eigenvectors are found on one thread."""


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb ``(d, d)`` where it is known to be symmetric: the upper half is computed, the lower one is its mirror."""
    product = a.new_empty(a.shape[1], b.shape[1])
    for start in range(0, len(product), BLOCK):
        end = start + BLOCK
        torch.mm(a[:, start:end].T, b[:, start:], out=product[start:end, start:])
        product[end:, start:end] = product[start:end, end:].T
    return product


def eigh(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``(d,)``, ascending, and eigenvectors ``(d, d)`` of a symmetric matrix.

    LAPACK's threads wait for each other, and where another process has one of their cores, for it: what takes 40 ms on
    one thread at d = 512 took up to 7 s on two threads of a busy machine (benchmarks/README.md).
    """
    threads = torch.get_num_threads()
    alone = sigma.device.type == "cpu" and len(sigma) <= ONE_THREAD and threads > 1
    try:
        if alone:
            torch.set_num_threads(1)
        values, vectors = torch.linalg.eigh(sigma)
    finally:
        if alone:
            torch.set_num_threads(threads)
    return values, vectors
