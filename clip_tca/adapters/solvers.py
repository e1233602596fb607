"""The linear maps: W with WᵀΣ_tW = Σ̂_s, exactly or by a few gradient steps.

W is unique only up to a rotation, and accuracy depends on which one is taken. (The paper's printed closed form,
U_tΛ_t^{1/2}Û_sᵀΛ̂_s^{-1/2}, does not satisfy the equation.) Three that do:

* :func:`coral`: whitening and colouring, Σ_t^{-1/2} Σ̂_s^{1/2};
* :func:`monge`: Σ_t^{-1/2} (Σ_t^{1/2} Σ̂_s Σ_t^{1/2})^{1/2} Σ_t^{-1/2}, the one that moves embeddings least;
* :func:`gradient`: the paper's recommendation, early-stopped Adam from the identity; it approaches the equation only.

Where Σ_t has no variance (fewer rows than dimensions), the exact maps leave embeddings as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from clip_tca.adapters.symmetric import eigh, symmetric_product
from clip_tca.core.tensors import is_fake

Solver = Literal["gradient", "coral", "monge", "mean"]
SOLVERS: tuple[str, ...] = get_args(Solver)
"""What ``solver=`` takes; ``mean`` shifts and leaves the covariance as it is."""


def gradient(sigma_t: Tensor, sigma_s: Tensor, steps: int = 20, lr: float = 1e-3) -> Tensor:
    """``steps`` of Adam from the identity on ‖WᵀΣ_tW − Σ̂_s‖²_F, with its gradient 4 Σ_tW (WᵀΣ_tW − Σ̂_s).

    Adam's own defaults (0.9, 0.999, 1e-8). No autograd: two and a half products for a step, nothing is recorded. They
    are done in float32, as the public code does them: W differs from float64's by less than 1e-6. Adam does not mind
    the scale of a slope but for its 1e-8, so large covariances are scaled down to what float32 can square.
    """
    peak = torch.maximum(sigma_t.abs().max(), sigma_s.abs().max()).clamp_min(1.0)
    target, other = (sigma_t / peak).float(), (sigma_s / peak).float()
    least = (1e-8 / peak.square()).clamp_min(1e-30).float()
    w = torch.eye(len(target), dtype=target.dtype, device=target.device)
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, steps + 1):
        moved = target @ w
        slope = moved @ symmetric_product(w, moved).sub_(other).mul_(4)
        first.lerp_(slope, 1 - 0.9)
        second.mul_(0.999).addcmul_(slope, slope, value=1 - 0.999)
        root = (second / (1 - 0.999**step)).sqrt_().add_(least)
        w.addcdiv_(first, root, value=-lr / (1 - 0.9**step))
    return w.to(sigma_t.dtype)


def coral(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """Whitening and colouring, Σ_t^{-1/2} Σ̂_s^{1/2}."""
    _, inverse, vectors = _axes(sigma_t)
    other, _, others = _axes(sigma_s)
    turned = (vectors * inverse) @ (vectors.T @ others)
    return (turned * other) @ others.T + _rest(inverse, vectors)


def monge(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """The optimal-transport map between the two Gaussians, symmetric, nearest to the identity."""
    factor, failed = torch.linalg.cholesky_ex(sigma_t)
    pivots = factor.diagonal()
    if not is_fake(sigma_t) and not int(failed) and float(pivots.min()) > 1e-4 * float(pivots.max()):
        # Σ_t = LLᵀ and far from singular: L^{-T} (LᵀΣ̂_sL)^{1/2} L^{-1} is the same map for half the eigenvectors
        values, turn = eigh(symmetric_product(factor, sigma_s @ factor))
        half = torch.linalg.solve_triangular(factor.T, turn * values.clamp_min(0.0).sqrt().sqrt(), upper=True).T
        return symmetric_product(half, half)
    root, inverse, vectors = _axes(sigma_t)
    frame = vectors * root
    middle, _, turn = _axes(frame.T @ sigma_s @ frame)  # in the axes of Σ_t, where its root is diagonal
    half = ((vectors * inverse) @ turn * middle.sqrt()).T
    return symmetric_product(half, half) + _rest(inverse, vectors)


def in_span(solver: Callable[[Tensor, Tensor], Tensor], sigma_t: Tensor, sigma_s: Tensor, x: Tensor) -> Tensor:
    """What ``solver`` gives where outside the span of the rows of ``x`` ``(n, d)`` both are multiples of the identity.

    So they are, shrunk or not, for fewer rows than dimensions: n dimensions do, and W is a multiple of the identity
    outside.
    """
    span, dim = torch.linalg.qr(x.T).Q, len(sigma_t)
    small = [span.T @ (sigma @ span) for sigma in (sigma_t, sigma_s)]
    outside = [
        (sigma.trace() - part.trace()) / (dim - len(x)) for sigma, part in zip((sigma_t, sigma_s), small, strict=True)
    ]
    real = outside[0] > 1e-12 * sigma_t.trace() / dim
    scale = torch.where(real, outside[1].clamp_min(0.0) / torch.where(real, outside[0], 1.0), 1.0).sqrt()
    inside = solver(*small)
    inside.diagonal().sub_(scale)
    w: Tensor = (span @ inside) @ span.T
    w.diagonal().add_(scale)
    return w


EXACT = {"coral": coral, "monge": monge}
"""Solvers of the equation, by the name that ``solver=`` takes."""


def _axes(sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Roots of Σ's eigenvalues, their inverses (zero where there is no variance), and the eigenvectors.

    Rounding leaves slightly negative or tiny eigenvalues where there should be zeros; inverting those would blow up.
    """
    values, vectors = eigh((sigma + sigma.T) / 2)
    floor = values[-1].clamp_min(torch.finfo(values.dtype).tiny) * len(sigma) * torch.finfo(values.dtype).eps
    real = values > floor
    root = torch.where(real, values, 0.0).sqrt()
    return root, torch.where(real, root, 1.0).reciprocal() * real, vectors


def _rest(inverse: Tensor, vectors: Tensor) -> Tensor:
    """The projector on the directions without variance."""
    rest = (vectors * (inverse == 0)).T
    return symmetric_product(rest, rest)
