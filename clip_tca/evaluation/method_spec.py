"""Methods by the names that ``--method`` takes, and how each predicts in a setting.

Settings: ``transductive`` fits once on the whole domain. ``online`` shows batch after batch; each is predicted from
the statistics of itself and of earlier batches, never of later ones. ``episodic`` adapts to each batch alone and
forgets it. Base methods see batches in every setting, as published; in ``episodic`` they forget after each.
Transductive methods see the whole domain in the transductive setting, and are solved for each batch in the others.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import not_among
from clip_tca.methods.registry import (
    ADAPTERS,
    ALLOWED,
    BASES,
    EVERY,
    METHODS,
    ON_TOP,
    PLUS,
    RIVAL_METHODS,
    RIVALS,
    base_method,
    registered,
)
from clip_tca.results.schema import MethodInfo, Setting

OF_THE_NAME = "layers"  # the option that an adapter's name decides, as ``mlp2-tca`` does
SOLVED_EACH_BATCH = 32  # size from which on an online map is solved for each batch, unless ``refresh`` is given


@dataclass(frozen=True)
class MethodSpec:
    """A method, by the name that ``--method`` takes, with the options of its adapter and of its base method."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    base_options: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str | None:
        """The base method: ``watt-s`` for ``watt-s`` and for ``watt-s+tca``."""
        name = self.name.removesuffix(PLUS)
        return name if name in (*BASES, *registered()) else None

    @property
    def adapter_name(self) -> str | None:
        """The adapter: ``linear-tca`` for ``linear-tca`` and for ``watt-s+tca``; None where embeddings stay."""
        if self.name in ADAPTERS:
            return self.name
        return ON_TOP if self.name.endswith(PLUS) else None

    def adapter(self, classifier: LinearClassifier) -> Adapter | None:
        if self.adapter_name is None:
            return None
        return ADAPTERS[self.adapter_name].build(classifier, **self.options)

    @property
    def uses_labels(self) -> bool:
        """Whether this is an oracle: its class shares are those of the true labels."""
        if self.adapter_name is None:
            return False
        shares = {**ADAPTERS[self.adapter_name].options, **self.options}.get("shares")
        return isinstance(shares, str) and shares == "oracle"

    def describe(self, classifier: LinearClassifier) -> MethodInfo:
        adapter = self.adapter(classifier)
        parameters = adapter.options() if adapter else {}
        info: MethodInfo = {"name": self.name, "uses_labels": self.uses_labels, "parameters": parameters}
        if self.base is not None:
            kind = base_method(self.base)
            defaults = {name: parameter.default for name, parameter in _parameters(kind).items()}
            parameters = {**defaults, **self.base_options}
            info["base"] = {"name": self.base, "parameters": parameters}
            info["nature"] = kind.nature
            if "continual" in parameters:
                info["nature"] = "online" if parameters["continual"] else "batch"
            if kind.tuned_on_test:
                info["tuned_on_test"] = kind.tuned_on_test
        return info


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(kind).parameters.items())[1:])


def method_specs(names: Sequence[str], options: dict[str, Any]) -> list[MethodSpec]:
    """The methods ``names``, each with those of ``options`` that it has; a base method takes its own before TCA does.

    ``"all"`` stands for every method of the package that uses no labels, ``"rivals"`` for the default ones and those
    published since on embeddings. An unknown method, or an option that none of them has, is a ValueError.
    """
    label_free = [name for name in METHODS if not MethodSpec(name).uses_labels]
    groups: dict[str, Sequence[str]] = {EVERY: label_free, RIVALS: RIVAL_METHODS}
    expanded = [method for name in names for method in groups.get(name, [name])]
    allowed = {*METHODS, *[name + plus for name in registered() for plus in ("", PLUS)]}
    if unknown := [name for name in expanded if name not in allowed]:
        raise ValueError(f"method: {not_among(unknown[0], [*allowed, *groups], [ALLOWED, *registered()])}")
    specs = []
    for name in dict.fromkeys(expanded):
        spec = MethodSpec(name)
        base_names = set(_parameters(base_method(spec.base))) if spec.base else set()
        adapter_names = set(_parameters(ADAPTERS[spec.adapter_name].kind)) if spec.adapter_name else set()
        own = adapter_names - base_names - {OF_THE_NAME}
        adapter_options = {option: value for option, value in options.items() if option in own}
        base_options = {option: value for option, value in options.items() if option in base_names}
        specs.append(MethodSpec(name, adapter_options, base_options))
    used = {option for spec in specs for option in (*spec.options, *spec.base_options)}
    if unused := [option for option in options if option not in used]:
        raise ValueError(f"option: none of {', '.join(expanded)} has an option {unused[0]!r}")
    return specs


def for_setting(method: MethodSpec, setting: Setting, batch: int) -> MethodSpec:
    """``method`` with what the setting changes: large online batches have their own map each."""
    if setting == "online" and batch >= SOLVED_EACH_BATCH and "refresh" not in method.options:
        return replace(method, options={**method.options, "refresh": 1})
    return method


@dataclass(frozen=True)
class Prediction:
    """Logits ``(n, classes)`` in the order in which images are seen, and what they took."""

    logits: Tensor
    adapting: float  # seconds
    predicting: float
    adapter: Adapter | None = None  # if it was fitted to all images at once

    @property
    def classes(self) -> Tensor:
        return self.logits.argmax(dim=1)


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

    ``labels`` go to oracles only. ``batch`` is the size of the batches, or their sizes. ``logits`` ``(n, classes)`` are
    those of the base method that gave ``z``: TCA on top takes certainty from them and corrects them.
    """
    began = time.perf_counter()
    adapter = method.adapter(classifier)
    if adapter is None:
        unadapted = class_scores(classifier, z, logits)
        return Prediction(unadapted, 0.0, time.perf_counter() - began)
    sizes = [len(z)] if setting == "transductive" else [len(part) for part in z.split(batch)]
    base_logits = [None] * len(sizes) if logits is None else logits.split(sizes)
    predictions, predicting = [], 0.0
    for rows, true, scores in zip(z.split(sizes), labels.split(sizes), base_logits, strict=True):
        if setting == "episodic":
            adapter = method.adapter(classifier) or adapter
        if setting == "online" or len(rows) == 1:
            adapter.partial_fit(rows, logits=scores)
        else:
            adapter.fit(rows, labels=true if adapter.uses_labels else None, logits=scores)
        adapted = time.perf_counter()
        predictions.append(class_scores(classifier, rows, scores, adapter))
        predicting += time.perf_counter() - adapted
    adapting = time.perf_counter() - began - predicting
    return Prediction(torch.cat(predictions), adapting, predicting, adapter if setting == "transductive" else None)


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
