"""Attributes of adapters that are more than stored values: what was learned, and an option that g may decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clip_tca.classifier import LinearClassifier

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter


class Learned:
    """A part of the solution as a read-only attribute of the adapter; reading it solves if that is due."""

    def __init__(self, name: str, doc: str) -> None:
        """``name`` is that in the solution."""
        self.name, self.__doc__ = name, doc

    def __get__(self, adapter: Adapter | None, kind: type[Adapter]) -> Any:
        """The tensor, or on the class this description of it."""
        return self if adapter is None else adapter.learned(self.name)


class Normalize:
    """The option ``normalize``: stored as it was given, and read as what g is meant for where that was None."""

    def __get__(self, adapter: Adapter | None, kind: type[Adapter]) -> bool | None:
        """Whether rows are scaled; on the class the default."""
        given: bool | None = None if adapter is None else adapter.__dict__["normalize"]
        if adapter is None or given is not None:
            return given
        g = adapter.classifier
        return not isinstance(g, LinearClassifier) or g.unit_rows

    def __set__(self, adapter: Adapter, value: bool | None) -> None:
        """Store it."""
        adapter.__dict__["normalize"] = value
