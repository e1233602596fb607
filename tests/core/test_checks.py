from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from clip_tca.core.checks import (
    LONGEST_REASON,
    Count,
    Flag,
    Positive,
    Share,
    check_fields,
    check_number,
    check_whole,
    choices,
    not_among,
    one_line,
    whole_numbers,
)  # fmt: skip

LONG = "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cache. " * 9


@pytest.mark.parametrize("start", range(60))
def test_a_long_reason_ends_with_a_whole_sentence_or_word(start):
    text = one_line(LONG[start:])
    assert text.endswith("in the cache.")
    assert LONG[start:].lstrip().startswith(text)
    words = LONG[start:].replace(".", "").split()
    cut = one_line(" ".join(words)).removesuffix(" …").split()
    assert cut == words[: len(cut)]
    assert LONGEST_REASON - 30 < len(" ".join(cut)) <= LONGEST_REASON
    assert len(text) <= LONGEST_REASON


def test_a_short_reason_is_whole_and_a_single_long_word_stays():
    assert one_line("no\n  route to   host") == "no route to host"
    assert one_line(ValueError()) == "ValueError"
    assert one_line("x" * 999 + " and more") == "x" * 999 + " …"


@dataclass
class Options:
    """Options as those of a method."""

    rounds: Count = 3
    margin: Share = 0.5
    lr: Positive = 1e-3
    plain: Flag = False
    kind: Literal["cosine", "l1"] = "cosine"


@dataclass
class Others(Options):
    """The same with another default, without saying again what is allowed."""

    rounds: int = 5


@pytest.mark.parametrize("kind", [Options, Others])
def test_the_type_of_an_option_says_what_is_allowed(kind):
    check_fields(kind(rounds=np.int64(2), margin=np.float32(0.25)))
    ranges = {"rounds": "of at least 1", "margin": "from 0 to 1", "lr": "above 0", "plain": "true and false"}
    for option, allowed in {**ranges, "kind": "cosine, l1"}.items():
        for value in (-3, float("nan")):
            with pytest.raises(ValueError, match=rf"^{option}: {value}.*{allowed}$"):
                check_fields(kind(**{option: value}))


def test_one_more_value_may_be_allowed():
    check_whole("k", "auto", also="auto")
    check_number("memory", None, also=None)
    for value, also in ((None, "auto"), ("auto", None), (True, 1), (0, "auto")):
        with pytest.raises(ValueError, match=f"^k: {value!r}; allowed are {also!r} or whole numbers of at least 1$"):
            check_whole("k", value, also=also)


def test_lists_of_options():
    assert whole_numbers("sizes", (9, 3, 9)) == [3, 9]
    assert choices("kinds", ["b", "a", "b"], ("a", "b")) == ["b", "a"]
    for wrong in ([], [0], 0):
        with pytest.raises(ValueError, match=r"^sizes: "):
            whole_numbers("sizes", wrong)
    assert not_among("cosin", ["cosine", "l1"]) == "'cosin' (did you mean cosine?); allowed are cosine, l1"
    assert not_among("m3", [f"m{n}x" for n in range(20)]) == "'m3'; did you mean m3x?"
