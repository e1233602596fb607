"""The contract of a base method: a batch in, embeddings and logits out.

Methods on the image tower see images, methods on embeddings see the embeddings of the unadapted model. TCA can follow
either (``NAME+tca``): it takes their embeddings and logits as it takes those of the unadapted model.

Where each method comes from, and what other programs do, is in docs/methods.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.core.checks import check_fields
from clip_tca.core.tensors import check_rows, unit
from clip_tca.methods.registry import Nature


@dataclass(frozen=True)
class TextPrompts:
    """The class prompts, as text and as unit embeddings of every template."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]  # with {} for the class, the plain one first; empty if the classes are described
    embeddings: Tensor  # (templates, classes, d)
    scale: float
    tokenizer: Callable[[list[str]], Tensor]  # n texts to tokens (n, length)


@dataclass(frozen=True)
class Task:
    """What a method may use: g, the model and the prompts. No labels, no source data.

    Methods on embeddings get g alone. There are no ``prompts`` if g was not built from text. A method that updates the
    ``model``, which is on its device, must restore it in :meth:`Method.reset`.
    """

    classifier: LinearClassifier
    model: Any = None
    prompts: TextPrompts | None = None


class UnsuitableModelError(ValueError):
    """A method can't run with this model, whatever its options are; ``--method all`` leaves it out."""


def required_prompts(task: Task, method: str) -> TextPrompts:
    """The prompts, for a method that puts class names into templates; an error if there are none."""
    if task.prompts is None or not task.prompts.templates:
        has = "this classifier has none" if task.prompts is None else "these prompts are descriptions"
        raise UnsuitableModelError(
            f"method: {method!r} puts class names into templates, and {has}; use a model with a text tower and "
            "--prompts single or watt, or a method for any linear classifier, such as tent or t3a"
        )
    return task.prompts


def entropy(scores: Tensor) -> Tensor:
    """−Σ p log p of each row's softmax ``(n,)``, from logits or log-probabilities ``(n, classes)``."""
    log_p = scores.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def finite_log(p: Tensor) -> Tensor:
    """log p, and the same finite number in every dtype where p is 0."""
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()


def scaled_rows(classifier: LinearClassifier) -> tuple[Tensor, float]:
    """The weight as scale · rows ``(classes, d)``: for prompts logit scale and texts, else rows of mean length 1."""
    if isinstance(classifier, ZeroShotClassifier):
        return classifier.text, classifier.scale
    scale = float(torch.linalg.vector_norm(classifier.weight, dim=1).mean()) or 1.0
    return classifier.weight / scale, scale


def class_rows(classifier: LinearClassifier) -> Tensor:
    """A row for each class ``(classes, d)`` as g takes rows: its text embedding, else its weight."""
    return classifier.text if isinstance(classifier, ZeroShotClassifier) else classifier.prepared(classifier.weight)


def directions(classifier: LinearClassifier, z: Tensor) -> Tensor:
    """Unit vectors of rows that g takes; for prompts these are the rows themselves."""
    return z if classifier.unit_rows else unit(z)


def prototypes(classifier: LinearClassifier) -> Tensor:
    """A unit vector for each class ``(classes, d)``: its text embedding, else the direction of its weight."""
    return directions(classifier, class_rows(classifier))


class Method(ABC):
    """A base method of test-time adaptation.

    Class attributes: ``name`` (as ``--method`` takes it), ``summary`` (one line), ``updates`` (what it changes),
    ``backpropagation`` (whether it needs gradients), ``sees`` (``"images"`` or ``"embeddings"``), ``nature`` (how it
    sees the test set, by default: :data:`clip_tca.methods.registry.Nature`), ``changed`` (what differs from the
    original, if anything does), ``tuned_on_test`` (what its authors chose by the accuracy on test data, if they did).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    updates: ClassVar[str]
    backpropagation: ClassVar[bool]
    sees: ClassVar[Literal["images", "embeddings"]]
    nature: ClassVar[Nature] = "online"
    changed: ClassVar[str] = ""
    tuned_on_test: ClassVar[str] = ""

    @abstractmethod
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt to a batch and predict it.

        Args:
            batch: Images as :meth:`prepare` made them ``(n, …)``, or embeddings ``(n, d)``.

        Returns:
            Embeddings ``(n, d)`` as g takes them (of unit length for prompts, raw features for another head) and logits
            ``(n, classes)``, both without gradient.
        """

    @abstractmethod
    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict a batch with the current state, without adapting to it; otherwise as ``__call__``."""

    @abstractmethod
    def reset(self) -> None:
        """Restore the model and empty the memory, as before the first batch."""

    def prepare(self, picture: Image.Image, transform: Callable[[Image.Image], Tensor]) -> Tensor:
        """Preprocess one image for the method; by default as for the model ``(3, height, width)``.

        Runs in worker processes, so it must not use the model or the device.
        """
        return transform(picture)


@dataclass(kw_only=True, eq=False, repr=False)
class EmbeddingMethod(Method):
    """A method that changes the logits by what it has learned from earlier embeddings; these stay as they are."""

    backpropagation = False
    sees = "embeddings"

    task: Task = field(kw_only=False)

    def __post_init__(self) -> None:
        check_fields(self)
        self.classifier = self.task.classifier
        self.reset()

    @torch.inference_mode(False)  # what is kept may be used with gradients later
    @torch.no_grad()
    def reset(self) -> None:
        self.clear()

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, batch: Tensor, join: bool = True) -> tuple[Tensor, Tensor]:
        check_rows(batch, self.classifier.dim)
        z = self.classifier.prepared(batch)
        return z, self.logits(z, join)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self(batch, join=False)

    @abstractmethod
    def clear(self) -> None:
        """The state before the first batch."""

    @abstractmethod
    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logits ``(n, classes)`` of embeddings ``(n, d)`` as g takes them, which may ``join`` the state."""


class TransductiveMethod(EmbeddingMethod):
    """A method that is solved for all rows of a call at once, and starts anew with every call.

    The solution stays for :meth:`predict`, which places new rows in it; before the first call g predicts.
    """

    nature = "transductive"
    solved_: bool

    def clear(self) -> None:
        self.solved_ = False

    def logits(self, z: Tensor, join: bool) -> Tensor:
        if not join:
            return self.place(z) if self.solved_ else self.classifier.logits(z)
        solution = self.solve(z)
        self.solved_ = True
        return solution

    @abstractmethod
    def solve(self, z: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of all rows ``(n, d)`` together; keeps what :meth:`place` needs."""

    @abstractmethod
    def place(self, z: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of new rows, each by itself, by the last solution."""
