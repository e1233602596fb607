"""The only list of adapters, by the names that ``--method`` takes. Everything else comes from the class itself.

Importing it needs no torch; a class is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter
    from clip_tca.classifier import LinearClassifier


@dataclass(frozen=True)
class RegisteredAdapter:
    """A named adapter: a class, and how it is built.

    Attributes:
        home: Module in :mod:`clip_tca.adapters` and class, such as ``linear.LinearTCA``.
        summary: A line for ``clip-tca methods``.
        preset: Class method that builds it in place of the constructor.
        fixed: Options that belong to the name and can't be set.
        oracle: Whether it uses true labels by default.
    """

    home: str
    summary: str
    preset: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    oracle: bool = False

    @property
    def kind(self) -> type[Adapter]:
        """Its class."""
        module, _, name = self.home.partition(".")
        kind: type[Adapter] = getattr(import_module(f"clip_tca.adapters.{module}"), name)
        return kind

    def build(self, classifier: LinearClassifier | None, **options: Any) -> Adapter:
        """A new adapter for ``classifier``; without one it can say what it is, and not be fitted."""
        make: Callable[..., Adapter] = self.kind if self.preset is None else getattr(self.kind, self.preset)
        return make(classifier, **self.fixed, **options)


ADAPTERS = {
    "linear-tca": RegisteredAdapter(
        "linear.LinearTCA", "maps all embeddings onto mean and covariance of the most certain ones, with our defaults"
    ),
    "linear-tca:paper": RegisteredAdapter(
        "linear.LinearTCA",
        "the same as the paper prints it: the k most certain overall, gradient steps",
        preset="paper",
    ),
    "linear-tca:reference": RegisteredAdapter(
        "linear.LinearTCA",
        "the same as the public code does it: an oracle, which counts true labels",
        preset="reference",
        oracle=True,
    ),
    "mlp2-tca": RegisteredAdapter(
        "mlp.MLPTCA", "linear-tca with a residual MLP of 2 layers behind it", fixed={"layers": 2}
    ),
    "mlp3-tca": RegisteredAdapter(
        "mlp.MLPTCA", "linear-tca with a residual MLP of 3 layers behind it", fixed={"layers": 3}
    ),
    "conditional-tca": RegisteredAdapter(
        "conditional.ConditionalTCA", "aligns class by class: soft class means, one shared covariance"
    ),
}

DEFAULT = "conditional-tca"
"""The default of ``clip-tca adapt``."""

ON_TOP = "linear-tca"
"""What NAME+tca puts on top of a base method."""


def adapter_classes() -> dict[str, type[Adapter]]:
    """The classes of the adapters by their own names: what a saved state names."""
    kinds = (registered.kind for registered in ADAPTERS.values())
    return {kind.__name__: kind for kind in kinds}
