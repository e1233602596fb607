"""What all adapters share: fit, partial_fit, transform, logits, predict, saving, and scikit-learn's contract.

An adapter *observes* embeddings, which is cheap, and *solves* for its map from what it has observed. ``fit`` forgets
what came before, observes everything and solves. ``partial_fit`` observes a batch of a stream, and solves if a
solution is due (adapters/stream.py). ``solve`` solves at once: at the end of a stream this gives what ``fit`` gives for
all of its rows. Everything else only reads.

A subclass declares its options as fields. It says what it keeps of a stream (``_start``), how it adds rows
(``_observe``) and what it learns of them (``_solve``), by attribute, each with a trailing underscore. If the solution
is not a linear map, it also says how to apply it (``_move``, ``_score``).
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal, TypeVar, cast, overload

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.state import Saving
from clip_tca.adapters.stream import Stream
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.checks import check_flag, check_number, check_whole, counted, one_of
from clip_tca.core.conversion import is_batches
from clip_tca.core.tensors import CHUNK, Array, check_labels, check_rows, compute_dtype, like, to_tensor
from clip_tca.core.tensors import unit as unit_rows

log = logging.getLogger("clip_tca.adapters")
class_log = log.getChild("classes")
"""Warnings about single classes. An evaluation silences them, because its record holds the same facts."""

A = TypeVar("A", bound="Adapter")
GivenShares = Sequence[float] | Mapping[str, float] | Tensor | np.ndarray
Shares = Literal["estimated", "uniform", "predicted", "global", "oracle"] | GivenShares

ROWS_AT_ONCE = 1024
"""Rows adapted at a time: few enough to stay in the processor's cache."""


class NotFittedError(ValueError, AttributeError):
    """An adapter was used before it was fitted."""


