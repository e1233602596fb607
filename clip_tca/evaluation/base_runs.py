"""Base methods on a domain: their (embedding, logits) pairs, batch after batch, once for each order of images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.tensors import unit
from clip_tca.encoding.decoding import loader
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.memory import PeakMemory
from clip_tca.methods.base import Method, Task, TextPrompts
from clip_tca.methods.registry import base_method
from clip_tca.results.names import PLAIN


@dataclass(frozen=True)
class Pairs:
    """What a base method gave for a domain, in the order in which it saw the images.

    Attributes:
        z: Embeddings ``(n, d)``.
        logits: ``(n, classes)``.
        seconds: That it took.
        memory: Bytes it needed at most beyond what was there before.
        embeds: Whether it embedded the images itself.
    """

    z: Tensor
    logits: Tensor
    seconds: float
    memory: int | None
    embeds: bool


class Plain(Method):
    """The model as it is, seen as a base method: what the others are measured against."""

    name, summary, updates, backpropagation, sees = PLAIN, "nothing adapts", "nothing", False, "images"

    def __init__(self, task: Task, encode: Callable[[Tensor], Tensor]) -> None:
        """Take the classifier, and the encoder as the evaluation runs it."""
        self.encode, self.classifier = encode, task.classifier

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Embed and predict."""
        z = unit(self.encode(batch))
        return z, self.classifier.logits(z)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The same."""
        return self(batch)

    def reset(self) -> None:
        """Nothing to forget."""


class Bases:
    """Runs base methods on the data of an evaluation."""

    def __init__(
        self,
        embedded: Embedded,
        device: torch.device,
        batch: int,
        workers: int | None,
        progress: bool,
        episodic: bool = False,
    ) -> None:
        """``batch`` is the number of images that a method sees at a time; ``episodic`` runs forget them at once."""
        self.embedded, self.device, self.batch = embedded, device, batch
        self.workers, self.progress, self.episodic = workers, progress, episodic

    def run(self, name: str, options: dict[str, Any], domain: str, order: Tensor) -> Pairs:
        """Forget everything, then show the images ``order`` of a domain, batch after batch."""
        method = self.make(name, options)
        with PeakMemory(self.device) as memory:
            began = time.perf_counter()
            z, logits = self._shown(method, _alone(method) if self.episodic else method, domain, order)
            seconds = time.perf_counter() - began
        method.reset()
        return Pairs(z, logits, seconds, memory.peak, method.sees == "images")

    def carry(
        self, name: str, options: dict[str, Any], first: tuple[str, Tensor], then: tuple[str, Tensor]
    ) -> tuple[Pairs, Pairs]:
        """Adapt to the images of one domain in the continual form, then predict another as the state is."""
        carried = {"continual": True} if "continual" in signature(base_method(name)).parameters else {}
        method = self.make(name, {**options, **carried})
        before = Pairs(*self._shown(method, method, *first), 0.0, None, True)
        after = Pairs(*self._shown(method, method.predict, *then), 0.0, None, True)
        method.reset()
        return before, after

    def _shown(
        self, method: Method, work: Callable[[Tensor], tuple[Tensor, Tensor]], domain: str, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = [work(batch) for batch in self._batches(method, domain, order)]
        z, logits = (torch.cat(part) for part in zip(*found, strict=True))
        return z, logits

    def make(self, name: str, options: dict[str, Any]) -> Method:
        """A method by its name, for the prompts (and the model, if it sees images) of this evaluation."""
        kind = Plain if name == PLAIN else base_method(name)
        embedded, encoder = self.embedded, self.embedded.encoder
        model: Any = None
        tokenizer: Any = None
        if kind.sees == "images":
            if encoder is None:
                raise ValueError(f"method: {name!r} works on images, and this data set has embeddings only")
            if encoder.precision != "fp32" and kind.backpropagation:
                raise ValueError(
                    f"method: {name!r} needs gradients, which {encoder.precision} rounds away; use --precision fp32"
                )
            model, tokenizer = encoder.model, encoder.tokenizer
        text = torch.nn.functional.normalize(embedded.data.text.to(self.device), dim=-1)
        text = text if text.ndim == 3 else text[None]
        prompts, scale = embedded.prompts, embedded.data.scale
        texts = TextPrompts(prompts.classes, prompts.templates, text, scale, tokenizer) if prompts else None
        task = Task(ZeroShotClassifier(text, scale), model, texts)
        if kind is Plain and encoder is not None:
            return Plain(task, encoder.encode_images)
        return kind(task, **options)  # type: ignore[call-arg]  # every base method takes a task

    def _batches(self, method: Method, domain: str, order: Tensor) -> Iterator[Tensor]:
        if method.sees == "embeddings":
            yield from unit(self.embedded.data.domains[domain][0][order].to(self.device)).split(self.batch)
            return
        pictures, encoder = self.embedded.pictures, self.embedded.encoder
        if pictures is None or encoder is None:
            raise ValueError(f"method: {method.name!r} works on images, and this data set has embeddings only")
        batches = [part.tolist() for part in order.split(self.batch)]
        prepare = partial(method.prepare, transform=encoder.transform)
        shown = tqdm(
            total=len(order),
            desc=f"{method.name} {domain}",
            unit="image",
            disable=None if self.progress else True,
            leave=False,
        )
        with shown as bar:
            for images, reasons in loader(pictures.domains[domain], prepare, batches, self.workers, self.device):
                if reasons:
                    raise ValueError(f"{domain}: images can't be read any more: {'; '.join(reasons.values())}")
                yield images.to(self.device)
                bar.update(len(images))


def _alone(method: Method) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """``method`` on a batch as if it were the first."""

    def work(batch: Tensor) -> tuple[Tensor, Tensor]:
        method.reset()
        return method(batch)

    return work
