"""The list of adapters, by their names for ``--method``. Everything else comes from the classes.

Importing this module does not import torch. A class is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter
    from clip_tca.classifier import LinearClassifier


@dataclass(frozen=True)
class RegisteredAdapter:
    """A named adapter: a class, and the options that make it what the name says.

    Attributes:
        home: Module in :mod:`clip_tca.adapters` and class, such as ``linear.LinearTCA``.
        summary: A line for ``clip-tca methods``.
        options: Options of the name; others can be set beside them.
    """

    home: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def oracle(self) -> bool:
        """Whether it uses true labels."""
        return self.options.get("shares") == "oracle"

    @property
    def kind(self) -> type[Adapter]:
        """Its class."""
        module, _, name = self.home.partition(".")
        kind: type[Adapter] = getattr(import_module(f"clip_tca.adapters.{module}"), name)
        return kind

    def build(self, classifier: LinearClassifier, **options: Any) -> Adapter:
        """A new adapter for ``classifier``; ``options`` override those of the name."""
        return self.kind(classifier, **{**self.options, **options})


PAPER = {"k": 20, "shares": "global", "solver": "gradient"}
PUBLIC_CODE = {"k": 20, "shares": "oracle", "uncertainty": "entropy", "solver": "gradient"}

ADAPTERS = {
    "linear-tca": RegisteredAdapter(
        "linear.LinearTCA", "maps all embeddings onto mean and covariance of the most certain ones, with our defaults"
    ),
    "linear-tca:paper": RegisteredAdapter(
        "linear.LinearTCA", "the same as the paper prints it: the k most certain overall, gradient steps", PAPER
    ),
    "linear-tca:reference": RegisteredAdapter(
        "linear.LinearTCA", "the same as the public code does it: an oracle, which counts true labels", PUBLIC_CODE
    ),
    "mlp2-tca": RegisteredAdapter("mlp.MLPTCA", "linear-tca with a residual MLP of 2 layers behind it", {"layers": 2}),
    "mlp3-tca": RegisteredAdapter("mlp.MLPTCA", "linear-tca with a residual MLP of 3 layers behind it", {"layers": 3}),
    "conditional-tca": RegisteredAdapter(
        "conditional.ConditionalTCA", "aligns class by class: soft class means, one shared covariance"
    ),
}

DEFAULT = "conditional-tca"
"""The default of ``clip-tca adapt``."""

ON_TOP = "linear-tca"
"""What NAME+tca puts on top of a base method."""
