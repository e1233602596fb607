"""Test-time Correlation Alignment (You, Lu and Huang, ICML 2025): LinearTCA.

From unlabeled test embeddings the most certain ones, the pseudo-source, are selected, and all embeddings are mapped so
that their mean and covariance match it: z′ = (z − μ_t)W + μ̂_s with WᵀΣ_tW = Σ̂_s. The class below reads in that order:
observe, select, weigh, solve, apply. Certainty is in :mod:`clip_tca.adapters.pseudo_source`, class shares are in
:mod:`clip_tca.adapters.shares`, the solvers of W in :mod:`clip_tca.adapters.solvers`.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from clip_tca.adapters import diagnosis
from clip_tca.adapters.accumulator import Accumulator
from clip_tca.adapters.attributes import Learned
from clip_tca.adapters.base import Adapter, class_log, log
from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.adapters.pseudo_source import SHARES, UNCERTAINTIES, PseudoSourceBank, Uncertainty, select
from clip_tca.adapters.reservoir import Reservoir
from clip_tca.adapters.shares import Shares, check_shares, estimate_shares, plain, row_weights, share_vector
from clip_tca.adapters.solvers import EXACT, SOLVERS, Solver, gradient, in_span
from clip_tca.adapters.state import SavedState
from clip_tca.adapters.statistics import Moments, StreamMoments, ledoit_wolf_shrinkage, shrink
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_number, check_positive, check_whole, one_of
from clip_tca.core.tensors import exact, exact_dtype

Shrinkage = Literal["auto"] | float
L = TypeVar("L", bound="LinearTCA")

LEAST_ROWS, MOST_ROWS = 1024, 2048
"""Rows from which ``estimated`` class counts are taken: 32 for each class within these bounds, but 8 in any case."""

ROUNDING = 1e-4
"""Shrinkage below which W inverts variances that are lost in products of float32."""


@dataclass(eq=False, repr=False, kw_only=True)
class LinearTCA(Adapter):
    """Linear map of all test embeddings onto the mean and covariance of the most certain ones.

    The defaults need no labels and were chosen by the evidence in eval/defaults.md. The paper's method as printed is
    :meth:`paper`, the public code's is :meth:`reference`.

    Attributes:
        classifier: g, a zero-shot classifier or any linear one.
        k: Size of the pseudo-source: of each predicted class; overall for ``global``, of class 0 for ``oracle``.
            ``"auto"`` is a fifth of the largest predicted class, but 10 to 20.
        shares: How frequent the classes are, which decides what is gained: a number for each class or
            ``{class name: number}`` where it is known; else ``"estimated"``, ``"uniform"``, ``"predicted"`` (as g
            predicts), ``"global"`` or ``"oracle"`` (see :mod:`clip_tca.adapters.pseudo_source`).
        balance: The name of ``shares`` in version 0.1.
        uncertainty: ``"distance"`` (the paper's) or ``"entropy"`` (its code's).
        solver: ``"monge"``, ``"coral"``, ``"gradient"`` or ``"mean"`` (shift only).
        shrinkage: Of both covariances, for ``monge`` and ``coral``: ``"auto"`` (Ledoit–Wolf) or a number.
        steps: Adam steps of ``gradient``.
        lr: Learning rate of ``gradient``.
        normalize: Scale embeddings to unit length first; None is True for prompts, False for any other head.
        refresh: Images after which a stream solves again (see :mod:`clip_tca.adapters.base`).

    Learned state: ``W_`` (d, d), ``mean_`` (d,), ``pseudo_source_mean_`` (d,), ``covariance_`` and
    ``pseudo_source_covariance_`` (d, d), ``pseudo_source_counts_`` (c,), ``shares_`` (c,), ``n_seen_``.
    """

    k: Literal["auto"] | int = "auto"
    shares: Shares = "estimated"
    uncertainty: Uncertainty = "distance"
    solver: Solver = "monge"
    shrinkage: Shrinkage = "auto"
    steps: int = 20
    lr: float = 1e-3
    balance: InitVar[Shares | None] = None

    linear: ClassVar[bool] = True

    shares_ = Learned("shares", "``(c,)`` class shares of the pseudo-source.")

    W_ = Learned("W", "``(d, d)`` linear map W.")
    mean_ = Learned("mean", "``(d,)`` mean μ_t of the test embeddings.")
    covariance_ = Learned("covariance", "``(d, d)`` Σ_t, shrunk as W takes it.")
    pseudo_source_mean_ = Learned("pseudo_source_mean", "``(d,)`` mean μ̂_s of the pseudo-source.")
    pseudo_source_covariance_ = Learned("pseudo_source_covariance", "``(d, d)`` Σ̂_s, shrunk as W takes it.")
    pseudo_source_counts_ = Learned("pseudo_source_counts", "``(c,)`` chosen embeddings by predicted class.")

    def __post_init__(self, balance: Shares | None) -> None:
        """Take the name of before, and shares in any form."""
        self.shares = plain(self.shares if balance is None else balance)

    @classmethod
    def paper(cls: type[L], classifier: LinearClassifier, k: int = 20, **options: Any) -> L:
        """As printed: the k most certain **overall** by ‖onehot − p‖², W by 20 gradient steps.

        The paper tunes k between 5 and 300. With few, a single class can fill the pseudo-source.
        """
        return cls._preset(classifier, {"k": k, "shares": "global", "solver": "gradient"}, options)

    @classmethod
    def reference(cls: type[L], classifier: LinearClassifier, k: int = 20, **options: Any) -> L:
        """As the public code does it: entropy, ⌊k·nᵢ/n₀⌋ by **true** class counts. An oracle: ``fit(z, labels=…)``.

        That code has features as they are, which is the default for any head but prompts (``normalize``).
        """
        preset = {"k": k, "shares": "oracle", "uncertainty": "entropy", "solver": "gradient"}
        return cls._preset(classifier, preset, options)

    @classmethod
    def _preset(cls: type[L], classifier: LinearClassifier, preset: dict[str, Any], options: dict[str, Any]) -> L:
        return cls(classifier, **{name: value for name, value in preset.items() if name in cls.options()} | options)

    @property
    def uses_labels(self) -> bool:
        """Whether ``shares`` is ``"oracle"``: the true labels of the test set are counted."""
        return self.shares == "oracle"

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_whole("k", self.k, also="auto")
        check_shares(self.shares, self.classifier, SHARES)
        one_of("uncertainty", self.uncertainty, UNCERTAINTIES)
        one_of("solver", self.solver, SOLVERS)
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_whole("steps", self.steps, 0)
        check_positive("lr", self.lr)

    # -- observe -------------------------------------------------------------------------------------------------------

    def _declare(self, device: torch.device, dtype: torch.dtype, first: int) -> dict[str, Accumulator]:
        g = self.classifier
        precise = self.solver in EXACT and self.shrinkage != "auto" and self.shrinkage < ROUNDING
        self._moments = StreamMoments(g.dim, device, exact_dtype(device) if precise else dtype)
        self._bank = PseudoSourceBank(g, self.k, self.shares, self.uncertainty, device, dtype)
        declared: dict[str, Accumulator] = {"moments": self._moments, "bank": self._bank}
        if self.shares == "estimated":
            rows = min(max(LEAST_ROWS, 32 * g.n_classes), max(MOST_ROWS, 8 * g.n_classes))
            self._sample = Reservoir(rows, g.dim, device, dtype, first)
            declared["sample"] = self._sample
        return declared

    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        self._moments.update(z)
        self._bank.update(z, labels, logits)
        if self.shares == "estimated":
            self._sample.update(z)

    # -- select, weigh -------------------------------------------------------------------------------------------------

    @property
    def pseudo_source_(self) -> Tensor:
        """``(m, d)`` embeddings of the pseudo-source, in order of arrival."""
        self._update()
        return self._bank.rows[self._select()]

    def _select(self) -> Tensor:
        """Indices of the pseudo-source in the bank: of each predicted class the most certain."""
        bank = self._bank
        return select(bank.score, bank.group, bank.quota())

    def _weigh(self, rows: Tensor, group: Tensor, target: Moments, sigma: Tensor) -> dict[str, Tensor]:
        """The class shares by which the pseudo-source is weighed; with ``agreement`` where they were estimated."""
        c = self.classifier.n_classes
        if self.shares == "estimated" and len(rows):
            found = estimate_shares(self._sample.rows(), rows, group, self.classifier, target, sigma)
            return found._asdict()
        if not isinstance(self.shares, str):
            return {"shares": share_vector(self.shares, self.classifier).to(target.mean)}
        if self.shares in ("estimated", "predicted"):
            counts = self._bank.predicted
        elif self.shares == "uniform":
            counts = torch.ones(c, device=rows.device)
        else:  # global, oracle: as many as were selected
            counts = torch.bincount(group, minlength=c)
        return {"shares": exact(counts) / exact(counts).sum().clamp_min(1.0)}

    # -- solve ---------------------------------------------------------------------------------------------------------

    def _solve(self) -> dict[str, Tensor]:
        solution = self._align()
        g_weight = exact(self.classifier.weight.to(solution["W"].device)).T
        g_bias = exact(self.classifier.bias.to(solution["W"].device))
        return {**solution, "weight": solution["W"] @ g_weight, "bias": solution["offset"] @ g_weight + g_bias}

    def _align(self) -> dict[str, Tensor]:
        """W and the offset of z ↦ zW + offset, with the means and covariances of both sides from which W was solved."""
        target, chosen = self._moments.total(), self._select()
        rows = self._bank.rows[chosen]
        group = self._bank.group[chosen] if self.shares != "global" else self.classifier.predict(rows)
        solution = {
            "pseudo_source_counts": torch.bincount(group, minlength=self.classifier.n_classes),
            "mean": target.mean.clone(),
            "covariance": self._shrunk(target),
        }
        weighed = self._weigh(rows, group, target, solution["covariance"])
        solution |= weighed
        source = target
        if len(rows) and self.shares in ("global", "oracle"):
            source = Moments.of(rows)
        elif len(rows):
            source = Moments.weighted(rows, row_weights(weighed["shares"], group))
        solution |= {"pseudo_source_mean": source.mean.clone(), "pseudo_source_covariance": self._shrunk(source)}
        sigmas = solution["covariance"], solution["pseudo_source_covariance"]
        if self.solver == "mean" or len(rows) in (0, 1):
            w = torch.eye(len(sigmas[0]), dtype=sigmas[0].dtype, device=sigmas[0].device)
        elif self.solver == "gradient":
            w = gradient(*sigmas, int(self.steps), float(self.lr))
        elif (all_rows := self._moments.rows()) is not None and len(all_rows) < len(sigmas[0]):
            w = in_span(EXACT[self.solver], *sigmas, exact(all_rows) - target.mean)
        else:
            w = EXACT[self.solver](*sigmas)
        return {**solution, "W": w, "offset": solution["pseudo_source_mean"] - solution["mean"] @ w}

    def _shrunk(self, moments: Moments) -> Tensor:
        """Their covariance as W takes it."""
        shrinkage = self.shrinkage if self.solver in EXACT else 0.0
        amount = ledoit_wolf_shrinkage(moments) if shrinkage == "auto" else shrinkage
        return shrink(moments.covariance(), amount)

    def _about(self) -> tuple[Tensor, Tensor]:
        return self._solution["mean"], self._solution["covariance"].trace()

    # -- apply ---------------------------------------------------------------------------------------------------------

    def _move(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("offset", z), z, self._solved("W", z))

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("bias", z), z, self._solved("weight", z))

    # -- explain -------------------------------------------------------------------------------------------------------

    def warn(self) -> None:
        """Log what the user should know about the fit."""
        name, predicted, k, d = type(self).__name__, self._bank.predicted, self._bank.size, self.classifier.dim
        chosen = int(self._solution["pseudo_source_counts"].sum())
        never = int((predicted == 0).sum())
        missing = int(((predicted > 0) & (self._solution["pseudo_source_counts"] == 0)).sum())
        small = int(((predicted > 0) & (predicted < k)).sum())
        if never:
            class_log.warning("%s: %d of %d classes are never predicted: no pseudo-source", name, never, len(predicted))
        if small and self.shares == "oracle":
            class_log.warning("%s: %d classes are predicted fewer than k = %d times", name, small, k)
        if self.shares == "global" and missing:
            message = "%s: the %d most certain leave out %d predicted classes; try a larger k"
            class_log.warning(message, name, chosen, missing)
        if chosen == 0 or (chosen == self._seen and self.shares in ("global", "oracle")):
            log.warning("%s: the pseudo-source is all or nothing of the %d embeddings: no change", name, self._seen)
        if self._seen <= d:
            log.warning("%s: %d embeddings say little about a covariance in %d dimensions", name, self._seen, d)

    @classmethod
    def diagnose(cls, saved: SavedState, classifier: LinearClassifier | None) -> Diagnosis:
        """Figures of a fitted state that need no labels."""
        solution, moments = saved.part("solution"), diagnosis.moments_of(saved)
        g = classifier or diagnosis.recovered_classifier(solution["W"], solution["offset"], solution)
        if g is not None and not diagnosis.predicted_by(g, saved):
            g = None  # another method's logits made the predictions
        shift = solution["offset"] + solution["mean"] @ solution["W"] - solution["mean"]
        squares = diagnosis.movement(moments.scatter, moments.n, shift, solution["W"])
        rows = saved.tensors.get("sample.rows")
        adapted = LinearClassifier(solution["weight"].T, solution["bias"])
        after = None if rows is None else adapted.exact_logits(rows).argmax(dim=1)
        return diagnosis.of_alignment(saved, squares, diagnosis.changed(rows, g, after))
