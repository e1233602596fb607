"""The engine of an adapter: rows are *observed* (cheap, for every batch), and the map is *solved* for (dear) when due.

What has been observed can be merged with what another has observed, and cut into numbered segments whose sums do not
depend on which process computed them. A subclass says what it keeps and how it solves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from clip_tca.adapters.reservoir import Sample
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_flag, check_whole
from clip_tca.core.tensors import CHUNK, compute_dtype, unit

L = TypeVar("L", bound="Learner")

TOGETHER = 256
"""Rows of a stream that wait to be observed together while its map is not due: single rows would cost far more."""


class Learner(ABC):
    """Observed state, and the solution for it. Constructors only store; options are checked before the first row."""

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
    _waiting: list[Tensor]
    _held = 0
    _cast: dict[tuple[str, torch.device, torch.dtype], Tensor]

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""

    @abstractmethod
    def _begin(self, device: torch.device, dtype: torch.dtype, first: int) -> None:
        """Empty state for a new stream of rows of ``dtype`` on ``device``, or for its part from row ``first`` on."""

    @abstractmethod
    def _observe(self, z: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        """Add rows to the state."""

    @abstractmethod
    def _samples(self) -> list[Sample]:
        """The samples that it keeps."""

    def begin_segment(self, first: int) -> None:
        """The next row is number ``first`` of all, whatever has been seen of those before it."""
        for sample in self._samples():
            sample.seen = first

    def end_segment(self, number: int) -> None:  # noqa: B027 (most have nothing that rounds)
        """The rows since the last segment were segment ``number``: what follows is summed up apart from them."""

    def absorb(self: L, other: L) -> None:
        """Add what another adapter with the same options has observed."""
        self._seen += other._seen
        self._pending += other._seen
        self._last = other._last
        for mine, its in zip(self._samples(), other._samples(), strict=True):
            mine.merge(its)

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
    def warn(self) -> None:
        """Log what the user should know about the fit."""

    # -- what all share ------------------------------------------------------------------------------------------------

    def _prepared(self, z: Tensor) -> Tensor:
        return unit(z) if self.normalize else z.to(compute_dtype(z.dtype))

    def begin(self, device: torch.device, dtype: torch.dtype, first: int = 0) -> None:
        self._device, self._dtype = device, compute_dtype(dtype)
        self._seen = self._pending = self._last = 0
        self._solution, self._cast, self._waiting, self._held = {}, {}, [], 0
        self._begin(device, self._dtype, first)

    def _observe_all(self, rows: Tensor, labels: Tensor | None, logits: Tensor | None) -> None:
        if self._solution and logits is None and len(rows) < TOGETHER:  # a stream between two solutions
            self._waiting.append(self._prepared(rows.clone()))
            self._held += len(rows)
            if self._held >= TOGETHER:
                self._settle()
        else:
            self._settle()
            for start in range(0, len(rows), CHUNK):
                part = slice(start, start + CHUNK)
                also = (None if extra is None else extra[part] for extra in (labels, logits))
                self._observe(self._prepared(rows[part]), *also)
        self._seen += len(rows)
        self._pending += len(rows)
        self._last = len(rows)

    def _settle(self) -> None:
        """Observe the rows that wait."""
        if self._waiting:
            rows, self._waiting, self._held = torch.cat(self._waiting), [], 0
            self._observe(rows, None, None)

    def _update(self) -> None:
        self._require_fitted()
        if self._pending or not self._solution:
            self.solve()

    @torch.inference_mode(False)
    def solve(self) -> dict[str, Tensor]:
        """Solve for everything observed so far, now; the solution by name."""
        self._settle()
        self.use(self._solve())
        return self._solution

    def use(self, solution: dict[str, Tensor]) -> None:
        """Apply a solution that was found elsewhere, by another process, for what all have observed."""
        self._solution, self._pending = solution, 0
        self._cast.clear()

    @property
    def solution(self) -> dict[str, Tensor]:
        """The solution as it was found last; empty before."""
        return self._solution

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
        check_flag("normalize", self.normalize)
        check_whole("refresh", self.refresh, also="auto")
