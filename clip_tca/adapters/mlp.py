"""MLPTCA: the non-linear form of LinearTCA, a residual MLP behind the linear map."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clip_tca.adapters import residual_mlp
from clip_tca.adapters.pseudo_source import Balance, Uncertainty
from clip_tca.adapters.pseudo_source_adapter import PseudoSourceAdapter
from clip_tca.adapters.reservoir import Sample
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_positive, check_whole


class MLPTCA(PseudoSourceAdapter):
    """A residual MLP in place of W: it starts at the identity and minimises mean and covariance distance.

    First its linear part is set in closed form, then the perceptron by Adam (see
    :mod:`clip_tca.adapters.residual_mlp`), on an evenly spread sample of at most ``memory`` embeddings, always from the
    same seeded start.

    Learned state: ``loss_`` and ``start_loss_`` (of the linear part alone), and, as LinearTCA, ``W_``, ``mean_``,
    ``pseudo_source_mean_``, ``covariance_``, ``pseudo_source_covariance_``, ``pseudo_source_counts_``, ``n_seen_``.
    """

    options = (
        "layers", "hidden", "k", "balance", "uncertainty", "steps", "lr", "seed", "memory", "normalize", "refresh"
    )  # fmt: skip

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        *,
        layers: Literal[2, 3] = 2,
        hidden: int | None = None,
        k: Literal["auto"] | int = "auto",
        balance: Balance = "estimated",
        uncertainty: Uncertainty = "distance",
        steps: int = 20,
        lr: float = 1e-3,
        seed: int = 0,
        memory: int = 4096,
        normalize: bool = True,
        refresh: Literal["auto"] | int = "auto",
    ) -> None:
        """Store the options.

        Args:
            classifier: g, the zero-shot classifier.
            layers: 2 or 3.
            hidden: Width of the hidden layers; None is d.
            k: As in :class:`LinearTCA`, and so are ``balance`` and ``uncertainty``.
            balance: How classes share the pseudo-source.
            uncertainty: ``"distance"`` or ``"entropy"``.
            steps: Adam steps; 0 leaves the map at the identity.
            lr: Learning rate.
            seed: Of the first layers' weights.
            memory: Rows on which the MLP is fitted.
            normalize: Scale embeddings to unit length first, as CLIP does.
            refresh: Images after which a stream solves again (see :mod:`clip_tca.adapters.base`).
        """
        self.classifier = classifier
        self.layers = layers
        self.hidden = hidden
        self.k = k
        self.balance = balance
        self.uncertainty = uncertainty
        self.steps = steps
        self.lr = lr
        self.seed = seed
        self.memory = memory
        self.normalize = normalize
        self.refresh = refresh

    loss_ = property(lambda self: float(self._learned("loss")), doc="Loss after fitting.")
    start_loss_ = property(lambda self: float(self._learned("start_loss")), doc="Loss of its linear part alone.")

    def check_options(self) -> None:
        super().check_options()
        check_whole("layers", self.layers, 2, 3)
        check_whole("seed", self.seed, 0)
        check_whole("hidden", self.hidden, also=None)
        check_whole("memory", self.memory, 2)
        check_whole("steps", self.steps, 0)
        check_positive("lr", self.lr)

    def _begin(self, device: torch.device, dtype: torch.dtype, first: int) -> None:
        super()._begin(device, dtype, first)
        self._rows = Sample(self.memory, self.classifier.dim, device, dtype, first)

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        super()._observe(z, labels, logits)
        self._rows.update(z)

    def _samples(self) -> list[Sample]:
        return [*super()._samples(), self._rows]

    def _state(self) -> dict[str, Tensor]:
        return {**super()._state(), **self._rows.state("rows")}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(tensors)
        self._rows.restore(tensors, "rows")

    def _solve(self) -> dict[str, Tensor]:
        state, rows, d = self._linear("monge", "auto"), self._rows.rows(), self.classifier.dim
        steps = int(self.steps) if len(rows) > 1 else 0
        if steps == 0:
            state["W"], state["offset"] = torch.eye(d).to(state["W"]), torch.zeros_like(state["offset"])
        mu, sigma = (state[f"pseudo_source_{name}"].to(rows.dtype) for name in ("mean", "covariance"))
        moved = torch.addmm(state["offset"].to(rows.dtype), rows, state["W"].to(rows.dtype))
        block = residual_mlp.start(d, self.layers, self.hidden or d, self.seed, rows.device, rows.dtype)
        before = residual_mlp.distances(rows, mu, sigma)
        frame, fitted, loss, start_loss = residual_mlp.fit(moved, mu, sigma, before, block, steps, float(self.lr))
        state |= {"centre": frame[0], "scale": frame[1], "loss": loss, "start_loss": start_loss}
        return state | {f"mlp.{i}": parameter for i, parameter in enumerate(fitted)}

    def _move(self, z: Tensor) -> Tensor:
        frame = self._solved("centre", z), self._solved("scale", z)
        moved = torch.addmm(self._solved("offset", z), z, self._solved("W", z))
        return residual_mlp.apply(moved, frame, [self._solved(f"mlp.{i}", z) for i in range(2 * self.layers)])

    def _score(self, z: Tensor) -> Tensor:
        return self.classifier.logits(self._move(z))
