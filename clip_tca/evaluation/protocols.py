"""Which images are seen, what accuracy is divided by, and what a method may have seen when it predicts.

Protocols: ``full`` counts every image. ``watt`` shuffles, never sees the last incomplete batch and still divides by all
images (so 100 % is out of reach). ``kept`` drops that batch too, and divides by the images seen.

Settings: ``transductive`` fits once on the whole domain. ``online`` shows batch after batch; each is predicted when the
statistics have seen it and those before it, never later ones. ``episodic`` adapts to each batch alone and forgets it.
Base methods see batches in every setting, as their authors show them; ``episodic`` makes them forget after each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.classifier import LinearClassifier
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.results.schema import Protocol, Setting

EXACT = 32
"""From this batch size on, an online map is solved for every batch, unless ``refresh`` is given."""


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
    """Classes ``(n,)`` in the order in which images are seen, and the adapter if it was fitted to all at once."""

    classes: Tensor
    clock: Clock
    adapter: Adapter | None = None


def for_setting(method: MethodSpec, setting: Setting, batch: int) -> MethodSpec:
    """``method`` with what the setting changes: large online batches have their own map each."""
    if setting == "online" and batch >= EXACT and "refresh" not in method.options:
        return replace(method, options={**method.options, "refresh": 1})
    return method


def predict(
    method: MethodSpec,
    classifier: LinearClassifier,
    z: Tensor,
    labels: Tensor,
    setting: Setting,
    batch: int,
    logits: Tensor | None = None,
) -> Prediction:
    """Predict embeddings in the order in which they are seen.

    ``labels`` go to a method only if it is an oracle and says so. ``logits`` ``(n, classes)`` are those of the base
    method that gave ``z``, if there is one: TCA on top takes certainty from them and corrects them.
    """
    clock = Clock()
    adapter = method.adapter(classifier)
    if adapter is None:
        classes = predicted_classes(classifier, z, logits)
        clock.predicted()
        return Prediction(classes, clock)
    parts = [slice(0, len(z))] if setting == "transductive" else [slice(i, i + batch) for i in range(0, len(z), batch)]
    predictions = []
    for part in parts:
        if setting == "episodic":
            adapter = method.adapter(classifier) or adapter
        base_logits = None if logits is None else logits[part]
        if setting == "online" or len(z[part]) == 1:
            adapter.partial_fit(z[part], logits=base_logits)
        else:
            adapter.fit(z[part], labels=labels[part] if adapter.uses_labels else None, logits=base_logits)
        clock.adapted()
        predictions.append(predicted_classes(classifier, z[part], base_logits, adapter))
        clock.predicted()
    return Prediction(torch.cat(predictions), clock, adapter if setting == "transductive" else None)


def predicted_classes(
    classifier: LinearClassifier, z: Tensor, logits: Tensor | None, adapter: Adapter | None = None
) -> Tensor:
    """Classes of embeddings: of the adapter, of the base method that gave ``z`` and ``logits``, or of the classifier.

    With both, the logits are corrected by as much as the classifier's scores change when the adapter moves the
    embeddings. (Where the logits are the classifier's scores, as for TENT or WATT, that is the adapter's prediction.)
    """
    if adapter is None:
        return classifier.predict(z) if logits is None else logits.argmax(dim=1)
    adapted = adapter.logits(z)
    if logits is not None:
        adapted = logits + adapted - classifier.logits(classifier.prepared(z))
    return adapted.argmax(dim=1)
