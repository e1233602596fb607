"""Methods by the names that ``--method`` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clip_tca.adapter import Adapter
from clip_tca.conditional import ConditionalTCA
from clip_tca.evaluation.names import METHODS
from clip_tca.tca import MLPTCA, LinearTCA
from clip_tca.zero_shot import ZeroShotClassifier

_BUILDERS: dict[str, tuple[type[Adapter], Callable[..., Adapter], dict[str, Any]]] = {
    "linear-tca": (LinearTCA, LinearTCA, {}),
    "linear-tca:paper": (LinearTCA, LinearTCA.paper, {}),
    "linear-tca:reference": (LinearTCA, LinearTCA.reference, {}),
    "mlp2-tca": (MLPTCA, MLPTCA, {"layers": 2}),
    "mlp3-tca": (MLPTCA, MLPTCA, {"layers": 3}),
    "conditional-tca": (ConditionalTCA, ConditionalTCA, {}),
}


@dataclass(frozen=True)
class Method:
    """A method with its options; ``zero-shot`` has no adapter."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def adapter(self, classifier: ZeroShotClassifier) -> Adapter | None:
        """A new adapter for ``classifier``."""
        if self.name == "zero-shot":
            return None
        _, build, fixed = _BUILDERS[self.name]
        return build(classifier, **fixed, **self.options)

    def describe(self, classifier: ZeroShotClassifier) -> dict[str, Any]:
        """Name, all parameters, and whether true labels are used."""
        adapter = self.adapter(classifier)
        parameters = {name: getattr(adapter, name) for name in adapter.options} if adapter else {}
        return {"name": self.name, "uses_labels": bool(adapter and adapter.uses_labels), "parameters": parameters}


def choose(names: Sequence[str], options: dict[str, Any]) -> list[Method]:
    """The methods ``names``, each with those of ``options`` that it has.

    Raises:
        ValueError: For an unknown method, or an option that none of them has.
    """
    if unknown := [name for name in names if name not in METHODS]:
        raise ValueError(f"method: {unknown[0]!r}; allowed are {', '.join(METHODS)}")
    methods, used = [], set()
    for name in dict.fromkeys(names):
        kind, _, fixed = _BUILDERS.get(name, (None, None, {}))
        allowed = set(inspect.signature(kind).parameters) - {"classifier", *fixed} if kind else set()
        mine = {option: value for option, value in options.items() if option in allowed}
        used |= set(mine)
        methods.append(Method(name, mine))
    if unused := [option for option in options if option not in used]:
        raise ValueError(f"option: none of {', '.join(names)} has an option {unused[0]!r}")
    return methods


def parse_value(text: str) -> Any:
    """``3``, ``0.5``, ``true``, ``none`` or a word, as ``--set NAME=VALUE`` gives it."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
