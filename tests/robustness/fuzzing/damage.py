"""Damage, for ``benchmarks/fuzz.py``: bytes, text and JSON that were right and are not quite so any more."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

NUMBERS = (0, 1, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
"""Sizes that readers stumble over."""

JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 10**6, 10**30, 0.5, float("nan"), float("inf"), -1e308, "", "x", "linear-tca", "oracle",
    "\udcff", "a\nb", "<script>", [], [[]], [None], [0, "x"], {}, {"": None}, {"x": {"x": []}},
)  # fmt: skip

WORDS = (
    "", "=", "#", "{}", "{", "}", "{0}", "\n", "\r", "\0", "\ufeff", "é犬", "\u2028", "[[run]]", "'", '"', "-1",
    "1e999",
)  # fmt: skip


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """``data`` after one to four mishaps; ``others`` lend the parts that are spliced in."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(_MISHAPS)(data, rng) if rng.random() < 0.9 else _splice(data, rng, others)
    return data


def damaged_text(text: str, rng: random.Random) -> str:
    """``text`` with words put in, lines lost, swapped or repeated, and letters changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        where, at = rng.randrange(len(lines)), rng.randrange(len(text) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD800)))) + text[at + 1 :]
        elif kind == 2:
            text = "\n".join(lines[:where] + lines[where + 1 :])
        elif kind == 3:
            text = "\n".join([*lines, lines[where]])
        else:
            text = text[:at] + text[at + rng.randrange(1, 20) :]
    return text


def damaged_json(content: Any, rng: random.Random) -> Any:
    """``content`` with values replaced, keys lost, lists cut or grown, one to three times."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [(holder, key) for holder in _holders(content) for key in _keys(holder)]
        if not places:
            return rng.choice(JUNK)
        holder, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "rows", "zero-shot"))] = holder.pop(key)
        elif kind == 3 and isinstance(holder[key], (int, float)):
            holder[key] = rng.choice((-1, 0, 0.5, 10**18, holder[key] + 1, str(holder[key]), float("nan")))
        elif kind == 4:
            other, place = rng.choice(places)
            holder[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
        else:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
    return content


def as_file(content: Any, rng: random.Random) -> bytes:
    """JSON as bytes; now and then these are damaged too."""
    data = json.dumps(content).encode()
    return damaged(data, rng, [data]) if rng.random() < 0.15 else data


def _holders(content: Any) -> list[Any]:
    """All dictionaries and lists inside, the few near the top as likely as the many below."""
    found, level = [], [content]
    while level:
        level = [one for one in level if isinstance(one, (dict, list))]
        found += level[:40]
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))[:40]


def _place(data: bytes, rng: random.Random) -> int:
    """Somewhere; as often as not near the beginning or the end, where headers are."""
    if not data:
        return 0
    near = min(len(data), 80)
    return rng.choice((rng.randrange(len(data)), rng.randrange(near), len(data) - 1 - rng.randrange(near)))


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 8, 64)) if data else 0):
        changed[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _number(data: bytes, rng: random.Random) -> bytes:
    at, number = _place(data, rng), rng.choice(NUMBERS)
    code = rng.choice([c for c, most in {"B": 8, "H": 16, "I": 32, "Q": 64}.items() if number < 1 << most])
    packed = struct.pack(rng.choice("<>") + code, number)
    return data[:at] + packed + data[at + len(packed) :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]


def _lose(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 4, 100)) :]


def _splice(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, length = _place(data, rng), rng.choice((4, 64, 1000))
    return data[: start + length] + data[start:]


def _digits(data: bytes, rng: random.Random) -> bytes:
    """Another number where one is written out, as in the headers of NumPy and safetensors."""
    places = [i for i, byte in enumerate(data[:600]) if 48 <= byte < 58]
    if not places:
        return data
    at = rng.choice(places)
    return data[:at] + str(rng.choice(NUMBERS)).encode() + data[at + rng.randrange(3) :]


_MISHAPS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _flip, _number, _number, _cut, _insert, _lose, _repeat, _digits
)  # fmt: skip
