"""The contract that every adapter keeps: fit / partial_fit / transform / logits / predict / merge / save / load.

An adapter *observes* embeddings (cheap, every batch) and *solves* for its map from what it has observed (expensive).
``fit`` forgets, observes everything and solves. ``partial_fit`` only observes. The map is solved again when it is due:

* always when the learned state (``W_``, …) is read or saved, or when more rows are adapted than the last batch had;
* when a batch no larger than the last one is adapted (``partial_fit(x); predict(x)``, the online loop): only if
  ``refresh`` images have been seen since the last solution; with ``refresh="auto"``, if they are a tenth of all, or up
  to half of all as long as the stream stays as it is (:mod:`clip_tca.adapters.schedule`).

So a stream that has ended gives the one-shot result, and batch size 1 costs little for each image.

A subclass declares its state (:meth:`Adapter._declare`) and says how it observes, solves and applies the solution.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.accumulator import Accumulator
from clip_tca.adapters.attributes import Normalize
from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.adapters.estimator import Estimator
from clip_tca.adapters.schedule import Schedule
from clip_tca.adapters.state import SavedState, read_state, save_state
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_flag, check_whole
from clip_tca.core.conversion import is_batches
from clip_tca.core.remote import Location, locate
from clip_tca.core.tensors import (
    CHUNK,
    Array,
    check_labels,
    check_logits,
    check_rows,
    compute_dtype,
    is_fake,
    like,
    to_tensor,
)
from clip_tca.core.tensors import unit as unit_rows

log = logging.getLogger("clip_tca.adapters.base")
class_log = log.getChild("classes")
"""About single classes: silent in an evaluation, whose record tells ``clip-tca explain`` the same."""

A = TypeVar("A", bound="Adapter")

BLOCK = 1024
"""Rows adapted at a time: few enough to stay in the processor's cache between one step and the next."""

TOGETHER = 256
"""Rows of a stream that wait to be observed together until the next solution: single rows would cost far more."""


