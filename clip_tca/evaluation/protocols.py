"""Which images are seen, what accuracy is divided by, and what a method may have seen when it predicts.

Protocols: ``full`` counts every image. ``watt`` shuffles, never sees the last incomplete batch and still divides by all
images (so 100 % is out of reach). ``kept`` drops that batch too, and divides by the images seen.

Settings: ``transductive`` fits once on the whole domain. ``online`` shows batch after batch; each is predicted when the
statistics have seen it and those before it, never later ones. ``episodic`` adapts to each batch alone and forgets it.
Base methods see batches in every setting, as their authors show them; ``episodic`` makes them forget after each. Those
of transductive nature see the whole domain in the transductive setting, and are solved for each batch in the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.classifier import LinearClassifier
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.results.schema import Protocol, Setting

SOLVED_EACH_BATCH = 32
"""Size of a batch from which on an online map is solved for each, unless ``refresh`` is given."""


def order(images: int, protocol: Protocol, batch: int, seed: int) -> Tensor:
    """Indices of the images seen, shuffled."""
    shuffled = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return shuffled if protocol == "full" else shuffled[: images // batch * batch]


def divisor(images: int, seen: int, protocol: Protocol) -> int:
    """What the number of correct predictions is divided by."""
    return seen if protocol == "kept" else images


@dataclass
class Clock:
    """Seconds spent on adapting and on predicting."""

    adapting: float = 0.0
    predicting: float = 0.0
    _start: float = field(default_factory=time.perf_counter)

    def adapted(self) -> None:
        """Count the time since the last call as adapting."""
        self.adapting += self._lap()

    def predicted(self) -> None:
        """Count the time since the last call as predicting."""
        self.predicting += self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        lap, self._start = now - self._start, now
        return lap


@dataclass(frozen=True)
class Prediction:
    """Logits ``(n, classes)`` in the order in which images are seen; the adapter if it was fitted to all at once."""

    logits: Tensor
    clock: Clock
    adapter: Adapter | None = None

    @cached_property
    def classes(self) -> Tensor:
        """The predicted classes ``(n,)``."""
        return self.logits.argmax(dim=1)


def for_setting(method: MethodSpec, setting: Setting, batch: int) -> MethodSpec:
    """``method`` with what the setting changes: large online batches have their own map each."""
    if setting == "online" and batch >= SOLVED_EACH_BATCH and "refresh" not in method.options:
        return replace(method, options={**method.options, "refresh": 1})
    return method


def predict(
    method: MethodSpec,
    classifier: LinearClassifier,
    z: Tensor,
    labels: Tensor,
    setting: Setting,
    batch: int | list[int],
    logits: Tensor | None = None,
) -> Prediction:
    """Predict embeddings in the order in which they are seen.

    ``labels`` go to a method only if it is an oracle and says so. ``batch`` is the size of the batches, or their sizes.
    ``logits`` ``(n, classes)`` are those of the base method that gave ``z``, if there is one: TCA on top takes
    certainty from them and corrects them.
    """
    clock = Clock()
    adapter = method.adapter(classifier)
    if adapter is None:
        unadapted = class_scores(classifier, z, logits)
        clock.predicted()
        return Prediction(unadapted, clock)
    sizes = [len(z)] if setting == "transductive" else [len(part) for part in z.split(batch)]
    base_logits = [None] * len(sizes) if logits is None else logits.split(sizes)
    predictions = []
    for rows, true, scores in zip(z.split(sizes), labels.split(sizes), base_logits, strict=True):
        if setting == "episodic":
            adapter = method.adapter(classifier) or adapter
        if setting == "online" or len(rows) == 1:
            adapter.partial_fit(rows, logits=scores)
        else:
            adapter.fit(rows, labels=true if adapter.uses_labels else None, logits=scores)
        clock.adapted()
        predictions.append(class_scores(classifier, rows, scores, adapter))
        clock.predicted()
    return Prediction(torch.cat(predictions), clock, adapter if setting == "transductive" else None)


def class_scores(
    classifier: LinearClassifier, z: Tensor, logits: Tensor | None, adapter: Adapter | None = None
) -> Tensor:
    """Logits of embeddings: of the adapter, of the base method that gave ``z`` and ``logits``, or of the classifier.

    With both, the logits are corrected by as much as the classifier's scores change when the adapter moves the
    embeddings. (Where the logits are the classifier's scores, as for TENT or WATT, that is the adapter's prediction.)
    """
    if adapter is None:
        return classifier.logits(classifier.prepared(z)) if logits is None else logits
    adapted = adapter.logits(z)
    if logits is not None:
        adapted = logits + adapted - classifier.logits(classifier.prepared(z))
    return adapted
