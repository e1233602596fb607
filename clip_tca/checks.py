"""Checks of options: a ValueError names the bad value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def whole(value: Any, least: int) -> bool:
    """Whether ``value`` is a whole number of at least ``least``."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r}; allowed are {', '.join(map(str, allowed))}")


def check_shrinkage(value: Any) -> None:
    """Raise ValueError unless ``value`` is ``"auto"`` or a number from 0 to 1."""
    if value != "auto" and not (isinstance(value, (int, float)) and 0 <= value <= 1):
        raise ValueError(f"shrinkage: {value!r}; allowed are 'auto' or a number from 0 to 1")


def check_descent(steps: Any, lr: Any) -> None:
    """Raise ValueError unless ``steps`` is a whole number ≥ 0 and ``lr`` a positive number."""
    if not whole(steps, 0):
        raise ValueError(f"steps: {steps!r}; a whole number of at least 0 is needed (20 is the default)")
    if not (isinstance(lr, (int, float)) and 0 < lr < float("inf")):
        raise ValueError(f"lr: {lr!r}; a positive number is needed (0.001 is the default)")


def check_rate(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a positive number."""
    if isinstance(value, bool) or not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise ValueError(f"{name}: {value!r}; a positive number is needed, such as 0.001")


def check_whole(name: str, value: Any, also: str = "") -> None:
    """Raise ValueError unless ``value`` is a whole number of at least 1."""
    if not whole(value, 1):
        raise ValueError(f"{name}: {value!r}; allowed are {also}whole numbers of at least 1")


def check_number(name: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Raise ValueError unless ``value`` is a finite (whole) number from ``low`` to ``high``."""
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not (low <= value <= high and math.isfinite(value)):
        range_ = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name}: {value!r}; give a {'whole ' if whole else ''}number {range_}")
