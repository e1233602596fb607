"""Base methods on embeddings in ``clip-tca adapt``: they predict classes but do not change embeddings.

Without ``--online`` a method sees rows as ``clip-tca label`` shows them: one that is solved for a whole set sees all of
them at once, any other one batch after batch in a random order. Both need all rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters.statistics import EvenSample
from clip_tca.classifier import LinearClassifier
from clip_tca.methods.base import Method, Task
from clip_tca.methods.registry import ZERO_SHOT, base_method

KEPT = 8192  # rows that are kept to look at the logit scale


class Rival:
    """A base method on embeddings, or zero-shot, with the methods of an adapter that ``adapt`` calls."""

    def __init__(self, name: str, classifier: LinearClassifier, batch: int, **options: Any) -> None:
        self.g, self.batch, self._options = classifier, batch, options
        kind: Any = None if name == ZERO_SHOT else base_method(name)
        self.method: Method | None = None if kind is None else kind(Task(classifier), **options)
        self.n_seen_, self.changed_ = 0, 0  # rows it has predicted, and how many of them g predicts otherwise
        self.kept_ = EvenSample(KEPT)
        self._fitted: Tensor | None = None

    def options(self) -> dict[str, Any]:
        return {**self._options, "batch": self.batch, "normalize": self.g.unit_rows}

    def fit(self, batches: Iterable[Tensor]) -> None:
        """Predict all rows; :meth:`logits` then hands them out in their order."""
        z = torch.cat(list(batches))
        seen = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
        whole = self.method is not None and self.method.nature == "transductive"
        parts = seen.to(z.device).split(len(z) if whole else self.batch)
        logits = torch.cat([self._predicted(z[part]) for part in parts])
        self._fitted = torch.empty_like(logits).index_copy_(0, seen.to(z.device), logits)

    def partial_fit(self, _rows: Tensor) -> Rival:
        """Do nothing: the rows of a stream are learned from when :meth:`logits` predicts them."""
        return self

    def logits(self, z: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of the next rows of the fit or, without one, of the next batch of a stream."""
        if self._fitted is None:
            return self._predicted(z)
        logits, self._fitted = self._fitted[: len(z)], self._fitted[len(z) :]
        return logits

    def skip(self, rows: int) -> None:
        if self._fitted is not None:
            self._fitted = self._fitted[rows:]

    def _predicted(self, batch: Tensor) -> Tensor:
        z = self.g.prepared(batch)
        unadapted = self.g.logits(z)
        logits = unadapted if self.method is None else self.method(z)[1]
        self.n_seen_ += len(z)
        self.changed_ += int((logits.argmax(dim=1) != unadapted.argmax(dim=1)).sum())
        self.kept_.add(z)
        return logits