@contextmanager
def silenced(logger: logging.Logger) -> Iterator[None]:
    """Let a logger log no warnings."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def warnings_about(domain: str) -> Iterator[None]:
    """Let the warnings of adapters begin with the name of a domain."""

    def name(record: logging.LogRecord) -> bool:
        record.msg = f"{domain.replace('%', '%%')}: {record.msg}"
        return True

    log.addFilter(name)
    try:
        yield
    finally:
        log.removeFilter(name)


@dataclass(eq=False, repr=False)
class Adapter(Saving, ABC):
    """The base of all adapters. The constructor only stores options; they are checked before the first row.

    Attributes:
        classifier: g, a zero-shot classifier or any other linear one; or class embeddings ``(c, d)`` for a zero-shot
            classifier of scale 100.
        normalize: Scale embeddings to unit length first; None is what g is meant for: True for prompts, as CLIP does,
            False for any other head.
        refresh: New images after which a stream solves again, or ``"auto"`` (see above).
    """

    classifier: LinearClassifier | Tensor | np.ndarray
    _: KW_ONLY
    normalize: bool | None = None
    refresh: Literal["auto"] | int = "auto"

    W_: Tensor = field(init=False)
    offset_: Tensor = field(init=False)
    weight_: Tensor = field(init=False)
    bias_: Tensor = field(init=False)

    linear = True  # the adapted classifier is linear in the embeddings, so that it can be folded and exported
    _growth = 1.0  # new rows, as a share of those solved for, after which a stream solves again
    _head = cast("LinearClassifier | None", None)  # scores rows that come with logits
    _stream = cast("Stream | None", None)
    _zero_shot = cast("tuple[Any, LinearClassifier] | None", None)  # class embeddings, and the classifier made of them

    @property
    def g(self) -> LinearClassifier:
        """The classifier that scores rows as they are kept."""
        return self._head or self.own_classifier

    @property
    def own_classifier(self) -> LinearClassifier:
        """The option ``classifier``; one made of it if it holds class embeddings."""
        if isinstance(self.classifier, LinearClassifier):
            return self.classifier
        if self._zero_shot is None or self._zero_shot[0] is not self.classifier:
            self._zero_shot = self.classifier, ZeroShotClassifier(self.classifier)
        return self._zero_shot[1]

    @property
    def n_seen_(self) -> int:
        """Number of embeddings seen; only there after fitting."""
        if self._stream is None:
            raise AttributeError("n_seen_")
        return self._stream.seen

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        if self.normalize is not None:
            check_flag("normalize", self.normalize)
        if self.g.normalize and self.normalize is False:
            raise ValueError(
                "normalize: False, but the classifier scales rows to unit length; leave it out, or use a "
                "LinearClassifier without normalize=True"
            )
        check_whole("refresh", self.refresh, also="auto")
        self.g.check_size()

    @property
    def uses_labels(self) -> bool:
        """Whether the options ask for the true labels: an oracle, for comparison only."""
        return False

    @abstractmethod
    def _start(self) -> Any:
        """What is kept of a stream, still empty; ``full`` says whether its sample has had to leave rows out."""

    @abstractmethod
    def _observe(self, observed: Any, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        """Add prepared rows to what is kept."""

    @abstractmethod
    def _solve(self, observed: Any) -> dict[str, Tensor]:
        """What is learned from everything observed, by attribute name."""

    def _move(self, z: Tensor) -> Tensor:
        """Adapted embeddings of prepared rows."""
        return torch.addmm(self.offset_.to(z), z, self.W_.to(z))

    def _score(self, z: Tensor) -> Tensor:
        """Adapted logits of prepared rows."""
        return torch.addmm(self.bias_.to(z), z, self.weight_.to(z))

    @abstractmethod
    def _warn(self) -> None:
        """Log what the user should know about the fit."""

    # -- fitting -------------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # what is learned inside inference_mode can be used and updated outside
    def fit(
        self: A,
        z: Tensor | np.ndarray | Iterable[Any],
        y: object = None,
        *,
        labels: Tensor | np.ndarray | list[int] | None = None,
        logits: Tensor | np.ndarray | None = None,
    ) -> A:
        """Adapt to all test embeddings ``z`` ``(n, d)`` at once, and forget an earlier fit.

        Args:
            z: Unlabeled test embeddings: a tensor, an array or anything else that
                :func:`clip_tca.core.conversion.as_array` takes; or an iterable of batches, which need not fit in memory
                together.
            y: Ignored; here for scikit-learn's pipelines.
            labels: True classes, for ``shares="oracle"`` only; everything else ignores them.
            logits: ``(n, c)`` class scores of another method for the same images (LinearTCA+), used instead of the
                classifier's to judge certainty.
        """
        batches = is_batches(z)
        if batches and (labels is not None or logits is not None):
            raise ValueError("embeddings: labels and logits need one matrix, not an iterable of batches")
        stream: Stream | None = None
        for batch in z if batches else [z]:
            rows = self._checked(batch, stream)
            if stream is None:
                self.check_options()
                self._check_labels_given(labels is not None)
                stream = Stream(self._start(), self.g.n_classes, rows.device)
            scores = None if logits is None else self._checked_logits(logits, rows)
            truth = None if labels is None else check_labels(labels, len(rows), self.g.n_classes, rows.device)
            self._observe_all(stream.observed, rows, scores, truth if self.uses_labels else None)
            stream.seen += len(rows)
        if stream is None or stream.seen < 2:
            rows_seen = counted(0 if stream is None else stream.seen, "row")
            raise ValueError(f"embeddings: {rows_seen}; fit needs at least 2 (partial_fit takes single images)")
        learned = self._solve(stream.observed)  # until here, an earlier fit stays as it was
        vars(self).update(learned)
        stream.solved_at, self._stream = stream.seen, stream
        self._warn()
        return self

    @torch.inference_mode(False)
    def partial_fit(
        self: A, batch: Tensor | np.ndarray, y: object = None, *, logits: Tensor | np.ndarray | None = None
    ) -> A:
        """Add the next images of a stream, ``(n, d)`` with n ≥ 1, and solve if a solution is due.

        All images seen so far have the same weight. ``y`` is ignored; ``logits`` are as in :meth:`fit`.
        """
        rows = self._checked(batch, self._stream)
        scores = None if logits is None else self._checked_logits(logits, rows)
        self._check_labels_given(False)
        if self._stream is None:
            self.check_options()
            self._stream = Stream(self._start(), self.g.n_classes, rows.device)
        stream = self._stream
        if stream.waiting and (scores is None) != (stream.waiting[-1][1] is None):
            self._settle()
        stream.add(rows, scores)
        if stream.is_due(rows, self.refresh, self._growth, self._overruled):
            self.solve()
        elif stream.waiting_rows >= CHUNK:
            self._settle()
        return self

    @torch.inference_mode(False)
    def solve(self: A) -> A:
        """Solve for everything observed so far, now: at the end of a stream this gives what ``fit`` gives."""
        stream = self._stream or self._fitted()
        self._settle()
        vars(self).update(self._solve(stream.observed))
        stream.solved_at = stream.seen
        return self

    def _observe_all(self, observed: Any, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        """Observe rows, a chunk at a time."""
        for start in range(0, len(z), CHUNK):
            part = slice(start, start + CHUNK)
            prepared = self._prepared(z[part] if self._scales else z[part].clone())  # rows may be kept
            self._observe(observed, prepared, *(None if extra is None else extra[part] for extra in (logits, labels)))

    def _settle(self) -> None:
        """Observe the rows that wait."""
        if self._stream is not None and self._stream.waiting:
            self._observe_all(self._stream.observed, *self._stream.take_waiting(), None)

    def _overruled(self, rows: Tensor) -> Tensor:
        """How many rows of each class of g ``(c,)`` get another class from the map."""
        z = self._prepared(rows)
        zero_shot = self.g.predict(z)
        return torch.bincount(zero_shot[self._score(z).argmax(dim=1) != zero_shot], minlength=self.g.n_classes)

    # -- using ---------------------------------------------------------------------------------------------------------

    def transform(self, z: Array, *, unit: bool = False) -> Array:
        """Adapted embeddings ``(n, d)``, in the dtype of ``z``; with ``unit`` scaled to length one, as for an index."""
        moved = self._applied(z, self._move)[0]
        return like((unit_rows(moved) if unit else moved).to(to_tensor(z).dtype), z)

    def logits(self, z: Array, *, logits: Array | None = None) -> Array:
        """Class scores ``(n, c)`` after adaptation, in float32 (float64 for float64 input).

        This and what follows takes the ``logits`` of the rows beside them if ConditionalTCA was fitted with logits.
        """
        return like(self._scores(z, logits), z)

    def adapt(self, z: Array) -> tuple[Array, Array]:
        """Return both :meth:`transform` and :meth:`logits`; faster than calling one after the other."""
        moved, scores = self._applied(z, self._move, self._score)
        return like(moved.to(to_tensor(z).dtype), z), like(scores, z)

    def predict_proba(self, z: Array, *, logits: Array | None = None) -> Array:
        """Class probabilities ``(n, c)`` after adaptation: softmax of :meth:`logits`."""
        return like(self._scores(z, logits).softmax(dim=1), z)

    @overload
    def predict(self, z: Array, *, names: Literal[False] = False, logits: Array | None = None) -> Array: ...
    @overload
    def predict(self, z: Array, *, names: bool, logits: Array | None = None) -> Array | np.ndarray: ...
    def predict(self, z: Array, *, names: bool = False, logits: Array | None = None) -> Array | np.ndarray:
        """Predicted classes ``(n,)`` after adaptation; with ``names`` an array of the names that the classifier has."""
        best = self._scores(z, logits).argmax(dim=1)
        return self.g.names_of(best) if names else like(best, z)

    def score(self, z: Array, y: Any, *, logits: Array | None = None) -> float:
        """Accuracy: the share of rows whose predicted class is ``y`` ``(n,)``, given as numbers or as names."""
        return self.g.accuracy(self._scores(z, logits).argmax(dim=1), y)

    def folded(self) -> LinearClassifier:
        """The adapted classifier as plain weight and bias: predicting costs what it did before adaptation."""
        self._fitted()
        if not self.linear:
            raise ValueError(f"{type(self).__name__} is not linear; use LinearTCA or ConditionalTCA")
        weight, bias = self.weight_.T.clone(), self.bias_.clone()
        return LinearClassifier(weight, bias, classes=self.g.classes, normalize=self._scales)

    def explain(self) -> str:
        """Explain what was learned and whether to trust it, in words and then in figures (``clip-tca explain``)."""
        from clip_tca.adapters.diagnosis import diagnose
        from clip_tca.explanation import explanation

        return "\n".join(explanation(diagnose(self), self.g.class_names()))

    def _scores(self, z: Any, logits: Any) -> Tensor:
        """Adapted logits ``(n, c)`` of rows with the logits that belong to them, if there are any."""
        self._fitted()
        return self._applied(self._joined(z, logits), self._score)[0]

    def _joined(self, z: Any, logits: Any) -> Any:
        """Rows as the fit keeps them."""
        if logits is not None:
            kind = type(self).__name__
            raise ValueError(f"logits: {kind} predicts from embeddings alone; leave them out: predict(z)")
        return z

    def _applied(self, z: Any, *maps: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What each of ``maps`` makes of all rows, a block at a time."""
        self._fitted()
        blocks = map(self._prepared, self._checked(z).split(ROWS_AT_ONCE))
        made = zip(*([apply(block) for apply in maps] for block in blocks), strict=True)
        return [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in made]

    def _prepared(self, z: Tensor) -> Tensor:
        return unit_rows(z) if self._scales else z.to(compute_dtype(z.dtype))

    @property
    def _scales(self) -> bool:
        """Whether rows are scaled to unit length."""
        return self.g.unit_rows if self.normalize is None else self.normalize

    @property
    def _of_unit_length(self) -> bool:
        """Whether embeddings are scaled to unit length before anything is learned from them."""
        return self._scales

    # -- scikit-learn's contract ---------------------------------------------------------------------------------------

    def fit_transform(self, z: Array, y: object = None) -> Array:
        """:meth:`fit`, then the adapted embeddings; ``y`` is ignored."""
        return self.fit(z).transform(z)

    def fit_predict(self, z: Array, y: object = None) -> Array:
        """:meth:`fit`, then the predicted classes; ``y`` is ignored."""
        return self.fit(z).predict(z)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments as they were given, the classifier among them; ``deep`` changes nothing."""
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}

    def options(self) -> dict[str, Any]:
        """The options without the classifier; ``normalize`` is resolved if it was None."""
        given = {name: value for name, value in self.get_params().items() if name != "classifier"}
        return {**given, "normalize": self._scales}

    def set_params(self: A, **params: Any) -> A:
        """Change arguments of the constructor; what was learned with the earlier ones is forgotten."""
        allowed = list(self.get_params())
        if unknown := [name for name in params if name not in allowed]:
            raise ValueError(f"{type(self).__name__}: no parameter {unknown[0]!r}; allowed are {', '.join(allowed)}")
        for name, value in params.items():
            setattr(self, name, value)
        if params:
            self._stream = self._head = None
            for name in self.learned():
                delattr(self, name)
        return self

    def learned(self) -> dict[str, Tensor]:
        """What was learned, by attribute name; empty before a fit."""
        return {name: value for name, value in vars(self).items() if name.endswith("_")}

    def __repr__(self) -> str:
        defaults = {option.name: option.default for option in fields(self)}
        given = {name: value for name, value in self.get_params().items() if name != "classifier"}
        changed = [f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        shape = getattr(self.classifier, "shape", None)  # of class embeddings
        classifier = [] if self.classifier is None else [f"array {tuple(shape)}" if shape else repr(self.classifier)]
        return f"{type(self).__name__}({', '.join([*classifier, *changed])})"

    @property
    def classes_(self) -> np.ndarray:
        """The classes ``(c,)`` as :meth:`predict` gives them: 0 to c - 1, in the order of the classifier."""
        return np.arange(self.g.n_classes)

    @property
    def n_features_in_(self) -> int:
        """Dimension of the embeddings; only there after fitting."""
        self._fitted()
        return self.g.dim

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None and self._stream.solved_at > 0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            classifier_tags=ClassifierTags(poor_score=True),
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def _fitted(self) -> Stream:
        """The stream of a fitted adapter; NotFittedError if it is not fitted."""
        if self._stream is None or not self._stream.solved_at:  # scikit-learn's own error where it is in use
            kind = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", NotFittedError)
            raise kind(f"{type(self).__name__} is not fitted yet; call fit(z) or partial_fit(batch) first")
        return self._stream

    def _checked(self, z: object, stream: Stream | None = None) -> Tensor:
        """Embeddings as rows; those of a stream have to be on the device on which it began."""
        if self._head is None and (self.classifier is None or isinstance(self.classifier, (str, torch.nn.Module))):
            kind = type(self.classifier).__name__
            raise TypeError(
                f"classifier: {kind}; use class embeddings (classes, d), ZeroShotClassifier(text, scale) or "
                "LinearClassifier(weight, bias)"
            )
        rows = to_tensor(z)
        if stream is not None and stream.device != rows.device:
            raise ValueError(f"embeddings: on {rows.device}, but this stream began on {stream.device}; move the batch")
        check_rows(rows, self.g.dim)
        return rows

    def _checked_logits(self, logits: Tensor | np.ndarray, rows: Tensor) -> Tensor:
        """Another method's class scores of the rows, on their device."""
        scores, needed = to_tensor(logits, "logits"), (len(rows), self.g.n_classes)
        if scores.shape != needed:
            raise ValueError(f"logits: shape {tuple(scores.shape)}, but {needed} is needed: (embeddings, classes)")
        check_rows(scores, name="logits")
        return scores.to(rows.device)

    def _check_labels_given(self, given: bool) -> None:
        if self.uses_labels and not given:
            raise ValueError(
                "shares: 'oracle' counts the true labels of the whole test set; call fit(z, labels=…), "
                "or choose one that needs none: estimated, uniform, predicted, global"
            )


