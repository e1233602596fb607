"""Base methods of test-time adaptation, one file each. None of them knows TCA.

They are imported when they are asked for, so that the names alone cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clip_tca.methods.base import Method

_HOMES = {
    "tent": "tent.Tent",
    "clipartt": "clipartt.CLIPArTT",
    "watt-p": "watt.WattP",
    "watt-s": "watt.WattS",
    "tpt": "tpt.TPT",
    "plc": "plc.PLC",
    "eata": "eata.EATA",
    "sar": "sar.SAR",
    "tsd": "tsd.TSD",
    "tea": "tea.TEA",
    "tipi": "tipi.TIPI",
    "t3a": "t3a.T3A",
    "adanpc": "adanpc.AdaNPC",
    "tda": "tda.TDA",
}
NAMES = tuple(_HOMES)


def base_method(name: str) -> type[Method]:
    """The class of a base method."""
    module, _, kind = _HOMES[name].partition(".")
    found: type[Method] = getattr(import_module(f"clip_tca.methods.{module}"), kind)
    return found
