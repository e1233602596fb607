"""Rows whose class scores come from another encoder: ``fit(z, logits=…)``, ``predict(z, logits=…)``.

Inside, such a row is kept as (z, logits), ``d + c`` numbers, and g is a classifier that reads the logits out of it. So
streams, samples, saving and export are those of any adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.classifier import LinearClassifier, reader
from clip_tca.core.tensors import check_rows, to_tensor, unit

P = TypeVar("P", bound="PairedAdapter")


@dataclass(eq=False, repr=False)
class PairedAdapter(Adapter):
    """The base of adapters that need no classifier if they are given ``logits``.

    Attributes:
        classifier: g; it may be left out if logits are given.
    """

    classifier: LinearClassifier = field(default=cast(LinearClassifier, None))

    def fit(self: P, z: Any, y: object = None, *, labels: Any = None, logits: Any = None) -> P:
        """Adapt to all rows ``z`` ``(n, d)`` at once, and forget an earlier fit.

        Args:
            z: Unlabeled embeddings that g takes; or, with ``logits``, rows of any other encoder.
            y: Ignored; here for scikit-learn's pipelines.
            labels: Ignored.
            logits: ``(n, c)`` scores of g for the same pictures. They stand in for the classifier.
        """
        with self._reading(None if logits is None else self._reader(z, logits)):
            return super().fit(self._joined(z, logits), labels=labels)

    def partial_fit(self: P, batch: Any, y: object = None, *, logits: Any = None) -> P:
        """Add the next rows of a stream, with their ``logits`` if the stream began with them; else as its base does."""
        begins = self._stream is None and logits is not None
        with self._reading(self._reader(batch, logits) if begins else self._head):
            return super().partial_fit(self._joined(batch, logits))

    @contextmanager
    def _reading(self, head: LinearClassifier | None) -> Iterator[None]:
        """Score rows by ``head`` from now on, unless what comes now fails."""
        before, self._head = self._head, head
        try:
            yield
        except BaseException:
            self._head = before
            raise

    def _reader(self, z: Any, logits: Any) -> LinearClassifier:
        """What scores rows that come with logits."""
        rows, scores = to_tensor(z), to_tensor(logits, "logits")
        check_rows(rows)
        check_rows(scores, name="logits")
        d, c = rows.shape[1], scores.shape[1]
        own = None if self.classifier is None else self.own_classifier
        if c < 2 or (own is not None and c != own.n_classes):
            needed = "at least 2" if own is None else f"the classifier's {own.n_classes}"
            raise ValueError(f"logits: {c} classes; {needed} are needed, a column for each class")
        return reader(d, c, None if own is None else own.classes, rows.device)

    def _joined(self, z: Any, logits: Any) -> Any:
        if self._head is None:
            if logits is not None:
                raise ValueError("logits: this adapter was fitted without; leave them out, or fit(z, logits=…) anew")
            if self.classifier is None:
                raise ValueError("logits: missing; without a classifier use fit(z, logits=…) and predict(z, logits=…)")
            return z
        if logits is None:
            raise ValueError("logits: missing; this adapter was fitted with logits: predict(z, logits=…)")
        rows = to_tensor(z)
        check_rows(rows, self._features)
        scores = self._checked_logits(logits, rows)
        rows = unit(rows) if self._of_unit_length else rows
        return torch.cat([rows, scores - scores.amax(dim=1, keepdim=True)], dim=1)

    @property
    def _features(self) -> int:
        """Dimension of the embeddings."""
        return self.g.dim - (0 if self._head is None else self.g.n_classes)

    @property
    def n_features_in_(self) -> int:
        """Dimension of the embeddings; only there after fitting."""
        self._fitted()
        return self._features

    @property
    def _scales(self) -> bool:
        return self._head is None and super()._scales  # with logits, rows are scaled before they are joined

    @property
    def _of_unit_length(self) -> bool:
        return self._scales if self._head is None else self.normalize is not False

    def _observe_all(self, observed: Any, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        if self._of_unit_length and bool((empty := ~z[:, : self._features].any(dim=1)).any()):
            first = ", ".join(map(str, empty.nonzero()[:5, 0].tolist()))
            raise ValueError(f"embeddings: {int(empty.sum())} of {len(z)} rows are all zeros (rows {first}); drop them")
        super()._observe_all(observed, z, logits, labels)

    def _applied(self, z: Any, *maps: Callable[[Tensor], Tensor]) -> list[Tensor]:
        if self._head is not None and self._move in maps:
            raise ValueError("transform: rows of another encoder are classified, not moved; use predict(z, logits=…)")
        return super()._applied(z, *maps)
