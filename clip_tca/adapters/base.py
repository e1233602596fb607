"""The contract that every adapter keeps: fit / partial_fit / transform / logits / predict / save / load.

An adapter *observes* embeddings (cheap, for every batch) and *solves* for its map from what it has observed (dear).
``fit`` is: forget, observe everything, solve. ``partial_fit`` only observes; the map is solved again when it is read
and due:

* reading the learned state (``W_``, …), saving, or transforming more rows than the last batch had: always;
* reading a batch no larger than the last one (``partial_fit(x); predict(x)``, the online loop): only when the images
  seen since the last solution are a tenth of all (``refresh="auto"``), or are ``refresh`` of them.

So a stream that has ended gives the one-shot result, and batch size 1 costs little for each image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.learner import Learner
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.tensors import (
    Array,
    check_labels,
    check_logits,
    check_rows,
    is_fake,
    like,
    to_tensor,
)

log = logging.getLogger("clip_tca.adapters.base")

A = TypeVar("A", bound="Adapter")

BLOCK = 1024
"""Rows adapted at a time: few enough to stay in the processor's cache between one step and the next."""

_ORACLE = (
    "balance: 'oracle' counts the true labels of the whole test set; call fit(z, labels=…), "
    "or choose one that needs none: estimated, global, uniform, predicted"
)


