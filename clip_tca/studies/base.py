"""The contract of a study: it measures on a data set, and draws a figure from the measured numbers alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.progress import tracked
from clip_tca.evaluation.inputs import Embedded

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # matplotlib is optional, and loaded only to draw


Item = TypeVar("Item")


@dataclass(frozen=True)
class Subject:
    """The data set and the classifier, on the device to compute on, that a study measures.

    ``reference`` is the source-like domain, which may be the file's own source data; None if none was named.
    """

    embedded: Embedded
    classifier: LinearClassifier
    reference: str | None
    progress: bool = False

    @property
    def shifted(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Embeddings ``(n, d)`` and labels ``(n,)`` (for scoring) of every domain but the reference."""
        return {name: pair for name, pair in self.embedded.data.domains.items() if name != self.reference}

    def shifted_domains(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, embeddings as g takes them and labels of each domain but the reference, with a progress bar."""
        for name, (z, y) in self.tracked(list(self.shifted.items()), "measuring", "domain"):
            yield name, self.prepared(z), self.on_device(y)

    def tracked(self, items: Sequence[Item], title: str, unit: str) -> Iterator[Item]:
        """The ``items``, with a progress bar if those are wanted."""
        return tracked(items, len(items), title, unit, self.progress)

    def source(self) -> tuple[Tensor, Tensor]:
        """Embeddings as g takes them and labels of the reference domain, which stands for the source."""
        if self.reference is None:
            raise ValueError("reference: none was named, and this study measures against a source-like domain")
        z, y = self.embedded.data.domains[self.reference]
        return self.prepared(z), self.on_device(y)

    def prepared(self, z: Tensor) -> Tensor:
        """Embeddings as g takes them, on the device of the classifier."""
        return self.classifier.prepared(self.on_device(z))

    def on_device(self, tensor: Tensor) -> Tensor:
        """``tensor`` on the device of the classifier."""
        return tensor.to(self.classifier.device)


class Study(ABC):
    """One study. The constructor takes its options by keyword, checks and stores them.

    Class attributes: ``name`` (as ``clip-tca study`` takes it), ``summary`` (one line), ``paper`` (the figure or table
    of the paper that it reproduces), ``needs_data`` (False: makes its own), ``needs_reference``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    needs_data: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = False

    @abstractmethod
    def measure(self, subject: Subject) -> dict[str, Any]:
        """The results, as JSON values: everything that :meth:`draw` and a reader need.

        A study that makes its own data also takes None.
        """

    @abstractmethod
    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Draw the results of :meth:`measure`, and nothing else."""

    @abstractmethod
    def describe(self, results: dict[str, Any]) -> list[str]:
        """The finding in a few lines with numbers, for the terminal and as the figure's alt text."""