# -- class shares ------------------------------------------------------------------------------------------------------


def check_shares(shares: Shares, classifier: LinearClassifier, names: Sequence[str]) -> None:
    """Raise ValueError if ``shares`` is neither one of ``names`` nor a share for each class of ``classifier``."""
    if isinstance(shares, (Tensor, np.ndarray, list, tuple, dict)):
        share_vector(shares, classifier)
    else:
        one_of("shares", shares, (*names, "a number for each class", "{class name: number}"))


def share_vector(shares: Any, classifier: LinearClassifier) -> Tensor:
    """Given shares ``(c,)``, which add up to one.

    Raises:
        ValueError: If there is not one number ≥ 0 for each class, or all are zero.
    """
    c = classifier.n_classes
    if isinstance(shares, dict):
        given = dict(zip(classifier.numbers_of(shares, "shares"), shares.values(), strict=True))
        if missing := [name for i, name in enumerate(classifier.class_names()) if i not in given]:
            raise ValueError(f"shares: none for {missing[0]!r}; give every class a number, absent ones 0")
        shares = [given[i] for i in range(c)]
    values = shares.reshape(-1).tolist() if isinstance(shares, (Tensor, np.ndarray)) else list(shares)
    if len(values) != c:
        raise ValueError(f"shares: {len(values)} numbers for {c} classes; give one for each class, in their order")
    for share in values:
        check_number("shares", share)
    vector = torch.tensor([float(share) for share in values], dtype=torch.float64)
    if not float(vector.sum()) > 0:
        raise ValueError("shares: all are 0; at least one class must be present")
    return (vector / vector.sum()).to(classifier.device)
