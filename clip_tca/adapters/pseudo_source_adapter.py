"""What LinearTCA and MLPTCA share: moments of all embeddings, the bank of the most certain, and W between the two."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from clip_tca.adapters import solvers
from clip_tca.adapters.base import Adapter, log
from clip_tca.adapters.pseudo_source import BALANCES, UNCERTAINTIES, Balance, PseudoSource, Uncertainty
from clip_tca.adapters.reservoir import Sample
from clip_tca.adapters.statistics import Moments, Segments, ledoit_wolf_shrinkage, shrink
from clip_tca.core.checks import check_whole, one_of

Solver = Literal["gradient", "coral", "monge", "mean"]
Shrinkage = Literal["auto"] | float
SOLVERS: tuple[str, ...] = get_args(Solver)
P = TypeVar("P", bound="PseudoSourceAdapter")


class PseudoSourceAdapter(Adapter):
    """What LinearTCA and MLPTCA share: running moments of all embeddings and the bank of the most certain."""

    k: Literal["auto"] | int
    balance: Balance
    uncertainty: Uncertainty

    W_ = property(lambda self: self._learned("W"), doc="``(d, d)`` linear map W.")
    mean_ = property(lambda self: self._learned("mean"), doc="``(d,)`` mean μ_t of the test embeddings.")
    pseudo_source_mean_ = property(lambda self: self._learned("pseudo_source_mean"), doc="``(d,)`` its mean μ̂_s.")
    pseudo_source_counts_ = property(
        lambda self: self._learned("pseudo_source_counts"), doc="``(c,)`` its embeddings by predicted class."
    )
    covariance_ = property(lambda self: self._learned("covariance"), doc="``(d, d)`` Σ_t, shrunk as W takes it.")
    pseudo_source_covariance_ = property(
        lambda self: self._learned("pseudo_source_covariance"), doc="``(d, d)`` Σ̂_s, shrunk as W takes it."
    )

    @property
    def uses_labels(self) -> bool:
        """Whether ``balance`` is ``"oracle"``: the true labels of the test set are counted."""
        return self.balance == "oracle"

    def check_options(self) -> None:
        self._check_common()
        check_whole("k", self.k, also="auto")
        one_of("balance", self.balance, BALANCES)
        one_of("uncertainty", self.uncertainty, UNCERTAINTIES)

    def _begin(self, device: torch.device, dtype: torch.dtype, first: int) -> None:
        self._moments, self._segments = Moments.empty(self.classifier.dim, device), Segments()
        self._bank = PseudoSource(self.classifier, self.k, self.balance, self.uncertainty, device, dtype, first)

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        self._moments.update(z)
        self._bank.update(z, labels, logits)

    def _samples(self) -> list[Sample]:
        return [] if self._bank.sample is None else [self._bank.sample]

    def end_segment(self, number: int) -> None:
        self._segments.add(number, self._moments)
        self._moments = Moments.empty(self.classifier.dim, self._moments.mean.device)

    def absorb(self: P, other: P) -> None:
        super().absorb(other)
        self._moments = self._moments.merge(other._moments)
        self._segments.merge(other._segments)
        self._bank.merge(other._bank)

    def _linear(self, solver: Solver, shrinkage: Shrinkage, steps: int = 20, lr: float = 1e-3) -> dict[str, Tensor]:
        """W and the offset of z ↦ zW + offset, with the means and covariances of both sides from which W was solved."""
        everyone = self._segments.total(self._moments)
        rows = self._bank.rows[self._bank.chosen(everyone)]
        source = Moments.of(rows) if len(rows) else everyone  # nothing selected: nothing changes
        everything = source.n == everyone.n
        predicted = self.classifier.predict(rows) if len(rows) else self._bank.group[:0]
        state = {"pseudo_source_counts": torch.bincount(predicted, minlength=self.classifier.n_classes)}
        for name, moments in {"": everyone, "pseudo_source_": source}.items():
            amount = ledoit_wolf_shrinkage(moments) if shrinkage == "auto" else shrinkage
            state[f"{name}mean"] = moments.mean.clone()
            state[f"{name}covariance"] = shrink(moments.covariance(), amount)
        sigmas = state["covariance"], state["pseudo_source_covariance"]
        if solver == "mean" or everything or source.n < 2:
            w = torch.eye(len(sigmas[0]), dtype=sigmas[0].dtype, device=sigmas[0].device)
        elif solver == "gradient":
            w = solvers.gradient(*sigmas, steps, lr)
        else:
            w = solvers.EXACT[solver](*sigmas)
        return {**state, "W": w, "offset": state["pseudo_source_mean"] - state["mean"] @ w}

    def _state(self) -> dict[str, Tensor]:
        return {**self._segments.total(self._moments).state(), **self._bank.state()}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self._moments.restore(tensors)
        self._bank.restore(tensors)

    def warn(self) -> None:
        name, predicted, k, d = type(self).__name__, self._bank.predicted, self._bank.size(), self.classifier.dim
        chosen = int(self._solution["pseudo_source_counts"].sum())
        never = int((predicted == 0).sum())
        missing = int(((predicted > 0) & (self._solution["pseudo_source_counts"] == 0)).sum())
        small = int(((predicted > 0) & (predicted < k)).sum())
        if never:
            log.warning("%s: %d of %d classes are never predicted: no pseudo-source", name, never, len(predicted))
        if small and self.balance != "global":
            log.warning("%s: %d classes are predicted fewer than k = %d times", name, small, k)
        if self.balance == "global" and missing:
            log.warning("%s: the %d most certain leave out %d predicted classes; try a larger k", name, chosen, missing)
        if chosen in (0, self._seen):
            log.warning("%s: the pseudo-source is all or nothing of the %d embeddings: no change", name, self._seen)
        if self._seen <= d:
            log.warning("%s: %d embeddings say little about a covariance in %d dimensions", name, self._seen, d)
