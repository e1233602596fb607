"""How much accuracy changed, from a few answers of a person.

Accuracy can only change on the m of n pictures whose label changed. A person is asked about k of those, drawn
at random. With d = +1 where the new label is right, −1 where the old one is and 0 where neither is,

    change = (m / n) · mean of d,

which is unbiased, whatever the pictures and the method. The interval is that of Bonett and Price for a difference of
paired proportions ("Adjusted Wald confidence interval for a difference of binomial proportions based on paired data",
Journal of Educational and Behavioral Statistics, 2012): one answer of either kind is added, so that it does not vanish
when all answers agree. It shrinks by √(1 − k/m), as k of the m are known. eval/ask.md has its coverage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clip_tca.core.checks import check_whole
from clip_tca.core.remote import Location, locate
from clip_tca.explanation import Outcome

if TYPE_CHECKING:
    import pandas as pd

BEFORE, AFTER, ANOTHER, UNKNOWN = ANSWERS = ("before", "after", "another", "can't tell")
NORMAL = 1.959964  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Change:
    """Estimated change in accuracy, in percentage points, with a 95 % confidence interval."""

    points: float  # positive if adaptation improved accuracy
    low: float  # ends of the interval
    high: float
    answered: int  # answers used
    unknown: int  # answers "can't tell", which are left out
    changed: int  # pictures whose label changed
    pictures: int  # all of them

    @property
    def says(self) -> Outcome:
        return "gain" if self.low > 0 else "loss" if self.high < 0 else "chance"

    def __str__(self) -> str:
        sure = {"gain": "gained", "loss": "lost"}.get(self.says, "can't be told from chance")
        return f"{self.points:+.1f} points (95 % interval {self.low:+.1f} to {self.high:+.1f}): {sure}"


def sample_changed(table: pd.DataFrame, count: int = 40, seed: int = 0) -> pd.DataFrame:
    """Draw a random sample of the pictures whose label changed, to be checked by a person.

    Args:
        table: The table returned by :func:`clip_tca.label`.
        count: Number of pictures to draw. If fewer changed, all of them are returned.
        seed: Seed of the random draw. The same table and seed give the same pictures.

    Returns:
        The drawn rows of ``table``.
    """
    check_whole("count", count)
    changed = table[table["changed"]]
    return changed.sample(min(count, len(changed)), random_state=seed)


def estimate_change(table: pd.DataFrame, answers: pd.DataFrame | Mapping[str, str]) -> Change:
    """Estimate how adaptation changed the accuracy, from a person's answers about some pictures.

    Args:
        table: The table returned by :func:`clip_tca.label` that was passed to :func:`sample_changed`.
        answers: Answers about pictures drawn by :func:`sample_changed`: a dictionary from file to answer, or a table
            with the columns ``file`` and ``answer``. An answer is ``before`` or ``after`` (the label that is right),
            ``another`` (neither is), ``can't tell``, or the name of the true class. Empty answers are ignored.

    Returns:
        The estimated change in accuracy with its 95 % confidence interval. It can be printed.

    Raises:
        ValueError: If an answer is about a picture whose label did not change, or if no answer can be used.
    """
    import pandas as pd

    if not isinstance(answers, Mapping):
        if missing := [name for name in ("file", "answer") if name not in answers]:
            raise ValueError(f"answers: no column {missing[0]!r}; there are {', '.join(map(str, answers.columns))}")
        answers = {str(file): answer for file, answer in zip(answers["file"], answers["answer"], strict=True)}
    texts = {file: "" if pd.isna(answer) else str(answer).strip() for file, answer in answers.items()}
    known = {file: text for file, text in texts.items() if text}
    labels = table["proposal" if "proposal" in table else "label"]
    changed = table.assign(after=labels)[table["changed"]].set_index("file")[["zero_shot", "after"]]
    if others := [file for file in known if file not in changed.index]:
        raise ValueError(
            f"answers: {len(others)} of {len(known)} are about pictures whose label did not change here, such as "
            f"{others[0]}; they are of another run: label with the same pictures, classes and options, or ask again"
        )
    answered = [_score(answer, *changed.loc[file]) for file, answer in known.items()]
    scores = [score for score in answered if score is not None]
    if not scores:
        raise ValueError(f"answers: none of {len(known)} says what a picture shows; allowed are {', '.join(ANSWERS)}")
    share = 100 * len(changed) / len(table)
    points, low, high = (
        share * value for value in interval(scores.count(1), scores.count(-1), len(scores), len(changed))
    )
    return Change(points, low, high, len(scores), len(answered) - len(scores), len(changed), len(table))


def interval(right_after: int, right_before: int, answered: int, changed: int) -> tuple[float, float, float]:
    """The mean of d among those changed, and its 95 % interval."""
    mean = (right_after - right_before) / answered
    gained, lost = (right_after + 1) / (answered + 2), (right_before + 1) / (answered + 2)
    half = NORMAL * ((gained + lost - (gained - lost) ** 2) / (answered + 2)) ** 0.5
    known = max(0.0, 1 - answered / changed) ** 0.5
    low, high = (mean + known * (gained - lost + side * half - mean) for side in (-1, 1))
    return mean, max(low, -1.0), min(high, 1.0)


def _score(answer: str, before: str, after: str) -> int | None:
    """+1 if the label after is right, −1 if the one before is, 0 if neither is, None if it can't be told."""
    if answer.casefold() == UNKNOWN or answer.casefold() == "can’t tell":
        return None
    right = {BEFORE: before, AFTER: after}.get(answer.casefold(), answer)
    return int(right == after) - int(right == before)


def read_answers(path: str | Location) -> pd.DataFrame:
    """A CSV file of answers, as the page of ``--ask`` saves it."""
    import pandas as pd

    path = locate(path) if isinstance(path, (str, Path)) else path
    if not path.is_file():
        raise FileNotFoundError(f"answers: {path}: no such file; save it from the page that --ask wrote")
    try:
        with path.open("rb") as file:
            return pd.read_csv(file, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own errors are such
        raise ValueError(f"answers: {path} is not a CSV file with columns file and answer ({error})") from None
