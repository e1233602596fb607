"""Damage as hypothesis strategies: bytes that were a valid file, after a few edits.

An edit replaces one piece of the content by another one: a flipped bit, an overwritten size, a cut, an insertion, a
splice or a repetition, depending on the pieces. Hypothesis draws them, and shrinks what fails to the fewest edits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

SIZES = (0, 1, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
"""Sizes at which readers overflow or allocate too much."""

EDITS = st.sampled_from((1, 1, 1, 2, 4, 16))

HEADER = 600
"""Bytes in which the headers of NumPy and safetensors write numbers as digits."""


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
