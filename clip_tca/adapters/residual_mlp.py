"""The non-linear maps MLP-2 and MLP-3: a residual perceptron behind the linear map, T(z) = L(z) + f(L(z)).

The paper names them and gives neither widths nor activation. Here f has width ``hidden`` (default d), GELU, biases and
a last layer of zeros, and T starts at the identity. Its linear part L is set first, in closed form (the Monge map),
then f by Adam, both to lower

    ‖Σ(T(z)) − Σ̂_s‖²_F / ‖Σ_t − Σ̂_s‖²_F  +  ‖μ(T(z)) − μ̂_s‖² / ‖μ_t − μ̂_s‖²,

each distance relative to the unadapted embeddings. The best parameters seen are kept, f = 0 among them: the loss after
fitting is never above that of the linear start.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.adapters.statistics import Moments


def start(dim: int, layers: int, hidden: int, seed: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Weights and biases ``[w1, b1, w2, b2, …]``: random but for the last layer, which is zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [dim, *[hidden] * (layers - 1), dim]
    parameters = []
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64) / math.sqrt(rows)
        weight = torch.zeros_like(weight) if i == layers - 1 else weight
        parameters += [weight, torch.zeros(columns, dtype=torch.float64)]
    return [p.to(device, dtype) for p in parameters]


def frame(z: Tensor) -> tuple[Tensor, Tensor]:
    """Centre ``(d,)`` and scale ``()`` of the rows of ``z``: what goes into the MLP has about unit variance."""
    moments = Moments.of(z)
    spread = moments.covariance().diagonal().mean().sqrt()
    return moments.mean.to(z.dtype), torch.where(spread > 0, spread, 1.0).to(z.dtype)


def apply(z: Tensor, frame: tuple[Tensor, Tensor], parameters: list[Tensor]) -> Tensor:
    """z + scale · f((z − centre) / scale) ``(n, d)``."""
    centre, scale = frame
    x = (z - centre) / scale
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = functional.gelu(x @ weight + bias)
    return z + scale * (x @ parameters[-2] + parameters[-1])


def distances(z: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """‖Σ(z) − Σ̂_s‖²_F and ‖μ(z) − μ̂_s‖² of the rows of ``z``, ``(2,)``."""
    centre = z.mean(dim=0)
    x = z - centre
    return torch.stack([(x.T @ x / (len(z) - 1) - sigma).square().sum(), (centre - mu).square().sum()])


def fit(
    z: Tensor, mu: Tensor, sigma: Tensor, before: Tensor, parameters: list[Tensor], steps: int, lr: float
) -> tuple[tuple[Tensor, Tensor], list[Tensor], Tensor, Tensor]:
    """Adam on all rows of ``z`` at once: their frame, the best parameters, their loss and the loss of the start.

    Args:
        z: ``(n, d)`` embeddings after the linear map.
        mu: ``(d,)`` mean μ̂_s to reach.
        sigma: ``(d, d)`` covariance Σ̂_s to reach.
        before: ``(2,)`` distances of the unadapted embeddings.
        parameters: Where to start.
        steps: Number of Adam steps.
        lr: Learning rate.
    """
    before = before.clamp_min(torch.finfo(z.dtype).eps)
    best, losses = parameters, []
    with torch.inference_mode(False), torch.enable_grad():  # the caller may be inside inference_mode
        z, mu, sigma, before = z.clone(), mu.clone(), sigma.clone(), before.clone()
        place = frame(z)
        live = [p.clone().requires_grad_() for p in parameters]
        optimizer = torch.optim.Adam(live, lr=lr)
        for step in range(steps + 1):
            loss = (distances(apply(z, place, live), mu, sigma) / before).sum()
            losses.append(loss.detach().nan_to_num(nan=float("inf")))
            better = losses[-1] <= torch.stack(losses).min()
            best = [torch.where(better, new.detach(), old) for new, old in zip(live, best, strict=True)]
            if step < steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return place, best, torch.stack(losses).min(), losses[0]
