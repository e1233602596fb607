"""Memories of the most certain test images of each class, as methods on embeddings keep them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import count
from operator import itemgetter

import torch
from torch import Tensor


class Cache:
    """For each class the ``shots`` embeddings of lowest entropy so far: keys ``(m, d)``, votes ``(m, classes)``.

    Which embedding is in the cache at which time depends on classes and entropies alone. So a block of images is
    compared at once with the cached ones and with each other, and what is not cached at an image's turn is masked.
    """

    def __init__(self, shots: int) -> None:
        """An empty cache of this size for each class."""
        self.shots = shots
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._slots: dict[int, list[tuple[float, int]]] = {}  # class → (entropy, row), the most certain first

    def visit(
        self, z: Tensor, values: Tensor, classes: Sequence[int], offers: Sequence[float | None], beta: float
    ) -> Tensor:
        """Offer images to the cache in turn; the votes Σ_j exp(−β (1 − z·k_j)) v_j at each one's turn.

        Arguments are those of :meth:`offer`; the images will vote for ``values`` ``(n, classes)``.
        """
        keys, values, present = self.offer(z, values, classes, offers)
        votes = ((beta * (z.to(keys.dtype) @ keys.T - 1)).exp() * present) @ values.to(keys.dtype)
        return votes.to(z.dtype)

    def offer(
        self, z: Tensor, values: Tensor, classes: Sequence[int], offers: Sequence[float | None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Offer images to the cache in turn.

        ``z`` are unit embeddings ``(n, d)`` of these predicted ``classes``, to be kept with ``values`` ``(n, …)``.
        ``offers`` are their entropies, None for one that must not enter.

        Returns:
            All keys ``(m, d)`` and values ``(m, …)``, cached before or offered now, and which of them are in the cache
            at each image's turn ``(n, m)``.
        """
        keys = z if self.keys is None else torch.cat([self.keys.to(z.device), z])
        values = values if self.values is None else torch.cat([self.values.to(z.device), values])
        n, old = len(z), len(keys) - len(z)
        enter, leave = [0] * old + [n] * n, [n] * (old + n)
        for turn, (label, entropy) in enumerate(zip(classes, offers, strict=True)):
            if entropy is None:
                continue
            slot = self._slots.setdefault(label, [])
            if len(slot) == self.shots:
                if entropy >= slot[-1][0]:
                    continue
                leave[slot.pop()[1]] = turn
            insort(slot, (entropy, old + turn), key=itemgetter(0))
            enter[old + turn] = turn
        turns = torch.arange(n, device=z.device)[:, None]
        present = (torch.tensor(enter, device=z.device) <= turns) & (turns < torch.tensor(leave, device=z.device))
        if min(enter[old:]) == n:  # nothing entered, which is the rule once a cache is full
            return keys, values, present
        stay = torch.tensor([row for slot in self._slots.values() for _, row in slot], device=z.device).long()
        row = count()
        self._slots = {label: [(entropy, next(row)) for entropy, _ in slot] for label, slot in self._slots.items()}
        self.keys, self.values = keys[stay], values[stay]
        return keys, values, present
