"""Checks of options, where a ValueError names the bad value and the allowed ones; text from outside in one line."""

from __future__ import annotations

import math
from numbers import Integral, Real  # NumPy's scalars are such too
from typing import Any

LONGEST_REASON = 240
"""Characters of another library's message that are repeated in ours."""


def is_whole(value: Any, least: int) -> bool:
    """Whether ``value`` is a whole number of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r}; allowed are {', '.join(map(str, allowed))}")


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a bool: any other value would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r}; allowed are true and false")


def check_whole(name: str, value: Any, least: int = 1, most: float = math.inf, *, also: str | None = "") -> None:
    """Raise ValueError unless ``value`` is a whole number from ``least`` to ``most``, or is ``also``."""
    if not (_is(value, also) or (is_whole(value, least) and value <= most)):
        raise ValueError(f"{name}: {value!r}; allowed are {_also(also)}whole numbers {_range(least, most)}")


def check_number(name: str, value: Any, low: float = 0, high: float = math.inf, *, also: str | None = "") -> None:
    """Raise ValueError unless ``value`` is a finite number from ``low`` to ``high``, or is ``also``."""
    if not (_is(value, also) or (_finite(value) and low <= value <= high)):
        raise ValueError(f"{name}: {value!r}; allowed are {_also(also)}numbers {_range(low, high)}")


def check_positive(name: str, value: Any, high: float = math.inf) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0, up to ``high``."""
    if not (_finite(value) and 0 < value <= high):
        raise ValueError(f"{name}: {value!r}; allowed are numbers above 0{f', up to {high}' * (high < math.inf)}")


def as_list(name: str, value: Any) -> list[Any]:
    """An option with one value or several, as a list; ValueError if there is none."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ValueError(f"{name}: {value!r}; at least one value is needed")
    return values


def whole_numbers(name: str, value: Any) -> list[int]:
    """An option with one whole number or several, each at least 1: sorted, without duplicates."""
    values = as_list(name, value)
    for number in values:
        check_whole(name, number)
    return sorted(set(values))


def choices(name: str, value: Any, allowed: tuple[str, ...]) -> list[str]:
    """An option with one or several of ``allowed``, without duplicates."""
    values = as_list(name, value)
    for choice in values:
        one_of(name, choice, allowed)
    return list(dict.fromkeys(values))


def one_line(reason: object) -> str:
    """The message of an error in one line, for another error; its class if it has none.

    A long one ends after a whole word, with an ellipsis; a word is never cut, and the first is always there.
    """
    words = str(reason).split() or [type(reason).__name__]
    kept = max((i for i in range(1, len(words) + 1) if len(" ".join(words[:i])) <= LONGEST_REASON), default=1)
    return " ".join(words[:kept]) + (" …" if kept < len(words) else "")


def visible(text: str) -> str:
    """``text`` with line ends and other control characters written out."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < math.inf


def _is(value: Any, also: str | None) -> bool:
    return also != "" and (value is None if also is None else isinstance(value, str) and value == also)


def _also(also: str | None) -> str:
    return "" if also == "" else f"{also!r} or "


def _range(low: float, high: float) -> str:
    return f"of at least {low}" if high == math.inf else f"from {low} to {high}"
