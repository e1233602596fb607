"""Methods by the names that ``--method`` takes: adapters of embeddings, base methods, and TCA on top of those."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.registry import ADAPTERS, ON_TOP
from clip_tca.classifier import LinearClassifier
from clip_tca.methods.registry import (
    ALLOWED,
    BASES,
    EVERY,
    METHODS,
    PLUS,
    RIVAL_METHODS,
    RIVALS,
    base_method,
    registered,
)
from clip_tca.results.schema import MethodInfo

OF_THE_NAME = ("layers",)
"""Options that an adapter's name decides, as ``mlp2-tca`` does; they can't be set beside it."""


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
        """A new adapter for ``classifier``; None where nothing adapts embeddings (zero-shot, a base method alone)."""
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
        """Name, all parameters, how it sees the test set, and whether true labels are or were used."""
        adapter = self.adapter(classifier)
        parameters = adapter.options() if adapter else {}
        info: MethodInfo = {"name": self.name, "uses_labels": self.uses_labels, "parameters": parameters}
        if self.base is not None:
            defaults = {name: p.default for name, p in _parameters(base_method(self.base)).items()}
            parameters = {**defaults, **self.base_options}
            info["base"] = {"name": self.base, "parameters": parameters}
            info["nature"] = base_method(self.base).nature
            if "continual" in parameters:
                info["nature"] = "online" if parameters["continual"] else "batch"
            if tuned := base_method(self.base).tuned_on_test:
                info["tuned_on_test"] = tuned
        return info


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Options of a constructor: all parameters but the first, which is the classifier or the task."""
    return dict(list(inspect.signature(kind).parameters.items())[1:])


def method_specs(names: Sequence[str], options: dict[str, Any]) -> list[MethodSpec]:
    """The methods ``names``, each with those of ``options`` that it has; a base method takes its own before TCA does.

    ``"all"`` stands for every method of the package that uses no labels, ``"rivals"`` for the default ones and those
    published since on embeddings. An unknown method, or an option that none of
    them has, is a ValueError.
    """
    label_free = [name for name in METHODS if not MethodSpec(name).uses_labels]
    groups: dict[str, Sequence[str]] = {EVERY: label_free, RIVALS: RIVAL_METHODS}
    expanded = [method for name in names for method in groups.get(name, [name])]
    allowed = {*METHODS, *[name + plus for name in registered() for plus in ("", PLUS)]}
    if unknown := [name for name in expanded if name not in allowed]:
        raise ValueError(f"method: {unknown[0]!r}; allowed are {', '.join([ALLOWED, *registered()])}")
    specs = []
    for name in dict.fromkeys(expanded):
        spec = MethodSpec(name)
        base_names = set(_parameters(base_method(spec.base))) if spec.base else set()
        adapter_names: set[str] = set()
        if spec.adapter_name is not None:
            adapter_names = set(_parameters(ADAPTERS[spec.adapter_name].kind)) - {*OF_THE_NAME, *base_names}
        adapter_options = {option: value for option, value in options.items() if option in adapter_names}
        base_options = {option: value for option, value in options.items() if option in base_names}
        specs.append(MethodSpec(name, adapter_options, base_options))
    used = {option for spec in specs for option in (*spec.options, *spec.base_options)}
    if unused := [option for option in options if option not in used]:
        raise ValueError(f"option: none of {', '.join(expanded)} has an option {unused[0]!r}")
    return specs
