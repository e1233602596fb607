"""Check JSON content against types: TypedDict, ``dict[str, T]``, ``list[T]``, Literal, ``T | None`` and scalars."""

from __future__ import annotations

import reprlib
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from typing_extensions import NotRequired

LARGEST_NUMBER = 2**63
"""Numbers beyond it can't be measurements, and could overflow in what is computed from them."""

_SCALARS = {str: "a string", bool: "true or false", int: "a whole number of at least 0", float: "a finite number"}


def validate(value: Any, kind: Any, field: str = "") -> None:
    """Check in depth that ``value`` is of the type ``kind``; ValueError names the first wrong field in one line.

    Whole numbers are counts, so they are not negative. Keys that a TypedDict does not name are ignored.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if is_typeddict(kind) or origin is dict:
        _expect(isinstance(value, dict), value, field, "an object")
        if is_typeddict(kind):
            fields, others = _fields(kind), Any
        else:  # of a dictionary by Literal, every key is required
            fields, others = dict.fromkeys(get_args(arguments[0]), (arguments[1], True)), arguments[1]
        for name, (_, required) in fields.items():
            if required and name not in value:
                raise ValueError(f"{field}: {name!r} is missing" if field else f"{name!r} is missing")
        for name, item in value.items():
            validate(item, fields[name][0] if name in fields else others, f"{field}.{name}" if field else name)
    elif origin is list:
        _expect(isinstance(value, list), value, field, "a list")
        if (
            arguments[0] is int
            and value
            and set(map(type, value)) == {int}
            and 0 <= min(value) <= max(value) < LARGEST_NUMBER
        ):
            return  # a confusion matrix of many classes is long
        for i, item in enumerate(value):
            validate(item, arguments[0], f"{field}[{i}]")
    elif origin is Literal:
        _expect(value in arguments, value, field, f"one of {', '.join(map(str, arguments))}")
    elif origin in (Union, UnionType):
        if value is not None or NoneType not in arguments:
            validate(value, next(one for one in arguments if one is not NoneType), field)
    else:
        _expect(_is_scalar(value, kind), value, field, _SCALARS[kind])


def _expect(condition: bool, value: Any, field: str, expected: str) -> None:
    if not condition:
        container = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else ""
        raise ValueError(f"{field or 'it'} is {container or reprlib.repr(value)}, not {expected}")


def _is_scalar(value: Any, kind: type) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value < LARGEST_NUMBER
    if kind is float:
        return type(value) in (int, float) and abs(value) < LARGEST_NUMBER  # false for NaN, too
    return type(value) is kind


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Type of each field and whether it is required."""
    fields: dict[str, tuple[Any, bool]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        required = not optional and name in kind.__required_keys__  # type: ignore[attr-defined]
        fields[name] = (get_args(hint)[0] if optional else hint, required)
    return fields
