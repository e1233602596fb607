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
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from clip_tca.checks import whole
from clip_tca.embeddings import CHUNK, Array, check_labels, check_rows, compute_dtype, is_fake, like, to_tensor, unit
from clip_tca.zero_shot import ZeroShotClassifier

log = logging.getLogger("clip_tca.adapter")

A = TypeVar("A", bound="Adapter")

_ORACLE = (
    "balance: 'oracle' counts the true labels of the whole test set; call fit(z, labels=…), "
    "or choose one that needs none: estimated, global, uniform, predicted"
)


class Adapter(ABC):
    """What LinearTCA, MLPTCA and ConditionalTCA share. Constructors only store; options are checked by ``fit``."""

    options: ClassVar[tuple[str, ...]]
    """Names of the constructor's arguments after the classifier: what a saved state records."""

    classifier: ZeroShotClassifier
    normalize: bool
    refresh: Literal["auto"] | int

    _seen = 0
    _pending = 0
    _last = 0
    _device: torch.device | None = None
    _dtype: torch.dtype
    _solution: dict[str, Tensor]
    _cast: dict[tuple[str, torch.device, torch.dtype], Tensor]

    # -- fitting -------------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # what is learned inside inference_mode can be used and updated outside
    def fit(
        self: A,
        z: Tensor | np.ndarray,
        labels: Tensor | np.ndarray | list[int] | None = None,
        *,
        logits: Tensor | np.ndarray | None = None,
    ) -> A:
        """Adapt to all test embeddings ``z`` ``(n, d)`` at once; an earlier fit is forgotten.

        Args:
            z: Unlabeled test embeddings.
            labels: True classes. Only ``balance="oracle"`` ever looks at them; everything else drops them here.
            logits: ``(n, c)`` class scores of another method for the same images (LinearTCA+): certainty is judged by
                them, in place of the classifier's.
        """
        rows = self._checked(z)
        scores = self._checked_logits(logits, rows)
        if len(rows) < 2:
            raise ValueError("embeddings: 1 row; fit needs at least 2 (partial_fit takes single images of a stream)")
        truth = None if labels is None else check_labels(labels, len(rows), self.classifier.classes, rows.device)
        self._check_options()
        if self.uses_labels and truth is None:
            raise ValueError(_ORACLE)
        before = self.__dict__.copy()
        try:
            self._start(rows.device, rows.dtype)
            self._observe_all(rows, truth if self.uses_labels else None, scores)
            self._solve_now()
        except BaseException:  # an interrupted or impossible fit leaves the earlier one as it was
            self.__dict__ = before
            raise
        self._warn()
        if not is_fake(rows) and torch.equal(rows, rows[:1].expand_as(rows)):
            log.warning("%s: all %d embeddings are identical", type(self).__name__, len(rows))
        return self

    @torch.inference_mode(False)
    def partial_fit(self: A, batch: Tensor | np.ndarray, *, logits: Tensor | np.ndarray | None = None) -> A:
        """Add the next images of a stream, ``(n, d)`` with n ≥ 1. Everything seen so far counts the same.

        ``logits`` are as in :meth:`fit`.
        """
        rows = self._checked(batch)
        scores = self._checked_logits(logits, rows)
        self._check_options()
        if self.uses_labels:
            raise ValueError(_ORACLE)
        if self._device is None:
            self._start(rows.device, rows.dtype)
        elif self._device != rows.device:
            raise ValueError(f"embeddings: on {rows.device}, but this stream began on {self._device}; move the batch")
        self._observe_all(rows, None, scores)
        return self

    @property
    def n_seen_(self) -> int:
        """Number of embeddings seen."""
        self._require_fitted()
        return self._seen

    # -- using ---------------------------------------------------------------------------------------------------------

    def transform(self, z: Array) -> Array:
        """Adapted embeddings ``(n, d)``, in the dtype of ``z``."""
        rows = self._ready(z)
        moved = torch.cat([self._move(self._prepared(part)) for part in rows.split(CHUNK)])
        return like(moved.to(rows.dtype), z)

    def logits(self, z: Array) -> Array:
        """Class scores ``(n, c)`` after adaptation, in float32 (float64 for float64 input)."""
        rows = self._ready(z)
        return like(torch.cat([self._score(self._prepared(part)) for part in rows.split(CHUNK)]), z)

    def predict(self, z: Array) -> Array:
        """Predicted classes ``(n,)`` after adaptation.

        In a stream, a batch no larger than the last one may be read with a map up to ``refresh`` images old; anything
        larger, ``W_`` or :meth:`save` bring it up to date first.
        """
        return like(to_tensor(self.logits(z)).argmax(dim=1), z)

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the options and everything learned to one safetensors file; a stream can go on from it."""
        from clip_tca.state import save_state

        self._update()
        counters = {"seen": self._seen, "last": self._last, "dtype": str(self._dtype).removeprefix("torch.")}
        save_state(Path(path), self, {**self._solution_state(), **self._state()}, counters)

    @classmethod
    def load(cls: type[A], path: str | Path, classifier: ZeroShotClassifier, device: str | None = None) -> A:
        """Read what :meth:`save` wrote, onto ``device`` (default: where ``classifier.text`` is)."""
        from clip_tca.state import load_state

        target = torch.device(device) if device else classifier.text.device
        options, counters, tensors = load_state(Path(path), cls.__name__, classifier, target)
        solution = {name.removeprefix("solution."): t for name, t in tensors.items() if name.startswith("solution.")}
        try:
            adapter = cls(classifier, **options)  # type: ignore[call-arg]
            adapter._start(target, getattr(torch, counters["dtype"]))
            adapter._restore(tensors)
            adapter._seen, adapter._last = counters["seen"], counters["last"]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: a part of the saved state is missing or wrong ({error}); save it again"
            ) from None
        adapter._solution = solution
        return adapter

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""

    @abstractmethod
    def _begin(self, device: torch.device, dtype: torch.dtype) -> None:
        """Empty state for a new stream of rows of ``dtype`` on ``device``."""

    @abstractmethod
    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        """Add rows to the state."""

    @abstractmethod
    def _solve(self) -> dict[str, Tensor]:
        """The map for everything observed so far."""

    @abstractmethod
    def _move(self, z: Tensor) -> Tensor:
        """Adapted embeddings of prepared rows."""

    @abstractmethod
    def _score(self, z: Tensor) -> Tensor:
        """Adapted logits of prepared rows."""

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """What has been observed, by name."""

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        """Put back what :meth:`_state` gave."""

    @property
    def uses_labels(self) -> bool:
        """Whether the options ask for the true labels: an oracle, for comparison only."""
        return False

    @abstractmethod
    def _warn(self) -> None:
        """Log what the user should know about the fit."""

    # -- shared work ---------------------------------------------------------------------------------------------------

    def _checked(self, z: Tensor | np.ndarray) -> Tensor:
        if not isinstance(self.classifier, ZeroShotClassifier):
            kind = type(self.classifier).__name__
            raise TypeError(f"classifier: expected a ZeroShotClassifier, got {kind}; use ZeroShotClassifier(text)")
        rows = to_tensor(z)
        check_rows(rows, self.classifier.dim)
        return rows

    def _prepared(self, z: Tensor) -> Tensor:
        return unit(z) if self.normalize else z.to(compute_dtype(z.dtype))

    def _start(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, compute_dtype(dtype)
        self._seen = self._pending = self._last = 0
        self._solution, self._cast = {}, {}
        self._begin(device, self._dtype)

    def _checked_logits(self, logits: Tensor | np.ndarray | None, rows: Tensor) -> Tensor | None:
        if logits is None:
            return None
        scores = to_tensor(logits, "logits")
        wanted = (len(rows), self.classifier.classes)
        if scores.shape != wanted:
            raise ValueError(f"logits: shape {tuple(scores.shape)}, but {wanted} is needed: (embeddings, classes)")
        check_rows(scores, name="logits")
        return scores.to(rows.device)

    def _observe_all(self, rows: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            also = (None if extra is None else extra[part] for extra in (labels, logits))
            self._observe(self._prepared(rows[part]), *also)
        self._seen += len(rows)
        self._pending += len(rows)
        self._last = len(rows)

    def _ready(self, z: Tensor | np.ndarray) -> Tensor:
        """Checked rows, with a map that is fresh enough for them."""
        self._require_fitted()
        rows = self._checked(z)
        wait = max(1, self._seen // 10) if self.refresh == "auto" else self.refresh
        if not self._solution or self._pending >= wait or len(rows) > self._last:
            self._update()
        return rows

    def _update(self) -> None:
        self._require_fitted()
        if self._pending or not self._solution:
            self._solve_now()

    @torch.inference_mode(False)
    def _solve_now(self) -> None:
        self._solution = self._solve()
        self._cast.clear()
        self._pending = 0

    def _require_fitted(self) -> None:
        if self._device is None:
            raise ValueError(f"{type(self).__name__} is not fitted yet; call fit(z) or partial_fit(batch) first")

    def _solution_state(self) -> dict[str, Tensor]:
        return {f"solution.{name}": tensor for name, tensor in self._solution.items()}

    def _learned(self, name: str) -> Tensor:
        self._update()
        return self._solution[name]

    def _solved(self, name: str, z: Tensor) -> Tensor:
        """A part of the map in the dtype and on the device of ``z``, converted once for each solution."""
        key = (name, z.device, z.dtype)
        if key not in self._cast:
            self._cast[key] = self._solution[name].to(z.device, z.dtype)
        return self._cast[key]

    def _check_common(self) -> None:
        if self.refresh != "auto" and not whole(self.refresh, 1):
            raise ValueError(f"refresh: {self.refresh!r}; allowed are 'auto' or a whole number of at least 1")
