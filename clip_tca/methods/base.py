"""The contract of a base method: a batch in, embeddings and logits out.

Methods on the image tower see pictures, methods on embeddings see what the tower gave. TCA comes after either
(``NAME+tca``): it takes their (embedding, logits) pairs as it would take those of the plain model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What a method may know: the model and the prompts. No labels, no source data.

    Attributes:
        model: open_clip model, on its device. A method that updates it must put it back by :meth:`Method.reset`.
        tokenizer: Texts → tokens ``(n, length)``.
        classes: Class names as they stand in the prompts.
        templates: With ``{}`` for the class; the first is the plain one.
        text: Unit text embeddings of every template ``(templates, classes, d)``.
        scale: Logit scale.
    """

    model: Any
    tokenizer: Callable[[list[str]], Tensor]
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    text: Tensor
    scale: float


class Method(ABC):
    """A base method of test-time adaptation.

    Class attributes: ``name`` (as ``--method`` takes it), ``summary`` (one line), ``updates`` (what it changes),
    ``backpropagation`` (whether it needs gradients), ``sees`` (``"images"`` or ``"embeddings"``), ``changed`` (what
    differs from the original, if anything does).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    updates: ClassVar[str]
    backpropagation: ClassVar[bool]
    sees: ClassVar[Literal["images", "embeddings"]]
    changed: ClassVar[str] = ""

    @abstractmethod
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt to a batch and predict it.

        Args:
            batch: Pictures as :meth:`prepare` made them ``(n, …)``, or embeddings ``(n, d)`` of unit length.

        Returns:
            Embeddings ``(n, d)``, unit length, and logits ``(n, classes)``, both without gradient.
        """

    @abstractmethod
    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict a batch as the state is, without adapting to it; otherwise as calling does."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything: model and memory are as they were before the first batch."""

    def prepare(self, picture: Image.Image, transform: Callable[[Image.Image], Tensor]) -> Tensor:
        """One picture as the method wants it; by default the model's own preprocessing ``(3, height, width)``.

        Runs in worker processes, so it must not touch the model or the device.
        """
        return transform(picture)
