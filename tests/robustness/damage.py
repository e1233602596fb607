"""Damage as hypothesis strategies: bytes, text and JSON documents that were valid, after a few edits.

An edit replaces one piece of the content by another one: a flipped bit, an overwritten size, a cut, an insertion, a
splice or a repetition, depending on the pieces. Hypothesis draws them, and shrinks what fails to the fewest edits.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

SIZES = (0, 1, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
"""Sizes at which readers overflow or allocate too much."""

NAMES = ("", "x", "rows", "zero-shot", "linear-tca", "oracle", "\udcff", "a\nb", "<script>")
"""Strings that mean something to clip-tca, or are hostile."""

WORDS = (
    "", "=", "#", "{}", "{", "}", "{0}", "\n", "\r", "\0", "\ufeff", "é犬", "\u2028", "[[run]]", "'", '"', "-1",
    "1e999",
)  # fmt: skip

EDITS = st.sampled_from((1, 1, 1, 2, 4, 16))

HEADER = 600
"""Bytes in which the headers of NumPy and safetensors write numbers as digits."""

values: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)
"""Any JSON value, and numbers that JSON does not have."""


def positions(length: int) -> SearchStrategy[int]:
    """A position in content of this length; more often than not near an end, where headers and footers are."""
    near = min(length, 80)
    return st.integers(0, near) | st.integers(0, near).map(lambda back: length - back) | st.integers(0, length)


@st.composite
def damaged(draw: DrawFn, contents: Sequence[bytes]) -> bytes:
    """One of ``contents`` after some edits, which may take pieces of the others."""
    data = draw(st.sampled_from(contents))
    for _ in range(draw(EDITS)):
        data = draw(_edited(data, contents))
    return data


@st.composite
def _edited(draw: DrawFn, data: bytes, contents: Sequence[bytes]) -> bytes:
    digits = [match.start() for match in re.finditer(rb"\d", data[:HEADER])]
    kind = draw(st.sampled_from(("flip", "size", "digits", "bytes", "splice", "repeat", "cut")))
    at = draw(st.sampled_from(digits) if kind == "digits" and digits else positions(len(data)))
    piece, length = b"", draw(st.sampled_from((1, 4, 100)))
    if kind == "flip":
        piece, length = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[at : at + 1]), 1
    elif kind == "size":
        size = draw(st.sampled_from(SIZES))
        codes = [code for code, bits in {"B": 8, "H": 16, "I": 32, "Q": 64}.items() if size < 1 << bits]
        piece = struct.pack(draw(st.sampled_from("<>")) + draw(st.sampled_from(codes)), size)
        length = len(piece)
    elif kind == "digits":
        piece, length = str(draw(st.sampled_from(SIZES))).encode(), draw(st.integers(0, 2))
    elif kind == "bytes":
        piece, length = draw(st.binary(max_size=100)), draw(st.sampled_from((0, length)))
    elif kind == "splice":
        other = draw(st.sampled_from(contents))
        piece, length = other[draw(positions(len(other))) :], len(data)
    elif kind == "repeat":
        piece, length = data[at : at + draw(st.sampled_from((4, 64, 1000)))], 0
    elif draw(st.booleans()):
        length = len(data)
    return data[:at] + piece + data[at + length :]


@st.composite
def damaged_text(draw: DrawFn, contents: Sequence[str]) -> str:
    """One of ``contents`` with letters changed, words put in, and lines lost or repeated."""
    text = draw(st.sampled_from(contents))
    for _ in range(draw(EDITS)):
        lines = text.split("\n")
        if draw(st.booleans()):
            line = draw(st.integers(0, len(lines) - 1))
            lines[line : line + 1] = draw(st.sampled_from(([], [lines[line]] * 2, [lines[line], lines[0]])))
            text = "\n".join(lines)
        else:
            at = draw(positions(len(text)))
            word = draw(st.sampled_from(WORDS) | st.text(st.characters(), max_size=2))
            text = text[:at] + word + text[at + draw(st.sampled_from((0, 1, 20))) :]
    return text


@st.composite
def damaged_json(draw: DrawFn, contents: Sequence[Any]) -> Any:
    """One of ``contents`` with values replaced, keys lost or renamed, lists cut or grown."""
    document = copy.deepcopy(draw(st.sampled_from(contents)))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        slots = [(holder, key) for holder in _holders(document) for key in _keys(holder)]
        if not slots:
            return draw(values)
        holder, key = draw(st.sampled_from(slots))
        kind = draw(st.sampled_from(("value", "value", "lose", "repeat", "rename", "number", "copy")))
        if kind == "lose":
            del holder[key]
        elif kind == "repeat" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from(NAMES))] = holder.pop(key)
        elif kind == "number" and isinstance(number := holder[key], (int, float)):
            holder[key] = draw(st.sampled_from((-1, 0, 0.5, 10**18, number + 1, str(number), float("nan"))))
        elif kind == "copy":
            other, place = draw(st.sampled_from(slots))
            holder[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
        else:
            holder[key] = draw(values)
    return document


@st.composite
def damaged_document(draw: DrawFn, contents: Sequence[Any]) -> bytes:
    """A damaged JSON document as a file; at times the bytes of the file are damaged too."""
    data = json.dumps(draw(damaged_json(contents))).encode()
    return draw(damaged([data])) if draw(st.integers(0, 6)) == 6 else data


@st.composite
def text_files(draw: DrawFn, contents: list[str]) -> bytes:
    """Damaged text as a file; at times its bytes are damaged too."""
    data = draw(damaged_text(contents)).encode("utf-8", "surrogatepass")
    return draw(damaged([data])) if draw(st.integers(0, 3)) == 3 else data


def _holders(document: Any) -> list[Any]:
    """Dictionaries and lists of a document, at most 40 of each depth: those near the top are drawn as often."""
    holders: list[Any] = []
    level = [document]
    while level := [value for value in level if isinstance(value, (dict, list))]:
        holders += level[:40]
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return holders


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))[:40]
