"""The contract of a study: a subject in, numbers out, a figure from the numbers alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.evaluation.inputs import Embedded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Subject:
    """What a study looks at.

    Attributes:
        embedded: The data set, with pictures and model where there are some.
        classifier: g, on the device to compute on.
        reference: The source-like domain (photo for the demo); None if none was named.
        progress: Show bars on stderr, if that is a terminal.
    """

    embedded: Embedded
    classifier: ZeroShotClassifier
    reference: str | None
    progress: bool = False

    @property
    def shifted(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Embeddings ``(n, d)`` and labels ``(n,)`` (for scoring) of every domain but the reference."""
        return {name: both for name, both in self.embedded.data.domains.items() if name != self.reference}


class Study(ABC):
    """One study. The constructor takes its options by keyword, checks them, and nothing else.

    Class attributes: ``name`` (as ``clip-tca study`` takes it), ``summary`` (one line), ``paper`` (which figure or
    table of the paper it answers to), ``needs_data`` (False: makes its own), ``needs_reference``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    needs_data: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = False

    @abstractmethod
    def measure(self, subject: Subject | None) -> dict[str, Any]:
        """The results, as JSON can hold them: everything that :meth:`draw` and a reader need."""

    @abstractmethod
    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Draw what :meth:`measure` gave, and only that."""

    @abstractmethod
    def describe(self, results: dict[str, Any]) -> list[str]:
        """The finding in a few plain lines with figures, for the terminal and as the figure's alt text."""
