"""State that accumulates over a stream of rows, declared once: names and shapes, and how two of it merge.

An adapter declares its accumulators by name. Starting, merging, saving and loading follow from the declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

A = TypeVar("A", bound="Accumulator")


class Accumulator(ABC):
    """Part of an adapter's state.

    A subclass declares in :attr:`shapes` what is saved, by attribute name, and how two accumulators merge.
    """

    shapes: ClassVar[Mapping[str, tuple[str, ...]]]
    """Shape of each saved tensor: ``d`` is the dimension, ``c`` the number of classes; other letters must agree."""

    @abstractmethod
    def merge(self: A, other: A) -> None:
        """Add what ``other`` has accumulated, as if its rows had come after."""

    def begin_segment(self, first: int) -> None:  # noqa: B027 (most do not depend on the row number)
        """The next row is number ``first`` of the whole stream."""

    def end_segment(self, number: int) -> None:  # noqa: B027 (most do not depend on the order of sums)
        """The rows since the last segment were segment ``number`` of the whole stream."""

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, by the names in :attr:`shapes`."""
        return {name: torch.as_tensor(value) for name, value in self._values().items()}

    def partial_state(self) -> dict[str, Tensor]:
        """Also what is needed to merge it with other parts of the same stream, as if they had never been apart."""
        return self.state()

    def restore(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """Put back what :meth:`state` or :meth:`partial_state` gave.

        Args:
            tensors: By the names in :attr:`shapes`.
            sizes: Known sizes, such as ``{"d": 512, "c": 7}``.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If a tensor has another shape than declared.
        """
        bound = dict(sizes)
        for name, letters in self.shapes.items():
            shape = tuple(tensors[name].shape)
            wanted = tuple(bound.setdefault(letter, size) for letter, size in zip(letters, shape, strict=False))
            if len(shape) != len(letters) or shape != wanted:
                raise ValueError(f"{name} has shape {shape}, not ({', '.join(letters)}) with {bound}")
        self._put({name: tensors[name] for name in self.shapes})

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.shapes}

    def _put(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor)