@contextmanager
def silenced(logger: logging.Logger) -> Iterator[None]:
    """Let a logger log no warnings."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(eq=False, repr=False)
class Adapter(Estimator):
    """What all adapters share. Constructors only store; options are checked before the first row.

    Attributes:
        classifier: g, a zero-shot classifier or any linear one.
        normalize: Scale embeddings to unit length first; None is what g is meant for: True for prompts, as CLIP does,
            False for any other head.
        refresh: Images after which a stream solves again (see above).
    """

    classifier: LinearClassifier
    _: KW_ONLY
    normalize: bool | None = cast("bool | None", Normalize())
    refresh: Literal["auto"] | int = "auto"

    linear: ClassVar[bool]
    """Whether the adapted classifier is linear in the embeddings, so that it can be folded and exported."""

    _seen = _held = 0
    _device = cast("torch.device | None", None)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Names of the constructor's arguments after the classifier: what a saved state records."""
        return tuple(option.name for option in fields(cls) if option.init and option.name != "classifier")

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        check_flag("normalize", self.normalize)
        if self.classifier.normalize and not self.normalize:
            raise ValueError(
                "normalize: false, but the classifier scales rows to unit length; leave it out, or take a "
                "LinearClassifier without normalize=True"
            )
        check_whole("refresh", self.refresh, also="auto")
        self.classifier.check_size()

    @property
    def uses_labels(self) -> bool:
        """Whether the options ask for the true labels: an oracle, for comparison only."""
        return False

    @abstractmethod
    def _declare(self, device: torch.device, dtype: torch.dtype, first: int) -> dict[str, Accumulator]:
        """Empty accumulators by name, for rows of ``dtype`` on ``device`` of which the first is number ``first``."""

    @abstractmethod
    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        """Add rows to the accumulators."""

    @abstractmethod
    def _solve(self) -> dict[str, Tensor]:
        """The map for everything observed so far, by name."""

    @abstractmethod
    def _about(self) -> tuple[Tensor, Tensor]:
        """Mean ``(d,)`` and variance ``()``, over all dimensions, of the rows that the map was solved for."""

    @abstractmethod
    def _move(self, z: Tensor) -> Tensor:
        """Adapted embeddings of prepared rows."""

    @abstractmethod
    def _score(self, z: Tensor) -> Tensor:
        """Adapted logits of prepared rows."""

    @abstractmethod
    def warn(self) -> None:
        """Log what the user should know about the fit."""

    @classmethod
    @abstractmethod
    def diagnose(cls, saved: SavedState, classifier: LinearClassifier | None) -> Diagnosis:
        """Figures of a fitted state that need no labels (see :mod:`clip_tca.adapters.diagnosis`).

        Without the classifier, it is recovered from the solution where that holds it.
        """

    # -- fitting -------------------------------------------------------------------------------------------------------

    @property
    def fitted(self) -> bool:
        """Whether anything was seen."""
        return self._device is not None

    def forget(self) -> None:
        """Be as new, with the same options."""
        self.__dict__ = self.get_params()

    def begin(self, device: torch.device, dtype: torch.dtype, first: int = 0) -> None:
        """Forget everything; what follows is a stream of rows of ``dtype`` on ``device``, from row ``first`` on."""
        self._device, self._dtype = device, compute_dtype(dtype)
        self._seen = self._held = 0
        self._solution: dict[str, Tensor] = {}
        self._cast: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}
        self._waiting: list[Tensor] = []
        self._schedule = Schedule(self.classifier.n_classes)
        self._accumulators = self._declare(device, self._dtype, first)

    @torch.inference_mode(False)  # what is learned inside inference_mode can be used and updated outside
    def fit(
        self: A,
        z: Tensor | np.ndarray | Iterable[Any],
        y: object = None,
        *,
        labels: Tensor | np.ndarray | list[int] | None = None,
        logits: Tensor | np.ndarray | None = None,
    ) -> A:
        """Adapt to all test embeddings ``z`` ``(n, d)`` at once; an earlier fit is forgotten.

        Args:
            z: Unlabeled test embeddings as a tensor, an array or anything else that
                :func:`clip_tca.core.conversion.as_array` takes; or any iterable of batches of them, which need not fit
                in memory together.
            y: Ignored, whatever it is; here for scikit-learn's pipelines.
            labels: True classes. Only ``shares="oracle"`` ever looks at them; everything else drops them here.
            logits: ``(n, c)`` class scores of another method for the same images (LinearTCA+): certainty is judged by
                them, in place of the classifier's.
        """
        before = self.__dict__.copy()
        try:
            if is_batches(z):
                self._fit_batches(z, labels, logits)
            else:
                self._fit_rows(self._checked(z), labels, logits)
            if self._seen < 2:
                raise ValueError(
                    f"embeddings: {self._seen} row; fit needs at least 2 (partial_fit takes single images of a stream)"
                )
            self.solve()
        except BaseException:  # an interrupted or impossible fit leaves the earlier one as it was
            self.__dict__ = before
            raise
        self.warn()
        return self

    def _fit_rows(
        self, rows: Tensor, labels: Tensor | np.ndarray | list[int] | None, logits: Tensor | np.ndarray | None
    ) -> None:
        scores = check_logits(logits, rows, self.classifier.n_classes)
        truth = None if labels is None else check_labels(labels, len(rows), self.classifier.n_classes, rows.device)
        self.check_options()
        self._check_labels_given(truth is not None)
        self.begin(rows.device, rows.dtype)
        self._observe_all(rows, truth if self.uses_labels else None, scores)
        if len(rows) > 1 and not is_fake(rows) and all(torch.equal(rows[: len(x)], x) for x in rows[1:].split(CHUNK)):
            log.warning("%s: all %d embeddings are identical", type(self).__name__, len(rows))

    def _fit_batches(self, batches: Iterable[Any], labels: object, logits: object) -> None:
        if labels is not None or logits is not None:
            raise ValueError("embeddings: an iterable of batches goes without labels and logits; give one matrix")
        self.forget()
        for batch in batches:
            self.partial_fit(batch)
        if self._device is None:
            raise ValueError("embeddings: no batches; at least 2 rows are needed")

    @torch.inference_mode(False)
    def partial_fit(
        self: A, batch: Tensor | np.ndarray, y: object = None, *, logits: Tensor | np.ndarray | None = None
    ) -> A:
        """Add the next images of a stream, ``(n, d)`` with n ≥ 1. Everything seen so far counts the same.

        ``y`` is ignored; ``logits`` are as in :meth:`fit`.
        """
        rows = self._checked(batch)
        scores = check_logits(logits, rows, self.classifier.n_classes)
        self._check_labels_given(False)
        if self._device is None:
            self.check_options()
            self.begin(rows.device, rows.dtype)
        elif self._device != rows.device:
            raise ValueError(f"embeddings: on {rows.device}, but this stream began on {self._device}; move the batch")
        self._observe_all(rows, None, scores)
        return self

    def _observe_all(self, rows: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        if self._solution and logits is None and len(rows) < TOGETHER:  # a stream between two solutions
            last = self._prepared(rows if self.normalize else rows.clone())  # the caller may use its tensor again
            self._waiting.append(last)
            self._held += len(rows)
            if self._held >= TOGETHER:
                self._settle()
        else:
            self._settle()
            for start in range(0, len(rows), CHUNK):
                part = slice(start, start + CHUNK)
                also = (None if extra is None else extra[part] for extra in (labels, logits))
                last = self._prepared(rows[part])
                self._observe(last, *also)
        self._seen += len(rows)
        self._schedule.add(len(rows), last if self._solution and logits is None else None)

    def _settle(self) -> None:
        """Observe the rows that wait."""
        if self._waiting:
            rows, self._waiting, self._held = torch.cat(self._waiting), [], 0
            self._observe(rows, None, None)

    @property
    def n_seen_(self) -> int:
        """Number of embeddings seen."""
        self._require_fitted()
        return self._seen

    # -- solving -------------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def solve(self) -> dict[str, Tensor]:
        """Solve for everything observed so far, now; the solution by name."""
        self._settle()
        self.use(self._solve())
        return self._solution

    def use(self, solution: dict[str, Tensor]) -> None:
        """Apply a solution that was found elsewhere, by another process, for what all have observed."""
        self._solution = solution
        self._schedule.solved()
        self._solved_for: tuple[Tensor, Tensor] | None = None
        self._cast.clear()

    @property
    def solution(self) -> dict[str, Tensor]:
        """The solution as it was found last; empty before."""
        return self._solution

    def learned(self, name: str) -> Tensor:
        """One tensor of the solution, brought up to date."""
        self._update()
        return self._solution[name]

    def _update(self) -> None:
        self._require_fitted()
        if self._schedule.pending or not self._solution:
            self.solve()

    # -- several streams, several processes ----------------------------------------------------------------------------

    def begin_segment(self, first: int) -> None:
        """The next row is number ``first`` of the whole stream, whatever has been seen of those before it."""
        for accumulator in self._accumulators.values():
            accumulator.begin_segment(first)

    def end_segment(self, number: int) -> None:
        """The rows since the last segment were segment ``number``.

        Sums over segments are the same to the bit whichever process has seen which.
        """
        for accumulator in self._accumulators.values():
            accumulator.end_segment(number)

    def absorb(self: A, other: A) -> None:
        """Add what another adapter with the same options has observed."""
        self._settle()
        other._settle()
        self._seen += other._seen
        self._schedule.add(other._seen)
        self._schedule.last = other._schedule.last
        for name, accumulator in self._accumulators.items():
            accumulator.merge(other._accumulators[name])

    @torch.inference_mode(False)
    def merge(self: A, other: A) -> A:
        """An adapter that has seen what both have seen, as if ``other``'s images had come after; neither changes.

        Means and covariances are those of one stream to rounding and so is the pseudo-source. Where an evenly spread
        sample is kept (``memory``, ``shares="estimated"``) and overflows, it is drawn from what both have kept.
        """
        self._require_fitted()
        other._require_fitted()
        self._check_same(other)
        merged = type(self)(self.classifier, **self.parameters())
        merged.begin(self._device or torch.device("cpu"), self._dtype)
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def _check_same(self, other: Adapter) -> None:
        if type(self) is not type(other):
            raise ValueError(f"merge: a {type(self).__name__} and a {type(other).__name__}; both must be of one class")
        theirs = other.parameters()
        for name, value in self.parameters().items():
            if value != theirs[name]:
                raise ValueError(
                    f"merge: {name} is {value!r} here and {theirs[name]!r} there; both must have the same options"
                )
        if self.classifier is not other.classifier and self.classifier.fingerprint() != other.classifier.fingerprint():
            raise ValueError("merge: the class texts or their scale differ; both must have the same classifier")

    # -- using ---------------------------------------------------------------------------------------------------------

    def transform(self, z: Array, *, unit: bool = False) -> Array:
        """Adapted embeddings ``(n, d)``, in the dtype of ``z``; with ``unit`` of length one, as an index wants them."""
        moved = self.apply(self._ready(z), score=False)[0]
        return like(unit_rows(moved).to(moved.dtype) if unit else moved, z)

    def logits(self, z: Array) -> Array:
        """Class scores ``(n, c)`` after adaptation, in float32 (float64 for float64 input)."""
        return like(self.apply(self._ready(z), move=False)[1], z)

    def adapt(self, z: Array) -> tuple[Array, Array]:
        """What :meth:`transform` and :meth:`logits` give, at once."""
        moved, scores = self.apply(self._ready(z))
        return like(moved, z), like(scores, z)

    def apply(self, rows: Tensor, move: bool = True, score: bool = True) -> tuple[Tensor, Tensor]:
        """Adapted embeddings and logits of finite rows by the solution as it is; what is not asked for has no rows."""
        if len(rows) <= BLOCK and not move:  # single images of a stream: nothing to be put together
            return rows[:0], self._score(self._prepared(rows))
        moved = rows.new_empty(rows.shape if move else (0, rows.shape[1]))
        shape = (len(rows) if score else 0, self.classifier.n_classes)
        scores = rows.new_empty(shape, dtype=compute_dtype(rows.dtype))
        for start in range(0, len(rows), BLOCK):
            prepared = self._prepared(rows[start : start + BLOCK])
            if move:
                moved[start : start + BLOCK] = self._move(prepared)
            if score:
                scores[start : start + BLOCK] = self._score(prepared)
        return moved, scores

    def folded(self) -> LinearClassifier:
        """The adapted classifier as plain weight and bias: predicting after adaptation costs what it did before.

        Raises:
            ValueError: For a map that is not linear.
        """
        if not self.linear:
            raise ValueError(
                f"{type(self).__name__} is not linear and can't be folded; use LinearTCA or ConditionalTCA"
            )
        weight, bias = self.learned("weight").T.clone(), self.learned("bias").clone()
        return LinearClassifier(weight, bias, classes=self.classifier.classes, normalize=bool(self.normalize))

    def _prepared(self, z: Tensor) -> Tensor:
        return unit_rows(z) if self.normalize else z.to(compute_dtype(z.dtype))

    def _solved(self, name: str, z: Tensor) -> Tensor:
        """A part of the map in the dtype and on the device of ``z``, converted once for each solution."""
        key = (name, z.device, z.dtype)
        if key not in self._cast:
            self._cast[key] = self._solution[name].to(z.device, z.dtype)
        return self._cast[key]

    # -- saving --------------------------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Any]:
        """The options by name."""
        return {name: getattr(self, name) for name in self.options()}

    def state(self) -> SavedState:
        """Options, counters and everything learned: what :meth:`save` writes."""
        self._update()
        solution = {f"solution.{name}": tensor for name, tensor in self._solution.items()}
        return self._saved(solution, {name: part.state() for name, part in self._accumulators.items()})

    def partial_state(self) -> SavedState:
        """Options, counters, g and what was observed, not solved: one part of a fit, to be merged with others."""
        self._settle()
        g = {"classifier.weight": self.classifier.weight, "classifier.bias": self.classifier.bias}
        return self._saved(g, {name: part.partial_state() for name, part in self._accumulators.items()})

    def _saved(self, tensors: dict[str, Tensor], observed: dict[str, dict[str, Tensor]]) -> SavedState:
        parts = {f"{name}.{key}": tensor for name, part in observed.items() for key, tensor in part.items()}
        return SavedState(
            kind=type(self).__name__,
            options=self.parameters(),
            counters={
                "seen": self._seen,
                "last": self._schedule.last,
                "dtype": str(self._dtype).removeprefix("torch."),
            },
            shape=(self.classifier.dim, self.classifier.n_classes),
            classifier=self.classifier.fingerprint(),
            tensors={**tensors, **parts},
            classes=self.classifier.classes,
        )

    def save(self, path: str | Location) -> None:
        """Write the options and everything learned to one safetensors file; a stream can go on from it."""
        save_state(locate(path), self.state())

    @classmethod
    def load(cls: type[A], path: str | Location, classifier: LinearClassifier, device: str | None = None) -> A:
        """Read what :meth:`save` wrote, onto ``device`` (default: where the classifier is).

        A classifier without names of its classes gets those that were saved.
        """
        target = torch.device(device) if device else classifier.device
        saved = read_state(locate(path), target)
        saved.check(path, cls.__name__, classifier)
        classifier = classifier if classifier.classes else classifier.named(saved.classes)
        try:
            adapter = cls(classifier, **saved.options)
            adapter.begin(target, getattr(torch, saved.counters["dtype"]))
            sizes = {"d": classifier.dim, "c": classifier.n_classes}
            for name, accumulator in adapter._accumulators.items():
                accumulator.restore(saved.part(name), sizes)
            adapter._seen, adapter._schedule.last = saved.counters["seen"], saved.counters["last"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: a part of the saved state is missing or wrong ({error}); save it again"
            ) from None
        adapter.use(saved.part("solution"))
        return adapter

    # -- what comes in -------------------------------------------------------------------------------------------------

    def _checked(self, z: object) -> Tensor:
        if not isinstance(self.classifier, LinearClassifier):
            kind = type(self.classifier).__name__
            raise TypeError(
                f"classifier: expected a LinearClassifier, got {kind}; use ZeroShotClassifier(text) or "
                "LinearClassifier(weight, bias)"
            )
        rows = to_tensor(z)
        check_rows(rows, self.classifier.dim)
        return rows

    def _ready(self, z: Tensor | np.ndarray) -> Tensor:
        """Checked rows, with a map that is fresh enough for them."""
        self._require_fitted()
        rows = self._checked(z)
        schedule = self._schedule
        if not self._solution or len(rows) > schedule.last:
            self._update()
        elif self.refresh != "auto":
            if schedule.pending >= self.refresh:
                self._update()
        elif schedule.pending and schedule.due(self._seen, self._count_overruled, self._before):
            self._update()
        return rows

    def _before(self) -> tuple[Tensor, Tensor]:
        """What :meth:`_about` says, found once for each solution."""
        if self._solved_for is None:
            self._solved_for = self._about()
        return self._solved_for

    def _count_overruled(self, z: Tensor) -> int:
        """For how many prepared rows the map and g predict different classes."""
        g = self.classifier
        return int((self._score(z).argmax(dim=1) != g.exact_logits(z).argmax(dim=1)).sum())

    def _check_labels_given(self, given: bool) -> None:
        if self.uses_labels and not given:
            raise ValueError(
                "shares: 'oracle' counts the true labels of the whole test set; call fit(z, labels=…), "
                "or choose one that needs none: estimated, uniform, predicted, global"
            )
