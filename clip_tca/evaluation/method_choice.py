"""Methods by the names that ``--method`` takes: adapters of embeddings, base methods, and TCA on top of those."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.registry import ADAPTERS, ON_TOP
from clip_tca.classifier import LinearClassifier
from clip_tca.methods.registry import ALLOWED, BASES, EVERY, METHODS, PLUS, base_method, registered


@dataclass(frozen=True)
class Choice:
    """A method with its options.

    Attributes:
        name: As ``--method`` takes it.
        options: Of the adapter.
        base_options: Of the base method.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    base_options: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str | None:
        """The base method: ``watt-s`` for ``watt-s`` and for ``watt-s+tca``."""
        name = self.name.removesuffix(PLUS)
        return name if name in (*BASES, *registered()) else None

    @property
    def _adapter_name(self) -> str | None:
        if self.name in ADAPTERS:
            return self.name
        return ON_TOP if self.name.endswith(PLUS) else None

    def adapter(self, classifier: LinearClassifier | None) -> Adapter | None:
        """A new adapter for ``classifier``; None where nothing adapts embeddings (zero-shot, a base method alone)."""
        if self._adapter_name is None:
            return None
        return ADAPTERS[self._adapter_name].build(classifier, **self.options)

    @property
    def uses_labels(self) -> bool:
        """Whether this is an oracle."""
        adapter = self.adapter(None)
        return adapter is not None and adapter.uses_labels

    def describe(self, classifier: LinearClassifier) -> dict[str, Any]:
        """Name, all parameters, and whether true labels are used."""
        adapter = self.adapter(classifier)
        parameters = {name: getattr(adapter, name) for name in adapter.options} if adapter else {}
        described = {"name": self.name, "uses_labels": self.uses_labels, "parameters": parameters}
        if self.base is not None:
            defaults = {name: p.default for name, p in _parameters(base_method(self.base)).items()}
            described["base"] = {"name": self.base, "parameters": {**defaults, **self.base_options}}
        return described


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Options of a constructor: everything after what it works on."""
    return dict(list(inspect.signature(kind).parameters.items())[1:])


def choose(names: Sequence[str], options: dict[str, Any]) -> list[Choice]:
    """The methods ``names``, each with those of ``options`` that it has; a base method takes its own before TCA does.

    ``"all"`` stands for every method of the package that uses no labels.

    Raises:
        ValueError: For an unknown method, or an option that none of them has.
    """
    everything = [name for name in METHODS if not Choice(name).uses_labels]
    names = [one for name in names for one in (everything if name == EVERY else [name])]
    known = {*METHODS, *[name + plus for name in registered() for plus in ("", PLUS)]}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"method: {unknown[0]!r}; allowed are {', '.join([ALLOWED, *registered()])}")
    methods, used = [], set()
    for name in dict.fromkeys(names):
        plain = Choice(name)
        registered_adapter = ADAPTERS.get(plain._adapter_name or "")
        base = set(_parameters(base_method(plain.base))) if plain.base else set()
        allowed = (
            set(_parameters(registered_adapter.kind)) - {*registered_adapter.fixed, *base}
            if registered_adapter
            else set()
        )
        mine, its = ({o: v for o, v in options.items() if o in names} for names in (allowed, base))
        used |= {*mine, *its}
        methods.append(Choice(name, mine, its))
    if unused := [option for option in options if option not in used]:
        raise ValueError(f"option: none of {', '.join(names)} has an option {unused[0]!r}")
    return methods
