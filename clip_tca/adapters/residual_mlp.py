"""The non-linear maps MLP-2 and MLP-3: a residual perceptron behind the linear map, T(z) = L(z) + f(L(z)).

The paper names them and gives neither widths nor activation. Here f has width ``hidden`` (default d), GELU, biases and
a last layer of zeros. The linear part L is set first, in closed form (the Monge map), and meets mean and covariance.
f is then fitted by Adam to what a linear map cannot meet, the whole distribution: it lowers the energy distance of the
mapped rows x = T(z) from the pseudo-source rows y with their weights,

    2 E‖(x − y)V‖ − E‖(x − x′)V‖ − E‖(y − y′)V‖,

which is zero only if xV and yV are distributed alike. V is what the classifier sees, an orthonormal basis of the
differences of its classes: directions on which no prediction depends do not count. (Lengths are those of embeddings. In
logits, which stretch some directions, the paper's non-linear toy goes to wrong classes.) The best parameters seen are
kept, f = 0 among them: the loss after fitting is never above that of the linear start.
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


def view(weight: Tensor) -> Tensor:
    """V ``(d, r)``: an orthonormal basis of the differences of the rows of a classifier's weight ``(c, d)``."""
    basis: Tensor = torch.linalg.qr((weight[:-1] - weight[-1]).T).Q
    return basis


def mean_distance(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """E‖x − y‖ ``()`` of the rows of ``x`` with weights ``p`` and the rows of ``y`` with weights ``q``."""
    return p @ torch.cdist(x, y) @ q


def fit(
    z: Tensor, target: tuple[Tensor, Tensor], v: Tensor, parameters: list[Tensor], steps: int, lr: float
) -> tuple[tuple[Tensor, Tensor], list[Tensor], Tensor, Tensor]:
    """Adam on all rows of ``z`` at once: their frame, the best parameters, their loss and the loss of the start.

    Args:
        z: ``(n, d)`` embeddings after the linear map.
        target: ``(m, d)`` pseudo-source rows and their weights ``(m,)``, which sum to one.
        v: ``(d, r)`` view V in which distances are taken.
        parameters: Where to start.
        steps: Number of Adam steps.
        lr: Learning rate.
    """
    best, losses = parameters, []
    with torch.inference_mode(False), torch.enable_grad():  # the caller may be inside inference_mode
        z, rows, q, v = z.clone(), target[0].clone(), target[1].clone(), v.clone()
        y = rows @ v
        p = torch.full_like(z[:, 0], 1 / len(z))
        within = mean_distance(y, y, q, q)
        place = frame(z)
        live = [parameter.clone().requires_grad_() for parameter in parameters]
        optimizer = torch.optim.Adam(live, lr=lr)
        for step in range(steps + 1):
            x = apply(z, place, live) @ v
            loss = 2 * mean_distance(x, y, p, q) - mean_distance(x, x, p, p) - within
            losses.append(loss.detach().nan_to_num(nan=float("inf")))
            better = losses[-1] <= torch.stack(losses).min()
            best = [torch.where(better, new.detach(), old) for new, old in zip(live, best, strict=True)]
            if step < steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return place, best, torch.stack(losses).min(), losses[0]