class Adapter(Learner):
    """What LinearTCA, MLPTCA and ConditionalTCA share. Constructors only store; options are checked by ``fit``."""

    # -- fitting -------------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # what is learned inside inference_mode can be used and updated outside
    def fit(
        self: A,
        z: Tensor | np.ndarray | Iterable[Tensor | np.ndarray],
        labels: Tensor | np.ndarray | list[int] | None = None,
        *,
        logits: Tensor | np.ndarray | None = None,
    ) -> A:
        """Adapt to all test embeddings ``z`` ``(n, d)`` at once; an earlier fit is forgotten.

        Args:
            z: Unlabeled test embeddings, or any iterable of batches of them, which need not fit in memory together.
            labels: True classes. Only ``balance="oracle"`` ever looks at them; everything else drops them here.
            logits: ``(n, c)`` class scores of another method for the same images (LinearTCA+): certainty is judged by
                them, in place of the classifier's.
        """
        before = self.__dict__.copy()
        try:
            if isinstance(z, (Tensor, np.ndarray)) or not isinstance(z, Iterable):
                self._fit_rows(self._checked(z), labels, logits)
            else:
                self._fit_batches(z, labels, logits)
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
        self,
        rows: Tensor,
        labels: Tensor | np.ndarray | list[int] | None,
        logits: Tensor | np.ndarray | None,
    ) -> None:
        scores = check_logits(logits, rows, self.classifier.n_classes)
        truth = None if labels is None else check_labels(labels, len(rows), self.classifier.n_classes, rows.device)
        self.check_options()
        if self.uses_labels and truth is None:
            raise ValueError(_ORACLE)
        self.begin(rows.device, rows.dtype)
        self._observe_all(rows, truth if self.uses_labels else None, scores)
        if len(rows) > 1 and not is_fake(rows) and torch.equal(rows, rows[:1].expand_as(rows)):
            log.warning("%s: all %d embeddings are identical", type(self).__name__, len(rows))

    def _fit_batches(self, batches: Iterable[Tensor | np.ndarray], labels: object, logits: object) -> None:
        if labels is not None or logits is not None:
            raise ValueError("embeddings: an iterable of batches goes without labels and logits; give one matrix")
        self._device = None
        for batch in batches:
            self.partial_fit(batch)
        if self._device is None:
            raise ValueError("embeddings: no batches; at least 2 rows are needed")

    @torch.inference_mode(False)
    def partial_fit(self: A, batch: Tensor | np.ndarray, *, logits: Tensor | np.ndarray | None = None) -> A:
        """Add the next images of a stream, ``(n, d)`` with n ≥ 1. Everything seen so far counts the same.

        ``logits`` are as in :meth:`fit`.
        """
        rows = self._checked(batch)
        scores = check_logits(logits, rows, self.classifier.n_classes)
        if self.uses_labels:
            raise ValueError(_ORACLE)
        if self._device is None:
            self.check_options()
            self.begin(rows.device, rows.dtype)
        elif self._device != rows.device:
            raise ValueError(f"embeddings: on {rows.device}, but this stream began on {self._device}; move the batch")
        self._observe_all(rows, None, scores)
        return self

    @torch.inference_mode(False)
    def merge(self: A, other: A) -> A:
        """An adapter that has seen what both have seen, as if ``other``'s images had come after; neither changes.

        Means and covariances are those of one stream to rounding and so is the pseudo-source. Where an evenly spread
        sample is kept (``memory``, ``balance="estimated"``) and overflows, it is drawn from what both have kept.
        """
        self._require_fitted()
        other._require_fitted()
        self._check_same(other)
        merged = type(self)(self.classifier, **{name: getattr(self, name) for name in self.options})  # type: ignore[call-arg]
        merged.begin(self._device or torch.device("cpu"), self._dtype)
        for part in (self, other):
            part._settle()
            merged.absorb(part)
        return merged

    def _check_same(self, other: Adapter) -> None:
        if type(self) is not type(other):
            raise ValueError(f"merge: a {type(self).__name__} and a {type(other).__name__}; both must be of one class")
        for name in self.options:
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"merge: {name} is {getattr(self, name)!r} here and {getattr(other, name)!r} there; "
                    "both must have the same options"
                )
        mine, its = self.classifier, other.classifier
        if mine is not its and mine.fingerprint() != its.fingerprint():
            raise ValueError("merge: the class texts or their scale differ; both must have the same classifier")

    @property
    def n_seen_(self) -> int:
        """Number of embeddings seen."""
        self._require_fitted()
        return self._seen

    # -- using ---------------------------------------------------------------------------------------------------------

    def transform(self, z: Array) -> Array:
        """Adapted embeddings ``(n, d)``, in the dtype of ``z``."""
        return like(self.apply(self._ready(z), score=False)[0], z)

    def logits(self, z: Array) -> Array:
        """Class scores ``(n, c)`` after adaptation, in float32 (float64 for float64 input)."""
        return like(self.apply(self._ready(z), move=False)[1], z)

    def adapt(self, z: Array) -> tuple[Array, Array]:
        """What :meth:`transform` and :meth:`logits` give, in one go."""
        moved, scores = self.apply(self._ready(z))
        return like(moved, z), like(scores, z)

    def apply(self, rows: Tensor, move: bool = True, score: bool = True) -> tuple[Tensor, Tensor]:
        """Adapted embeddings and logits of checked rows; what is not asked for has no rows."""
        moved = rows.new_empty(rows.shape if move else (0, rows.shape[1]))
        scores = []
        for start in range(0, len(rows), BLOCK):
            prepared = self._prepared(rows[start : start + BLOCK])
            if move:
                moved[start : start + BLOCK] = self._move(prepared)
            if score:
                scores.append(self._score(prepared))
        return moved, torch.cat(scores) if scores else moved[:0]

    def predict(self, z: Array) -> Array:
        """Predicted classes ``(n,)`` after adaptation.

        In a stream, a batch no larger than the last one may be read with a map up to ``refresh`` images old; anything
        larger, ``W_`` or :meth:`save` bring it up to date first.
        """
        return like(to_tensor(self.logits(z)).argmax(dim=1), z)

    def folded(self) -> LinearClassifier:
        """The adapted classifier as plain weight and bias: predicting after adaptation costs what it did before.

        Raises:
            ValueError: For a map that is not linear.
        """
        self._update()
        if "weight" not in self._solution:
            raise ValueError(
                f"{type(self).__name__} is not linear and can't be folded; use LinearTCA or ConditionalTCA"
            )
        return LinearClassifier(
            self._solution["weight"].T.clone(),
            self._solution["bias"].clone(),
            classes=self.classifier.classes,
            normalize=self.normalize,
        )

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the options and everything learned to one safetensors file; a stream can go on from it."""
        from clip_tca.adapters.state import save_state

        self._update()
        counters = {"seen": self._seen, "last": self._last, "dtype": str(self._dtype).removeprefix("torch.")}
        save_state(Path(path), self, {**self._solution_state(), **self._state()}, counters)

    @classmethod
    def load(cls: type[A], path: str | Path, classifier: ZeroShotClassifier, device: str | None = None) -> A:
        """Read what :meth:`save` wrote, onto ``device`` (default: where ``classifier.text`` is)."""
        from clip_tca.adapters.state import load_state

        target = torch.device(device) if device else classifier.device
        options, counters, tensors = load_state(Path(path), cls.__name__, classifier, target)
        solution = {name.removeprefix("solution."): t for name, t in tensors.items() if name.startswith("solution.")}
        try:
            adapter = cls(classifier, **options)  # type: ignore[call-arg]
            adapter.begin(target, getattr(torch, counters["dtype"]))
            adapter._restore(tensors)
            adapter._seen, adapter._last = counters["seen"], counters["last"]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: a part of the saved state is missing or wrong ({error}); save it again"
            ) from None
        adapter._solution = solution
        return adapter

    # -- what comes in -------------------------------------------------------------------------------------------------

    def _checked(self, z: Tensor | np.ndarray) -> Tensor:
        if not isinstance(self.classifier, ZeroShotClassifier):
            kind = type(self.classifier).__name__
            raise TypeError(f"classifier: expected a ZeroShotClassifier, got {kind}; use ZeroShotClassifier(text)")
        rows = to_tensor(z)
        check_rows(rows, self.classifier.dim)
        return rows

    def _ready(self, z: Tensor | np.ndarray) -> Tensor:
        """Checked rows, with a map that is fresh enough for them."""
        self._require_fitted()
        rows = self._checked(z)
        wait = max(1, self._seen // 10) if self.refresh == "auto" else self.refresh
        if not self._solution or self._pending >= wait or len(rows) > self._last:
            self._update()
        return rows
