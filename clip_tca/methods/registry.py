"""Every name that ``--method`` takes: the adapters, the base methods, and TCA on top of those.

Methods are imported when they are first used, so that the list of names costs no import of torch.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, TypeVar

from clip_tca.adapters.registry import ADAPTERS

if TYPE_CHECKING:
    from clip_tca.methods.base import Method

M = TypeVar("M", bound="Method")

Nature = Literal["transductive", "online", "batch"]
"""How a method sees the test set: solved for all given rows at once; batch after batch, with a state that is carried
on; or each batch alone, forgotten afterwards."""

_HOMES = {
    "tent": "tent:Tent",
    "bn": "bn:BN",
    "clipartt": "clipartt:CLIPArTT",
    "watt-p": "watt:WattP",
    "watt-s": "watt:WattS",
    "tpt": "tpt:TPT",
    "zero": "zero:Zero",
    "mta": "mta:MTA",
    "eata": "eata:EATA",
    "sar": "sar:SAR",
    "tsd": "tsd:TSD",
    "tea": "tea:TEA",
    "tipi": "tipi:TIPI",
    "plc": "plc:PLC",
    "t3a": "t3a:T3A",
    "adanpc": "adanpc:AdaNPC",
    "tda": "tda:TDA",
    "dmn": "dmn:DMN",
    "oga": "oga:OGA",
    "transclip": "mixture:TransCLIP",
    "stata": "mixture:StatA",
    "zlap": "zlap:ZLaP",
    "gmm": "gmm:GMM",
    "dota": "dota:DOTA",
    "bca": "bca:BCA",
    "ecalp": "ecalp:ECALP",
    "dpe": "dpe:DPE",
}
BASES = tuple(_HOMES)
"""Base methods that come with the package."""

ZERO_SHOT = "zero-shot"
"""The classifier without adaptation."""

PLUS = "+tca"
"""Suffix of a base method's name for LinearTCA on top of it."""

EMBEDDING_BASES = BASES[BASES.index("plc") :]
"""Those that see embeddings; the others see images."""

ON_EMBEDDINGS = (ZERO_SHOT, *ADAPTERS)
"""Methods that need embeddings alone."""

METHODS = (*ON_EMBEDDINGS, *[name + plus for name in BASES for plus in ("", PLUS)])
DEFAULT_METHODS = (ZERO_SHOT, "linear-tca", "conditional-tca")

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
    method: type[Method] = resolve_name(f"clip_tca.methods.{_HOMES[name]}")
    return method
