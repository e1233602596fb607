"""Checks of options, where a ValueError names the bad value and the allowed ones; text that messages are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real  # NumPy's scalars count as these
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

LONGEST_REASON = 240
"""Characters of another library's message that are repeated in ours."""
MOST_LISTED = 12
"""With more allowed values than this, name only the one that was probably meant."""


def is_whole(value: Any, least: int) -> bool:
    """Whether ``value`` is a whole number of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}: {not_among(value, list(map(str, allowed)))}")


def not_among(value: Any, allowed: Sequence[str], listed: Sequence[str] = ()) -> str:
    """Text for a value that is not ``allowed``: the one that was probably meant, or all of them (as ``listed``)."""
    from difflib import get_close_matches

    meant = get_close_matches(str(value), allowed, 1)
    if meant and len(allowed) > MOST_LISTED:
        return f"{value!r}; did you mean {meant[0]}?"
    hint = f" (did you mean {meant[0]}?)" if meant else ""
    return f"{value!r}{hint}; allowed are {', '.join(listed or allowed)}"


def install(extra: str) -> str:
    """How to install an extra of this package, for messages about a package that is missing."""
    return f'run pip install ".[{extra}]" in a checkout of clip-tca'


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a bool: any other value would count as true."""
    _check(isinstance(value, bool), name, value, "true and false")


def check_whole(name: str, value: Any, least: int = 1, most: float = math.inf, *, also: object = ...) -> None:
    """Raise ValueError unless ``value`` is a whole number from ``least`` to ``most``, or is ``also``."""
    fits = is_whole(value, least) and value <= most
    _check(fits, name, value, f"whole numbers {_range(least, most)}", also)


def check_number(name: str, value: Any, low: float = 0, high: float = math.inf, *, also: object = ...) -> None:
    """Raise ValueError unless ``value`` is a finite number from ``low`` to ``high``, or is ``also``."""
    _check(_finite(value) and low <= value <= high, name, value, f"numbers {_range(low, high)}", also)


def check_positive(name: str, value: Any, high: float = math.inf) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0, up to ``high``."""
    allowed = f"numbers above 0{f', up to {high}' * (high < math.inf)}"
    _check(_finite(value) and 0 < value <= high, name, value, allowed)


Count = Annotated[int, check_whole]  # at least 1
Natural = Annotated[int, partial(check_whole, least=0)]  # at least 0
Amount = Annotated[float, check_number]  # at least 0
Share = Annotated[float, partial(check_number, high=1)]  # from 0 to 1
Positive = Annotated[float, check_positive]  # above 0
Part = Annotated[float, partial(check_positive, high=1)]  # above 0, up to 1
Flag = Annotated[bool, check_flag]
"""Types of options that say what is allowed; :func:`check_fields` checks them."""


def check_fields(options: object) -> None:
    """Raise ValueError for a field that the types above, or a Literal, do not allow, in its class or a base class."""
    for kind in reversed(type(options).__mro__):
        for name, hint in get_type_hints(kind, include_extras=True).items():
            for check in getattr(hint, "__metadata__", ()):
                check(name, getattr(options, name))
            if get_origin(hint) is Literal:
                one_of(name, getattr(options, name), get_args(hint))


def as_list(name: str, value: Any) -> list[Any]:
    """An option with one value or several, as a list; ValueError if there is none."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ValueError(f"{name}: {value!r}; at least one value is needed")
    return values


def whole_numbers(name: str, value: Any) -> list[int]:
    """An option with one whole number or several, each at least 1: sorted, without duplicates."""
    for number in as_list(name, value):
        check_whole(name, number)
    return sorted(set(as_list(name, value)))


def choices(name: str, value: Any, allowed: tuple[str, ...]) -> list[str]:
    """An option with one or several of ``allowed``, without duplicates."""
    for choice in as_list(name, value):
        one_of(name, choice, allowed)
    return list(dict.fromkeys(as_list(name, value)))


def one_line(reason: object) -> str:
    """An error's message in one line, for another error; a long one ends with a whole sentence, or a whole word."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    start = text[: LONGEST_REASON + 1]
    if start == text:
        return text
    if ". " in start:
        return start.rpartition(". ")[0] + "."
    return (start.rpartition(" ")[0] or text.partition(" ")[0]) + " …"


def counted(number: int, noun: str, form: str = "") -> str:
    """``1 row``, ``2 rows``; ``form`` is the format of the number."""
    return f"{number:{form}} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def visible(text: str) -> str:
    """``text`` with line ends and other control characters written out."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < math.inf


def _check(fits: bool, name: str, value: Any, allowed: str, also: object = ...) -> None:
    if not fits and (type(value) is not type(also) or value != also):
        either = "" if also is ... else f"{also!r} or "
        raise ValueError(f"{name}: {value!r}; allowed are {either}{allowed}")


def _range(low: float, high: float) -> str:
    return f"of at least {low}" if high == math.inf else f"from {low} to {high}"
