"""Every name that ``--method`` takes: the adapters, the base methods, and TCA on top of those.

Classes are imported when they are first used, so that the list of names costs no import of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from clip_tca.adapters.base import Adapter
    from clip_tca.classifier import LinearClassifier
    from clip_tca.methods.base import Method

M = TypeVar("M", bound="Method")

Nature = Literal["transductive", "online", "batch"]
"""How a method sees the test set: solved for all given rows at once; batch after batch, with a state that is carried
on; or each batch alone, forgotten afterwards."""


@dataclass(frozen=True)
class RegisteredAdapter:
    """A named adapter: a class, and the options that make it what the name says."""

    path: str  # module in clip_tca.adapters, and class
    summary: str  # a line for `clip-tca methods`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the name; others can be set beside them

    @property
    def oracle(self) -> bool:
        """Whether it uses true labels."""
        return self.options.get("shares") == "oracle"

    @property
    def kind(self) -> type[Adapter]:
        """Its class."""
        kind: type[Adapter] = resolve_name(f"clip_tca.adapters.{self.path}")
        return kind

    def build(self, classifier: LinearClassifier, **options: Any) -> Adapter:
        """A new adapter for ``classifier``; ``options`` override those of the name."""
        return self.kind(classifier, **{**self.options, **options})


PAPER = {"k": 20, "shares": "global", "solver": "gradient"}
PUBLIC_CODE = {"k": 20, "shares": "oracle", "uncertainty": "entropy", "solver": "gradient"}

ADAPTERS = {
    "linear-tca": RegisteredAdapter(
        "linear:LinearTCA", "maps all embeddings onto mean and covariance of the most certain ones, with our defaults"
    ),
    "linear-tca:paper": RegisteredAdapter(
        "linear:LinearTCA", "the same as the paper prints it: the k most certain overall, gradient steps", PAPER
    ),
    "linear-tca:reference": RegisteredAdapter(
        "linear:LinearTCA", "the same as the public code does it: an oracle, which counts true labels", PUBLIC_CODE
    ),
    "mlp2-tca": RegisteredAdapter("mlp:MLPTCA", "linear-tca with a residual MLP of 2 layers behind it", {"layers": 2}),
    "mlp3-tca": RegisteredAdapter("mlp:MLPTCA", "linear-tca with a residual MLP of 3 layers behind it", {"layers": 3}),
    "conditional-tca": RegisteredAdapter(
        "conditional:ConditionalTCA", "aligns class by class: soft class means, one shared covariance"
    ),
}

BASE_METHODS = {
    "tent": "entropy:Tent",
    "bn": "tower:BN",
    "clipartt": "templates:CLIPArTT",
    "watt-p": "templates:WattP",
    "watt-s": "templates:WattS",
    "tpt": "views:TPT",
    "zero": "views:Zero",
    "mta": "views:MTA",
    "eata": "entropy:EATA",
    "sar": "entropy:SAR",
    "tsd": "entropy:TSD",
    "tea": "entropy:TEA",
    "tipi": "entropy:TIPI",
    "plc": "weights:PLC",
    "t3a": "weights:T3A",
    "adanpc": "caches:AdaNPC",
    "tda": "caches:TDA",
    "dmn": "caches:DMN",
    "oga": "gaussians:OGA",
    "transclip": "gaussians:TransCLIP",
    "stata": "gaussians:StatA",
    "zlap": "graphs:ZLaP",
    "gmm": "gaussians:GMM",
    "dota": "gaussians:DOTA",
    "bca": "weights:BCA",
    "ecalp": "graphs:ECALP",
    "dpe": "weights:DPE",
}
"""Base methods that come with the package: module in :mod:`clip_tca.methods` and class."""

BASES = tuple(BASE_METHODS)
EMBEDDING_BASES = BASES[BASES.index("plc") :]  # these see embeddings, the others images

ZERO_SHOT = "zero-shot"  # the classifier without adaptation
DEFAULT = "conditional-tca"  # of `clip-tca adapt` and `label`
ON_TOP = "linear-tca"  # what NAME+tca puts on top of a base method
PLUS = "+tca"

ON_EMBEDDINGS = (ZERO_SHOT, *ADAPTERS)
"""Methods that need embeddings alone."""

METHODS = (*ON_EMBEDDINGS, *[name + plus for name in BASES for plus in ("", PLUS)])
DEFAULT_METHODS = (ZERO_SHOT, ON_TOP, DEFAULT)

RIVAL_METHODS = (*DEFAULT_METHODS, *BASES[BASES.index("tda") :])
"""The defaults, and what was published since 2024 on embeddings alone."""

GROUPS = EVERY, RIVALS = "all", "rivals"
"""Names for all methods that use no labels, and for :data:`RIVAL_METHODS`."""

ALLOWED = (
    f"{', '.join([*ON_EMBEDDINGS, *BASES])}; NAME{PLUS} puts LinearTCA on top of {BASES[0]} and those after it; "
    f"{EVERY} is every method but the oracle, {RIVALS} is {', '.join(RIVAL_METHODS)}"
)

_REGISTERED: dict[str, type[Method]] = {}


def register(method: type[M]) -> type[M]:
    """Register your own method under its ``name`` for :func:`clip_tca.evaluate`; also a class decorator.

    Another class of the same name replaces the first.

    Raises:
        ValueError: If the class lacks an attribute of :class:`clip_tca.Method`, or its name is taken.
    """
    for attribute in ("name", "summary", "updates", "backpropagation", "sees"):
        if not hasattr(method, attribute):
            raise ValueError(
                f"method: {method.__name__} has no {attribute!r}; clip_tca/methods/base.py says what it is"
            )
    if method.name in (*METHODS, *GROUPS) or method.name.endswith(PLUS):
        raise ValueError(f"method: the name {method.name!r} is taken; give {method.__name__} another")
    _REGISTERED[method.name] = method
    return method


def registered() -> tuple[str, ...]:
    """Names of the methods that were registered."""
    return tuple(_REGISTERED)


def base_method(name: str) -> type[Method]:
    """The class of a base method."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    method: type[Method] = resolve_name(f"clip_tca.methods.{BASE_METHODS[name]}")
    return method
