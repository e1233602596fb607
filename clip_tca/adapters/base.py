"""What all adapters share: fit, partial_fit, transform, logits, predict, saving, and scikit-learn's contract.

An adapter *observes* embeddings, which is cheap, and *solves* for its map from what it has observed. ``fit`` forgets
what came before, observes everything and solves. ``partial_fit`` observes a batch of a stream, and solves if a
solution is due:

* with ``refresh=N``, after every N new images;
* with ``refresh="auto"``, when the number of images has doubled since the last solution (ConditionalTCA: grown by
  half; once its sample is full, grown sixfold), or as soon as the map changes far more predictions of a class than
  before, which happens when a stream reaches a new class. For an even stream, all solutions together cost about three
  fits.

``solve`` solves at once: call it at the end of a stream to get what ``fit`` gives for all of its images. Everything
else only reads.

A subclass declares its options as fields. It says what it keeps of a stream (``_start``), how it adds rows
(``_observe``) and how it solves (``_solve``); what that returns becomes attributes with a trailing underscore. If the
solution is not a linear map, it also says how to apply it (``_move``, ``_score``).
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_flag, check_number, check_whole, one_of
from clip_tca.core.conversion import is_batches
from clip_tca.core.remote import Location
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
CHECKED_IMAGES, MOST_CHECKED = 16, 256
"""How many new images of a stream trigger a check that the map still fits, and how many of a batch are checked."""


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
class Adapter(ABC):
    """The base of all adapters. The constructor only stores options; they are checked before the first row.

    Attributes:
        classifier: g, a zero-shot classifier or any other linear one.
        normalize: Scale embeddings to unit length first; None is what g is meant for: True for prompts, as CLIP does,
            False for any other head.
        refresh: New images after which a stream solves again, or ``"auto"`` (see above).
    """

    classifier: LinearClassifier
    _: KW_ONLY
    normalize: bool | None = None
    refresh: Literal["auto"] | int = "auto"

    linear = True
    """Whether the adapted classifier is linear in the embeddings, so that it can be folded and exported."""
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Learned attributes, which have a trailing underscore."""

    _growth = 1.0  # new images, as a share of those solved for, after which a stream solves again
    _head = cast("LinearClassifier | None", None)  # scores rows that come with logits
    _observed = cast("Any", None)
    _device = cast("torch.device | None", None)
    _solved_at = 0
    _names = cast("tuple[str, ...]", ())

    @property
    def g(self) -> LinearClassifier:
        """The classifier that scores rows as they are kept: ``classifier``, or what reads the logits beside them."""
        return self._head or self.classifier

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
        """What is learned from everything observed, by attribute name without the underscore."""

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
        observed, device, seen = None, None, 0
        for batch in z if batches else [z]:
            rows = self._checked(batch, device)
            if observed is None:
                self.check_options()
                self._check_labels_given(labels is not None)
                observed, device = self._start(), rows.device
            scores = None if logits is None else self._checked_logits(logits, rows)
            truth = None if labels is None else check_labels(labels, len(rows), self.g.n_classes, rows.device)
            self._observe_all(observed, rows, scores, truth if self.uses_labels else None)
            seen += len(rows)
        if seen < 2:
            rows_seen = f"{seen} row{'s' * (seen != 1)}"
            raise ValueError(f"embeddings: {rows_seen}; fit needs at least 2 (partial_fit takes single images)")
        learned = self._solve(observed)  # until here, an earlier fit stays as it was
        self._begin(observed, rows.device, seen)
        self._learn(learned)
        self._warn()
        return self

    @torch.inference_mode(False)
    def partial_fit(
        self: A, batch: Tensor | np.ndarray, y: object = None, *, logits: Tensor | np.ndarray | None = None
    ) -> A:
        """Add the next images of a stream, ``(n, d)`` with n ≥ 1, and solve if a solution is due.

        All images seen so far have the same weight. ``y`` is ignored; ``logits`` are as in :meth:`fit`.
        """
        rows = self._checked(batch, self._device)
        scores = None if logits is None else self._checked_logits(logits, rows)
        self._check_labels_given(False)
        if self._observed is None:
            self.check_options()
            self._begin(self._start(), rows.device)
        if self._waiting and (scores is None) != (self._waiting[-1][1] is None):
            self._settle()
        rows = rows.clone()  # the caller may use its tensor again
        self._waiting.append((rows, scores))
        self._waiting_images += len(rows)
        self.n_seen_ += len(rows)
        if self._is_due(rows):
            self.solve()
        elif self._waiting_images >= CHUNK:
            self._settle()
        return self

    @torch.inference_mode(False)
    def solve(self: A) -> A:
        """Solve for everything observed so far, now: at the end of a stream this gives what ``fit`` gives."""
        if self._observed is None:
            self._require_fitted()
        self._settle()
        self._learn(self._solve(self._observed))
        return self

    def _begin(self, observed: Any, device: torch.device, seen: int = 0) -> None:
        self._observed, self._device, self.n_seen_, self._solved_at = observed, device, seen, 0
        self._waiting: list[tuple[Tensor, Tensor | None]] = []
        self._unchecked: list[Tensor] = []
        self._waiting_images = 0
        self._overruled, self._checked_images = torch.zeros(self.g.n_classes, device=device), 0

    def _learn(self, learned: dict[str, Tensor]) -> None:
        for name, value in learned.items():
            setattr(self, f"{name}_", value)
        self._names = tuple(learned)
        self._solved_at = self.n_seen_

    def _observe_all(self, observed: Any, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        """Observe rows, a chunk at a time."""
        for start in range(0, len(z), CHUNK):
            place = slice(start, start + CHUNK)
            prepared = self._prepared(z[place] if self._scales else z[place].clone())  # rows may be kept
            self._observe(observed, prepared, *(None if extra is None else extra[place] for extra in (logits, labels)))

    def _settle(self) -> None:
        """Observe the rows that wait: single rows would cost far more."""
        if self._waiting:
            parts, scores = zip(*self._waiting, strict=True)
            self._waiting, self._waiting_images = [], 0
            self._observe_all(self._observed, torch.cat(parts), None if scores[0] is None else torch.cat(scores), None)

    def _is_due(self, rows: Tensor) -> bool:
        """Whether a stream has to be solved again; ``rows`` are its newest."""
        new = self.n_seen_ - self._solved_at
        if self.refresh != "auto" or not self._solved_at:
            return not self._solved_at or new >= int(self.refresh)
        self._unchecked.append(rows[-MOST_CHECKED:])
        overruled = sum(map(len, self._unchecked)) >= CHECKED_IMAGES and self._is_overruled()
        grown = new >= max(CHECKED_IMAGES, (5 if self._observed.full else self._growth) * self._solved_at)
        return overruled or grown

    def _is_overruled(self) -> bool:
        """Whether the map overrules g on far more of the unchecked images of some class than is usual."""
        z, g = self._prepared(torch.cat(self._unchecked)), self.g
        self._unchecked = []
        zero_shot = g.predict(z)
        overruled = torch.bincount(zero_shot[self._score(z).argmax(dim=1) != zero_shot], minlength=g.n_classes)
        usual = self._overruled * (len(z) / (self._checked_images + CHECKED_IMAGES))
        self._overruled, self._checked_images = self._overruled + overruled, self._checked_images + len(z)
        return bool((overruled > usual + 2 * usual.sqrt() + 2 + len(z) / 64).any())

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
        self._require_fitted()
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
        self._require_fitted()
        return self._applied(self._joined(z, logits), self._score)[0]

    def _joined(self, z: Any, logits: Any) -> Any:
        """Rows as the fit keeps them."""
        if logits is not None:
            kind = type(self).__name__
            raise ValueError(f"logits: {kind} predicts from embeddings alone; leave them out: predict(z)")
        return z

    def _applied(self, z: Any, *maps: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What each of ``maps`` makes of all rows, a block at a time."""
        self._require_fitted()
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

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Location) -> None:
        """Write options, classifier and everything learned to one safetensors file; a stream can continue from it."""
        from clip_tca.adapters.state import save_adapter

        self._require_fitted()
        self._settle()
        save_adapter(self, path)

    def save_pretrained(
        self, folder: str | Path, *, model: str | None = None, data: str | None = None, results: str | None = None
    ) -> None:
        """Write a folder for the Hugging Face hub: the state, ``config.json`` and a model card (``README.md``).

        Args:
            folder: It is made if it does not exist.
            model: The model that made the embeddings, for the card.
            data: The data that the adapter was fitted to, for the card.
            results: Figures for the card, in Markdown, such as ``clip_tca.render(record, "markdown")``.
        """
        from clip_tca.adapters.state import save_folder

        self._require_fitted()
        save_folder(self, folder, model=model, data=data, results=results)

    def push_to_hub(
        self,
        hub_id: str,
        *,
        model: str | None = None,
        data: str | None = None,
        results: str | None = None,
        private: bool = False,
    ) -> str:
        """Upload the files of :meth:`save_pretrained` to the hub as ``OWNER/NAME``, and return their address.

        You have to be logged in (``hf auth login``). The state holds a sample of the embeddings; they become public
        unless the model is ``private``.
        """
        from clip_tca.adapters.state import push

        self._require_fitted()
        return push(self, hub_id, private, model=model, data=data, results=results)

    @classmethod
    def from_pretrained(
        cls: type[A], source: str | Location, device: str | torch.device | None = None, *, revision: str | None = None
    ) -> A:
        """Read a saved adapter of this class, as :func:`clip_tca.from_pretrained` reads one of any class."""
        from clip_tca.adapters.state import load, state_file

        adapter = load(state_file(source, revision), device, cls)
        if not isinstance(adapter, cls):
            kind = type(adapter).__name__
            raise ValueError(f"{source}: holds a {kind}, not a {cls.__name__}; use clip_tca.from_pretrained")
        return adapter

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
            self._observed, self._device, self._solved_at, self._head = None, None, 0, None
            for name in ("n_seen", *self._names):
                vars(self).pop(f"{name}_", None)
        return self

    def __repr__(self) -> str:
        defaults = {option.name: option.default for option in fields(self)}
        given = {name: value for name, value in self.get_params().items() if name != "classifier"}
        changed = [f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        classifier = [] if self.classifier is None else [repr(self.classifier)]
        return f"{type(self).__name__}({', '.join([*classifier, *changed])})"

    @property
    def classes_(self) -> np.ndarray:
        """The classes ``(c,)`` as :meth:`predict` gives them: 0 to c - 1, in the order of the classifier."""
        return np.arange(self.g.n_classes)

    @property
    def n_features_in_(self) -> int:
        """Dimension of the embeddings; only there after fitting."""
        self._require_fitted()
        return self.g.dim

    def __sklearn_is_fitted__(self) -> bool:
        return self._solved_at > 0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            classifier_tags=ClassifierTags(poor_score=True),
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if not self._solved_at:  # scikit-learn's own error where it is in use
            kind = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", NotFittedError)
            raise kind(f"{type(self).__name__} is not fitted yet; call fit(z) or partial_fit(batch) first")

    def _checked(self, z: object, device: torch.device | None = None) -> Tensor:
        """Embeddings as rows; those of a stream have to be on the ``device`` on which it began."""
        if not isinstance(self.g, LinearClassifier):
            kind = type(self.g).__name__
            raise TypeError(
                f"classifier: expected a LinearClassifier, got {kind}; use ZeroShotClassifier(text) or "
                "LinearClassifier(weight, bias)"
            )
        rows = to_tensor(z)
        if device not in (None, rows.device):
            raise ValueError(f"embeddings: on {rows.device}, but this stream began on {device}; move the batch")
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
