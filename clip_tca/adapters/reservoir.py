"""A bounded sample of a stream, spread evenly over everything seen, the same for any split into batches.

Row i gets the key (i · 2⁶⁴/φ) mod 2⁶⁴ (Fibonacci hashing: an evenly spread sequence) and the rows with the smallest
keys are kept. The key depends on the arrival number alone, so no random state has to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.accumulator import Accumulator

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Reservoir(Accumulator):
    """At most ``size`` of the rows seen so far.

    Attributes:
        seen: Arrival number of the next row: how many have passed, if the first was number 0.
        order: ``(m,)`` arrival numbers of the kept rows (host side: which rows are kept never depends on their values).
    """

    shapes: ClassVar = {"rows": ("m", "d"), "order": ("m",), "seen": ()}

    def __init__(self, size: int, dim: int, device: torch.device, dtype: torch.dtype, first: int = 0) -> None:
        """An empty reservoir for ``size`` rows ``(dim,)`` of a stream, or of its part that begins at ``first``."""
        self.size = size
        self.first = self.seen = first
        self.order = np.zeros(0, dtype=np.int64)
        self._slots = torch.zeros(0, dim, device=device, dtype=dtype)

    def update(self, z: Tensor) -> None:
        """Let the rows of ``z`` ``(n, d)`` pass."""
        order = np.arange(self.seen, self.seen + len(z))
        self.seen += len(z)
        held = len(self.order)
        room = min(self.size - held, len(z))
        if room:
            self._grow(held + room)
            self._slots[held : held + room] = z[:room].to(self._slots.dtype)
            self.order = np.concatenate([self.order, order[:room]])
        if room < len(z):
            self._replace(z[room:], order[room:])

    def merge(self, other: Reservoir) -> None:
        """Add the rows of a later part, or of another stream, which counts as coming after this one.

        Parts of one stream give the sample of the whole; other streams an evenly spread sample of what both have kept.
        """
        late = other.order + max(0, self.seen - other.first)
        rows = torch.cat([self._slots[: len(self.order)], other._slots[: len(late)].to(self._slots)])
        self._keep(rows, np.concatenate([self.order, late]))
        self.seen = other.seen + max(0, self.seen - other.first)

    def rows(self) -> Tensor:
        """The kept rows ``(m, d)`` in order of arrival."""
        return self._slots[torch.from_numpy(np.argsort(self.order)).to(self._slots.device)]

    def begin_segment(self, first: int) -> None:
        """The next row is number ``first`` of the whole stream."""
        self.seen = first

    def partial_state(self) -> dict[str, Tensor]:
        """Also the number of its first row."""
        return {**self.state(), "first": torch.as_tensor(self.first)}

    def restore(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """Put back what :meth:`state` or :meth:`partial_state` gave."""
        super().restore(tensors, sizes)
        self.first = int(tensors.get("first", torch.tensor(self.first)))

    def _values(self) -> dict[str, Any]:
        return {"rows": self.rows(), "order": torch.from_numpy(np.sort(self.order)), "seen": self.seen}

    def _put(self, tensors: dict[str, Tensor]) -> None:
        self._keep(tensors["rows"], tensors["order"].cpu().numpy())  # earlier versions kept more of them
        self.seen = int(tensors["seen"])

    def _keep(self, rows: Tensor, order: np.ndarray) -> None:
        """Keep those of ``rows`` ``(m, d)`` with the arrival numbers ``order`` that have the smallest keys."""
        kept = np.sort(np.argsort(_key(order))[: self.size])
        self._slots, self.order = rows[torch.from_numpy(kept).to(rows.device)], order[kept]

    def _replace(self, z: Tensor, order: np.ndarray) -> None:
        """Replace the kept rows with the largest keys by those of ``z`` with smaller ones."""
        candidates = np.flatnonzero(_key(order) < _key(self.order).max())
        if len(candidates):
            keys = _key(np.concatenate([self.order, order[candidates]]))
            kept = np.zeros(len(keys), dtype=bool)
            kept[np.argpartition(keys, self.size - 1)[: self.size]] = True
            free, incoming = np.flatnonzero(~kept[: self.size]), candidates[kept[self.size :]]
            rows = z[torch.from_numpy(incoming).to(z.device)]
            self._slots[torch.from_numpy(free).to(z.device)] = rows.to(self._slots.dtype)
            self.order[free] = order[incoming]

    def _grow(self, rows: int) -> None:
        """Room for ``rows`` rows: doubled when full, so that single rows cost a constant time on average."""
        have = len(self._slots)
        if rows > have:
            room = min(self.size, max(rows, 2 * have))
            self._slots = torch.cat([self._slots, self._slots.new_zeros(room - have, self._slots.shape[1])])


def _key(order: np.ndarray) -> np.ndarray:
    keys: np.ndarray = order.astype(np.uint64) * _GOLDEN
    return keys
