from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from clip_tca.core.checks import LONGEST_REASON, Count, Share, check_fields, one_line

LONG = "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cache. " * 9


def test_a_long_reason_ends_with_a_whole_sentence():
    for start in range(60):
        told = one_line(LONG[start:])
        assert told.endswith("in the cache.")
        assert LONG[start:].lstrip().startswith(told)
        assert len(told) <= LONGEST_REASON


def test_a_long_sentence_is_never_cut_inside_a_word():
    words = LONG.replace(".", "").split()
    told = one_line(" ".join(words)).removesuffix(" …").split()
    assert told == words[: len(told)]
    assert LONGEST_REASON - 30 < len(" ".join(told)) <= LONGEST_REASON


def test_a_short_reason_is_whole_and_a_single_long_word_stays():
    assert one_line("no\n  route to   host") == "no route to host"
    assert one_line(ValueError()) == "ValueError"
    assert one_line("x" * 999 + " and more") == "x" * 999 + " …"


@dataclass
class Options:
    """Options as those of a method."""

    rounds: Count = 3
    margin: Share = 0.5
    kind: Literal["cosine", "l1"] = "cosine"


@dataclass
class Others(Options):
    """The same with another default, without saying again what is allowed."""

    rounds: int = 5


@pytest.mark.parametrize("kind", [Options, Others])
def test_the_type_of_an_option_says_what_is_allowed(kind):
    check_fields(kind())
    for option, allowed in {"rounds": "of at least 1", "margin": "from 0 to 1", "kind": "cosine, l1"}.items():
        with pytest.raises(ValueError, match=rf"^{option}: -3.*{allowed}$"):
            check_fields(kind(**{option: -3}))
