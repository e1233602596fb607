"""Test-time Correlation Alignment (You, Lu and Huang, ICML 2025): LinearTCA and its non-linear form MLPTCA.

From unlabeled test embeddings the most certain are picked (:mod:`clip_tca.pseudo_source`), and all are mapped so that
their mean and covariance match those, z′ = (z − μ_t)W + μ̂_s (:mod:`clip_tca.alignment`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from clip_tca import alignment, mlp
from clip_tca.adapter import Adapter, log
from clip_tca.checks import check_descent, check_shrinkage, one_of, whole
from clip_tca.embeddings import exact
from clip_tca.pseudo_source import BALANCES, UNCERTAINTIES, Balance, PseudoSource, Uncertainty
from clip_tca.sample import Sample
from clip_tca.statistics import Moments, Segments, ledoit_wolf_shrinkage, shrink
from clip_tca.zero_shot import ZeroShotClassifier

Solver = Literal["gradient", "coral", "monge", "mean"]
Shrinkage = Literal["auto"] | float
SOLVERS: tuple[str, ...] = get_args(Solver)
P = TypeVar("P", bound="_PseudoSourceAdapter")


class _PseudoSourceAdapter(Adapter):
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

    def _check_options(self) -> None:
        self._check_common()
        if self.k != "auto" and not whole(self.k, 1):
            raise ValueError(f"k: {self.k!r}; allowed are 'auto' or a whole number of at least 1")
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

    def _end_segment(self, number: int) -> None:
        self._segments.add(number, self._moments)
        self._moments = Moments.empty(self.classifier.dim, self._moments.mean.device)

    def _absorb(self: P, other: P) -> None:
        super()._absorb(other)
        self._moments = self._moments.merge(other._moments)
        self._segments.merge(other._segments)
        self._bank.merge(other._bank)

    def _linear(self, solver: Solver, shrinkage: Shrinkage, steps: int = 20, lr: float = 1e-3) -> dict[str, Tensor]:
        """W and the offset of z ↦ zW + offset, with the means and covariances of both sides from which W was solved."""
        everyone = self._segments.total(self._moments)
        rows = self._bank.rows[self._bank.chosen()]
        source = Moments.of(rows) if len(rows) else everyone  # nothing selected: nothing changes
        everything = source.n == everyone.n
        predicted = self.classifier.predict(rows) if len(rows) else self._bank.group[:0]
        state = {"pseudo_source_counts": torch.bincount(predicted, minlength=self.classifier.classes)}
        for name, moments in {"": everyone, "pseudo_source_": source}.items():
            amount = ledoit_wolf_shrinkage(moments) if shrinkage == "auto" else shrinkage
            state[f"{name}mean"] = moments.mean.clone()
            state[f"{name}covariance"] = shrink(moments.covariance(), amount)
        sigmas = state["covariance"], state["pseudo_source_covariance"]
        if solver == "mean" or everything or source.n < 2:
            w = torch.eye(len(sigmas[0]), dtype=sigmas[0].dtype, device=sigmas[0].device)
        elif solver == "gradient":
            w = alignment.gradient(*sigmas, steps, lr)
        else:
            w = (alignment.coral if solver == "coral" else alignment.monge)(*sigmas)
        return {**state, "W": w, "offset": state["pseudo_source_mean"] - state["mean"] @ w}

    def _state(self) -> dict[str, Tensor]:
        return {**self._segments.total(self._moments).state(), **self._bank.state()}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self._moments.restore(tensors)
        self._bank.restore(tensors)

    def _warn(self) -> None:
        name, predicted, k, d = type(self).__name__, self._bank.predicted, self._bank.size(), self.classifier.dim
        chosen = int(self._solution["pseudo_source_counts"].sum())
        never = int((predicted == 0).sum())
        small = int(((predicted > 0) & (predicted < k)).sum())
        if never:
            log.warning("%s: %d of %d classes are never predicted: no pseudo-source", name, never, len(predicted))
        if small and self.balance != "global":
            log.warning("%s: %d classes are predicted fewer than k = %d times", name, small, k)
        if chosen in (0, self._seen):
            log.warning("%s: the pseudo-source is all or nothing of the %d embeddings: no change", name, self._seen)
        if self._seen <= d:
            log.warning("%s: %d embeddings say little about a covariance in %d dimensions", name, self._seen, d)


class LinearTCA(_PseudoSourceAdapter):
    """Linear map of all test embeddings onto the mean and covariance of the most certain ones.

    The defaults need no labels and were chosen by the evidence in eval/defaults.md. The paper's method as printed is
    :meth:`paper`, the public code's is :meth:`reference`.

    Learned state: ``W_`` (d, d), ``mean_`` (d,), ``pseudo_source_mean_`` (d,), ``covariance_`` and
    ``pseudo_source_covariance_`` (d, d), ``pseudo_source_counts_`` (c,), ``n_seen_``.
    """

    options = ("k", "balance", "uncertainty", "solver", "shrinkage", "steps", "lr", "normalize", "refresh")

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        *,
        k: Literal["auto"] | int = "auto",
        balance: Balance = "estimated",
        uncertainty: Uncertainty = "distance",
        solver: Solver = "monge",
        shrinkage: Shrinkage = "auto",
        steps: int = 20,
        lr: float = 1e-3,
        normalize: bool = True,
        refresh: Literal["auto"] | int = "auto",
    ) -> None:
        """Store the options.

        Args:
            classifier: g, the zero-shot classifier.
            k: Size of the pseudo-source: overall for ``global``, for each class for ``uniform``, of the largest class
                for ``estimated`` and ``predicted``, of class 0 for ``oracle``. ``"auto"`` is a fifth of the largest
                predicted class, but 10 to 20.
            balance: How classes share the pseudo-source (see :mod:`clip_tca.pseudo_source`).
            uncertainty: ``"distance"`` (the paper's) or ``"entropy"`` (its code's).
            solver: ``"monge"``, ``"coral"``, ``"gradient"`` or ``"mean"`` (shift only).
            shrinkage: Of both covariances, for ``monge`` and ``coral``: ``"auto"`` (Ledoit–Wolf) or a number.
            steps: Adam steps of ``gradient``.
            lr: Learning rate of ``gradient``.
            normalize: Scale embeddings to unit length first, as CLIP does.
            refresh: Images after which a stream solves again (see :mod:`clip_tca.adapter`).
        """
        self.classifier = classifier
        self.k = k
        self.balance = balance
        self.uncertainty = uncertainty
        self.solver = solver
        self.shrinkage = shrinkage
        self.steps = steps
        self.lr = lr
        self.normalize = normalize
        self.refresh = refresh

    @classmethod
    def paper(cls, classifier: ZeroShotClassifier, k: int = 20, **options: Any) -> LinearTCA:
        """As printed: the k most certain **overall** by ‖onehot − p‖², W by 20 gradient steps.

        The paper tunes k between 5 and 300. With few, a single class can fill the pseudo-source.
        """
        return cls(classifier, **{"k": k, "balance": "global", "solver": "gradient", **options})

    @classmethod
    def reference(cls, classifier: ZeroShotClassifier, k: int = 20, **options: Any) -> LinearTCA:
        """As the public code does it: entropy, ⌊k·nᵢ/n₀⌋ by **true** class counts. An oracle: ``fit(z, labels=…)``.

        Embeddings are scaled to unit length as CLIP's are; that code has raw features (``normalize=False``).
        """
        fixed = {"k": k, "balance": "oracle", "uncertainty": "entropy", "solver": "gradient"}
        return cls(classifier, **{**fixed, **options})

    def _check_options(self) -> None:
        super()._check_options()
        one_of("solver", self.solver, SOLVERS)
        check_shrinkage(self.shrinkage)
        check_descent(self.steps, self.lr)

    def _solve(self) -> dict[str, Tensor]:
        shrinkage = self.shrinkage if self.solver in ("coral", "monge") else 0.0
        state = self._linear(self.solver, shrinkage, int(self.steps), float(self.lr))
        text = self.classifier.scale * exact(self.classifier.text.to(state["W"].device)).T
        return {**state, "weight": state["W"] @ text, "bias": state["offset"] @ text}

    def _move(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("offset", z), z, self._solved("W", z))

    def _score(self, z: Tensor) -> Tensor:
        return torch.addmm(self._solved("bias", z), z, self._solved("weight", z))


class MLPTCA(_PseudoSourceAdapter):
    """A residual MLP in place of W: it starts at the identity and minimises mean and covariance distance.

    First its linear part is set in closed form, then the perceptron by Adam (see :mod:`clip_tca.mlp`), on an evenly
    spread sample of at most ``memory`` embeddings, always from the same seeded start.

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
            refresh: Images after which a stream solves again (see :mod:`clip_tca.adapter`).
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

    def _check_options(self) -> None:
        super()._check_options()
        one_of("layers", self.layers if whole(self.layers, 2) else str(self.layers), (2, 3))
        if not whole(self.seed, 0):
            raise ValueError(f"seed: {self.seed!r}; a whole number of at least 0 is needed")
        if self.hidden is not None and not whole(self.hidden, 1):
            raise ValueError(f"hidden: {self.hidden!r}; allowed are None (d) or a whole number of at least 1")
        if not whole(self.memory, 2):
            raise ValueError(f"memory: {self.memory!r}; a whole number of at least 2 is needed")
        check_descent(self.steps, self.lr)

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
        block = mlp.start(d, self.layers, self.hidden or d, self.seed, rows.device, rows.dtype)
        before = mlp.distances(rows, mu, sigma)
        frame, fitted, loss, start_loss = mlp.fit(moved, mu, sigma, before, block, steps, float(self.lr))
        state |= {"centre": frame[0], "scale": frame[1], "loss": loss, "start_loss": start_loss}
        return state | {f"mlp.{i}": parameter for i, parameter in enumerate(fitted)}

    def _move(self, z: Tensor) -> Tensor:
        frame = self._solved("centre", z), self._solved("scale", z)
        moved = torch.addmm(self._solved("offset", z), z, self._solved("W", z))
        return mlp.apply(moved, frame, [self._solved(f"mlp.{i}", z) for i in range(2 * self.layers)])

    def _score(self, z: Tensor) -> Tensor:
        return self.classifier.logits(self._move(z))
