"""The linear maps: W with WᵀΣ_tW = Σ̂_s, exactly or by a few gradient steps.

W is unique only up to a rotation, and accuracy depends on which one is taken. (The paper's printed closed form,
U_tΛ_t^{1/2}Û_sᵀΛ̂_s^{-1/2}, does not satisfy the equation.) Three that do:

* :func:`coral`: whitening and colouring, Σ_t^{-1/2} Σ̂_s^{1/2};
* :func:`monge`: Σ_t^{-1/2} (Σ_t^{1/2} Σ̂_s Σ_t^{1/2})^{1/2} Σ_t^{-1/2}, the one that moves embeddings least;
* :func:`gradient`: the paper's recommendation, early-stopped Adam from the identity; it approaches the equation only.

Where Σ_t has no variance (fewer rows than dimensions), the exact maps leave embeddings as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gradient(sigma_t: Tensor, sigma_s: Tensor, steps: int = 20, lr: float = 1e-3) -> Tensor:
    """``steps`` of Adam from the identity on ‖WᵀΣ_tW − Σ̂_s‖²_F, with its gradient 4 Σ_tW (WᵀΣ_tW − Σ̂_s).

    Adam's own defaults (0.9, 0.999, 1e-8). No autograd: two products for a step, nothing is recorded.
    """
    w = torch.eye(len(sigma_t), dtype=sigma_t.dtype, device=sigma_t.device)
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, steps + 1):
        moved = sigma_t @ w
        slope = 4 * moved @ (w.T @ moved - sigma_s)
        first.lerp_(slope, 1 - 0.9)
        second.mul_(0.999).addcmul_(slope, slope, value=1 - 0.999)
        root = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
        w.addcdiv_(first, root, value=-lr / (1 - 0.9**step))
    return w


def coral(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """Whitening and colouring, Σ_t^{-1/2} Σ̂_s^{1/2}."""
    _, inverse, rest = _roots(sigma_t)
    root, _, _ = _roots(sigma_s)
    return inverse @ root + rest


def monge(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """The optimal-transport map between the two Gaussians, symmetric, nearest to the identity."""
    root, inverse, rest = _roots(sigma_t)
    middle, _, _ = _roots(root @ sigma_s @ root)
    return inverse @ middle @ inverse + rest


def _roots(sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ^{1/2}, its pseudo-inverse, and the projector on the directions without variance.

    Rounding leaves slightly negative or tiny eigenvalues where there should be zeros; inverting those would blow up.
    """
    values, vectors = torch.linalg.eigh((sigma + sigma.T) / 2)
    floor = values[-1].clamp_min(torch.finfo(values.dtype).tiny) * len(sigma) * torch.finfo(values.dtype).eps
    real = values > floor
    root = torch.where(real, values, 0.0).sqrt()
    inverse = torch.where(real, root, 1.0).reciprocal() * real
    rest = vectors * (~real)
    return (vectors * root) @ vectors.T, (vectors * inverse) @ vectors.T, rest @ vectors.T
