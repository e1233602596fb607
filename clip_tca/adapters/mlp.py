"""MLPTCA: a residual MLP after the linear map of LinearTCA, T(z) = L(z) + f(L(z)).

The paper names MLP-2 and MLP-3 without widths or activation. Here f has width ``hidden`` (default d),
GELU, biases and a last layer of zeros. The linear part L is solved first, in closed form, and matches mean and
covariance. Adam then fits f to what a linear map cannot match, the whole distribution. It lowers the energy distance
of the mapped rows x = T(z) from the pseudo-source rows y with their weights,

    2 E‖(x − y)V‖ − E‖(x − x′)V‖ − E‖(y − y′)V‖,

which is zero only if xV and yV have the same distribution. V is an orthonormal basis of the differences of the class
weights of g: directions on which no prediction depends do not count. The best parameters seen are kept, f = 0 among
them, so the loss is never above that of the linear map.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.adapters.linear import LinearTCA, Observed, Shrinkage, Solver
from clip_tca.adapters.statistics import evenly, moments
from clip_tca.core.checks import check_whole

FITTED_ROWS, TARGET_ROWS = 768, 4096
"""Rows of the test embeddings on which the MLP is fitted, and of the pseudo-source to which, at most."""


def initial_parameters(dim: int, layers: int, hidden: int, seed: int, like: Tensor) -> list[Tensor]:
    """Weights and biases ``[w1, b1, w2, b2, …]``: random but for the last layer, which is zero."""
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for i, (rows, columns) in enumerate(itertools.pairwise([dim, *[hidden] * (layers - 1), dim])):
        weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64) / math.sqrt(rows)
        weight = torch.zeros_like(weight) if i == layers - 1 else weight
        parameters += [weight, torch.zeros(columns, dtype=torch.float64)]
    return [parameter.to(like) for parameter in parameters]


def centre_and_scale(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(d,)`` and scale ``()`` with which rows go into the MLP at about unit variance."""
    m = moments(z)
    spread = m.covariance.diagonal().mean().sqrt()
    return m.mean.to(z.dtype), torch.where(spread > 0, spread, 1.0).to(z.dtype)


def residual(z: Tensor, centre: Tensor, scale: Tensor, parameters: list[Tensor]) -> Tensor:
    """z + scale · f((z − centre) / scale) ``(n, d)``."""
    x = (z - centre) / scale
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = functional.gelu(x @ weight + bias)
    return z + scale * (x @ parameters[-2] + parameters[-1])


def seen_by(weight: Tensor) -> Tensor:
    """V ``(d, r)``: an orthonormal basis of the differences of the class weights ``(c, d)``."""
    basis: Tensor = torch.linalg.qr((weight[:-1] - weight[-1]).T).Q
    return basis


def mean_distance(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """E‖x − y‖ ``()`` of the rows of ``x`` with weights ``p`` and the rows of ``y`` with weights ``q``."""
    return p @ torch.cdist(x, y) @ q


def fit_residual(
    z: Tensor, target: tuple[Tensor, Tensor], v: Tensor, parameters: list[Tensor], steps: int, lr: float
) -> dict[str, Tensor]:
    """Adam on all rows of ``z`` at once: the best parameters ``mlp_i``, their ``loss`` and the ``start_loss``.

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
        y, p = rows @ v, torch.full_like(z[:, 0], 1 / len(z))
        within = mean_distance(y, y, q, q)
        centre, scale = centre_and_scale(z)
        live = [parameter.clone().requires_grad_() for parameter in parameters]
        optimizer = torch.optim.Adam(live, lr=lr)
        for step in range(steps + 1):
            x = residual(z, centre, scale, live) @ v
            loss = 2 * mean_distance(x, y, p, q) - mean_distance(x, x, p, p) - within
            losses.append(loss.detach().nan_to_num(nan=float("inf")))
            better = losses[-1] <= torch.stack(losses).min()
            best = [torch.where(better, new.detach(), old) for new, old in zip(live, best, strict=True)]
            if step < steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    fitted = {f"mlp_{i}_": parameter for i, parameter in enumerate(best)}
    return {**fitted, "centre_": centre, "scale_": scale, "loss_": torch.stack(losses).min(), "start_loss_": losses[0]}


@dataclass(eq=False, repr=False, kw_only=True)
class MLPTCA(LinearTCA):
    """LinearTCA with a residual MLP after the linear map, which matches the whole distribution of the pseudo-source.

    The MLP is fitted on an evenly spread sample of at most 768 embeddings, always from the same seeded start.

    Attributes:
        layers: Number of layers, 2 or 3.
        hidden: Width of the hidden layers; the default is d.
        steps: Adam steps; with 0 the MLP changes nothing.
        lr: Learning rate.
        seed: Seed of the initial weights.

    The other options are those of :class:`LinearTCA`; ``solver`` and ``shrinkage`` have to stay at their defaults.

    Learned attributes: ``loss_``, ``start_loss_`` (the loss of the linear map alone), the parameters of the MLP, and
    those of :class:`LinearTCA` except ``weight_`` and ``bias_``.
    """

    centre_: Tensor = field(init=False)
    scale_: Tensor = field(init=False)
    loss_: Tensor = field(init=False)
    start_loss_: Tensor = field(init=False)

    layers: Literal[2, 3] = 2
    hidden: int | None = None
    solver: Solver = field(default="monge", init=False)
    shrinkage: Shrinkage = field(default="auto", init=False)
    lr: float = 1e-4
    seed: int = 0

    linear = False

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_whole("layers", self.layers, 2, 3)
        check_whole("seed", self.seed, 0)
        check_whole("hidden", self.hidden, also=None)

    def _solve(self, observed: Observed) -> dict[str, Tensor]:
        learned, rows, d = super()._solve(observed), observed.sample.rows(FITTED_ROWS), self.g.dim
        del learned["weight_"], learned["bias_"]  # the map is not linear
        some = evenly(len(learned["pseudo_source_"]), TARGET_ROWS)
        source, weights = learned["pseudo_source_"][some].to(rows), learned["pseudo_source_weights_"][some].to(rows)
        steps = int(self.steps) if len(rows) > 1 and len(source) else 0
        if steps == 0:
            learned["W_"], learned["offset_"] = torch.eye(d).to(learned["W_"]), torch.zeros_like(learned["offset_"])
        moved = torch.addmm(learned["offset_"].to(rows), rows, learned["W_"].to(rows))
        parameters = initial_parameters(d, self.layers, self.hidden or d, self.seed, rows)
        target, view = (source, weights / weights.sum()), seen_by(self.g.weight.to(rows))
        return learned | fit_residual(moved, target, view, parameters, steps, float(self.lr))

    def _move(self, z: Tensor) -> Tensor:
        parameters = [getattr(self, f"mlp_{i}_").to(z) for i in range(2 * self.layers)]
        return residual(super()._move(z), self.centre_.to(z), self.scale_.to(z), parameters)

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self.g.bias.to(z), self._move(z), self.g.weight.to(z).T)
