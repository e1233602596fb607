"""Runs of base methods on a domain: embeddings and logits, batch after batch, once for each order of images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.progress import Progress
from clip_tca.data.pictures import ImageSet
from clip_tca.encoding.base import Encoder
from clip_tca.encoding.decoding import loader
from clip_tca.evaluation.cost import PeakMemory
from clip_tca.evaluation.inputs import Embedded
from clip_tca.methods.base import Method, Task, TextPrompts
from clip_tca.methods.registry import base_method
from clip_tca.results.schema import PLAIN_CLIP, Setting


@dataclass(frozen=True)
class BaseOutput:
    """Embeddings ``(n, d)`` and logits ``(n, classes)`` of a base method, in the order in which it saw the images."""

    z: Tensor
    logits: Tensor
    seconds: float
    memory: int | None  # peak in bytes beyond what was in use before
    embeds: bool  # whether it embedded the images itself


class Plain(Method):
    """The model without adaptation as a base method: the reference of time and memory."""

    name, summary, updates, backpropagation, sees = PLAIN_CLIP, "nothing adapts", "nothing", False, "images"

    def __init__(self, task: Task, encode: Callable[[Tensor], Tensor]) -> None:
        self.encode, self.classifier = encode, task.classifier

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        z = self.classifier.prepared(self.encode(batch))
        return z, self.classifier.logits(z)

    predict = __call__

    def reset(self) -> None:
        """Nothing to forget."""


@dataclass(frozen=True)
class BaseRuns:
    """Runs base methods on the data of an evaluation, ``batch`` images at a time unless a run has sizes."""

    embedded: Embedded
    device: torch.device
    batch: int
    workers: int | None
    progress: bool
    setting: Setting = "transductive"

    def run(
        self, name: str, options: dict[str, Any], domain: str, seen: Tensor, sizes: list[int] | None = None
    ) -> BaseOutput:
        method = self.make(name, options)
        with PeakMemory(self.device) as memory:
            began = time.perf_counter()
            z, logits = self._outputs(method, method, domain, seen, sizes)
            seconds = time.perf_counter() - began
        method.reset()
        return BaseOutput(z, logits, seconds, memory.peak, method.sees == "images")

    def carry(
        self, name: str, options: dict[str, Any], first: tuple[str, Tensor], then: tuple[str, Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Embeddings and logits of one domain, adapted to in the continual form, and of another with that state."""
        continual = {"continual": True} if "continual" in signature(base_method(name)).parameters else {}
        method = self.make(name, {**options, **continual})
        outputs = [self._outputs(method, method, *first), self._outputs(method, method.predict, *then)]
        method.reset()
        return outputs

    def make(self, name: str, options: dict[str, Any]) -> Method:
        kind = Plain if name == PLAIN_CLIP else base_method(name)
        embedded, encoder = self.embedded, self.embedded.encoder
        model, texts, tokenizer = None, None, cast(Any, None)
        if kind.sees == "images":
            if encoder is None:
                raise ValueError(f"method: {name!r} works on images, and this data set has embeddings only")
            if encoder.precision != "fp32" and kind.backpropagation:
                raise ValueError(
                    f"method: {name!r} needs gradients, which {encoder.precision} rounds away; use --precision fp32"
                )
            model, tokenizer = encoder.model, encoder.tokenizer if embedded.prompts else None
        if (prompts := embedded.prompts) is not None and embedded.data.text is not None:
            text = torch.nn.functional.normalize(embedded.data.text.to(self.device), dim=-1)
            texts = TextPrompts(prompts.classes, prompts.templates, text, embedded.data.scale, tokenizer)
        task = Task(self.classifier, model, texts)
        if kind is Plain and encoder is not None:
            return Plain(task, encoder.encode_images)
        return kind(task, **options)  # type: ignore[call-arg]  # every base method takes a task

    @cached_property
    def classifier(self) -> LinearClassifier:
        return self.embedded.data.classifier(self.device)

    def _outputs(
        self,
        method: Method,
        step: Callable[[Tensor], tuple[Tensor, Tensor]],
        domain: str,
        seen: Tensor,
        sizes: list[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embeddings and logits of ``step``, which is the method or its ``predict``, on each batch."""
        outputs = []
        with Progress(len(seen), f"{method.name} {domain}", "image", self.progress) as progress:
            for batch in self._batches(method, domain, seen, sizes):
                if self.setting == "episodic":
                    method.reset()
                outputs.append(step(batch))
                progress.update(len(batch))
        z, logits = (torch.cat(part) for part in zip(*outputs, strict=True))
        return z, logits

    def _batches(self, method: Method, domain: str, seen: Tensor, sizes: list[int] | None) -> Iterator[Tensor]:
        if method.sees == "embeddings":
            z = self.classifier.prepared(self.embedded.data.domains[domain][0][seen].to(self.device))
            whole = method.nature == self.setting == "transductive"
            yield from z.split(len(z) if whole else sizes or self.batch)
            return
        pictures, encoder = cast(ImageSet, self.embedded.pictures), cast(Encoder, self.embedded.encoder)
        batches = [part.tolist() for part in seen.split(sizes or self.batch)]
        prepare = partial(method.prepare, transform=encoder.transform)
        for images, reasons in loader(pictures.domains[domain], prepare, batches, self.workers, self.device):
            if reasons:
                raise ValueError(f"{domain}: images can no longer be read: {'; '.join(reasons.values())}")
            yield images.to(self.device)
