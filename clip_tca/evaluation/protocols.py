"""Which images are seen, what accuracy is divided by, and what a method may have seen when it predicts.

Protocols: ``full`` counts every image. ``watt`` shuffles, never sees the last incomplete batch and still divides by all
images (so 100 % is out of reach). ``kept`` drops it too, and divides by what was kept.

Settings: ``transductive`` fits once on the whole domain. ``online`` shows batch after batch; each is predicted when the
statistics have seen it and those before it, never later ones. ``episodic`` adapts to each batch alone and forgets it.
Base methods see batches in every setting, as their authors show them; ``episodic`` makes them forget after each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters.diagnosis import diagnose
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import unit
from clip_tca.evaluation.method_choice import Choice

EXACT = 32
"""From this batch size on, an online map is solved for every batch, unless ``refresh`` is given."""


def order(images: int, protocol: str, batch: int, seed: int) -> Tensor:
    """The images seen, shuffled."""
    shuffled = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return shuffled if protocol == "full" else shuffled[: images // batch * batch]


def divisor(images: int, seen: int, protocol: str) -> int:
    """What the number of correct predictions is divided by."""
    return seen if protocol == "kept" else images


@dataclass
class Clock:
    """Seconds spent on adapting and on predicting."""

    adapting: float = 0.0
    predicting: float = 0.0
    _start: float = field(default_factory=time.perf_counter)

    def adapted(self) -> None:
        """What was done since the last call was adapting."""
        self.adapting += self._lap()

    def predicted(self) -> None:
        """What was done since the last call was predicting."""
        self.predicting += self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        lap, self._start = now - self._start, now
        return lap


def for_setting(method: Choice, setting: str, batch: int) -> Choice:
    """``method`` with what the setting changes: large online batches have their own map each."""
    if setting == "online" and batch >= EXACT and "refresh" not in method.options:
        return replace(method, options={**method.options, "refresh": 1})
    return method


def predict(
    method: Choice,
    classifier: LinearClassifier,
    z: Tensor,
    labels: Tensor,
    setting: str,
    batch: int,
    logits: Tensor | None = None,
    notes: dict[str, Any] | None = None,
) -> tuple[Tensor, Clock]:
    """Predicted classes ``(n,)`` of embeddings in the order in which they are seen.

    ``labels`` go to a method only if it is an oracle and says so. ``logits`` ``(n, classes)`` are those of the base
    method that gave ``z``, if there is one: TCA on top judges certainty by them and corrects them by as much as the
    classifier's scores change when it moves the embeddings. (Where the base method's logits are the classifier's scores
    of its embeddings, as for TENT or WATT, that is LinearTCA's own prediction.) A transductive adapter puts
    its ``diagnosis`` (:mod:`clip_tca.adapters.diagnosis`) into ``notes``.
    """
    clock = Clock()
    adapter = method.adapter(classifier)
    if adapter is None:
        predicted = classifier.predict(z) if logits is None else logits.argmax(dim=1)
        clock.predicted()
        return predicted, clock
    parts = [slice(0, len(z))] if setting == "transductive" else [slice(i, i + batch) for i in range(0, len(z), batch)]
    predictions = []
    for part in parts:
        if setting == "episodic":
            adapter = method.adapter(classifier) or adapter
        scores = None if logits is None else logits[part]
        if setting == "online" or len(z[part]) == 1:
            adapter.partial_fit(z[part], logits=scores)
        else:
            adapter.fit(z[part], labels[part] if adapter.uses_labels else None, logits=scores)
        clock.adapted()
        adapted = adapter.logits(z[part])
        if scores is not None:
            adapted = scores + adapted - classifier.logits(unit(z[part]))
        predictions.append(adapted.argmax(dim=1))
        clock.predicted()
    if notes is not None and setting == "transductive":
        before = classifier.predict(z) if logits is None else logits.argmax(dim=1)
        notes["diagnosis"] = diagnose(adapter, before, torch.cat(predictions))
    return torch.cat(predictions), clock
