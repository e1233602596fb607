"""95 % intervals of accuracies, and of gains over zero-shot or over a base method.

Only images on which the predictions of two methods differ can tell them apart. With D images gained and m predictions
changed, the standard error of D is at most √m, so ±(1.96 √m + 1) images is a conservative 95 % interval (McNemar's test
with continuity correction). Where a record does not say how many changed, the class counts bound it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from clip_tca.explanation import Outcome
from clip_tca.methods.registry import PLUS, ZERO_SHOT
from clip_tca.results.schema import ResultRow

CONSERVATIVE = (
    "The interval is conservative: it treats every changed prediction as one that could have gone the other way. Where "
    "a record does not say how many changed, the most that its class counts allow is used."
)


class Gain(NamedTuple):
    """What a method gained."""

    reference: str  # NAME for NAME+tca where the record has it, else zero-shot
    points: float  # the mean over seeds
    half: float  # of the 95 % interval
    says: Outcome  # whether the interval excludes 0; ``same``: nothing differs

    @property
    def interval(self) -> str:
        return f"{self.points - self.half:+.1f} to {self.points + self.half:+.1f}"


def gains(rows: Sequence[ResultRow]) -> dict[str, dict[str, Gain | None]]:
    """The gain of every method by domain; None of zero-shot, and where the record does not have the reference."""
    groups: dict[str, dict[str, list[ResultRow]]] = {}
    for row in rows:
        groups.setdefault(row["domain"], {}).setdefault(row["method"], []).append(row)
    return {domain: {name: _gain(name, methods) for name in methods} for domain, methods in groups.items()}


def _gain(name: str, methods: dict[str, list[ResultRow]]) -> Gain | None:
    base = name.removesuffix(PLUS)
    reference = base if base != name and base in methods else ZERO_SHOT
    if reference == name or reference not in methods:
        return None
    pairs = list(zip(methods[name], methods[reference], strict=True))
    points = fmean(100 * (row["correct"] - other["correct"]) / row["divisor"] for row, other in pairs)
    counted = [count for row, other in pairs if (count := _differing(row, other)) is not None]
    differing = fmean(counted if len(counted) == len(pairs) else (most_differing(*pair) for pair in pairs))
    half = 100 * half_width(differing) / fmean(row["divisor"] for row, _ in pairs)
    return Gain(reference, points, half, outcome(points, half))


def _differing(row: ResultRow, reference: ResultRow) -> float | None:
    """Images on which the predictions of two rows differ, if the record says."""
    if reference["method"] == ZERO_SHOT and "changed" in row:
        return row["changed"]
    diagnosis, compared_with = row.get("diagnosis"), row["method"].removesuffix(PLUS)  # NAME for NAME+tca
    if diagnosis is None or diagnosis["changed"] is None:
        return None
    is_same = reference["method"] == (ZERO_SHOT if compared_with == row["method"] else compared_with)
    return diagnosis["changed"] * row["images"] if is_same else None


def average_gain(rows: Sequence[ResultRow], method: str) -> Gain | None:
    """The mean gain of a method over zero-shot in all domains; None where there is none to compare with."""
    compared = [row for row in rows if row["method"] in (method, ZERO_SHOT)]
    by_domain = [gain for methods in gains(compared).values() if (gain := methods.get(method))]
    if not by_domain:
        return None
    points = fmean(gain.points for gain in by_domain)
    half = sqrt(sum(gain.half**2 for gain in by_domain)) / len(by_domain)
    return Gain(by_domain[0].reference, points, half, outcome(points, half))


def outcome(points: float, half: float) -> Outcome:
    """What an interval of ± ``half`` around ``points`` says."""
    return "gain" if points > half else "loss" if points < -half else "chance" if half else "same"


def half_width(differing: float) -> float:
    """Half the 95 % interval of the number of images gained, when at most ``differing`` predictions differ."""
    return 1.96 * differing**0.5 + 1 if differing else 0.0


def most_differing(row: ResultRow, reference: ResultRow) -> int:
    """The most images on which one of two methods can be right and the other wrong, by their counts in each class."""
    pairs = [(row["per_class"][name], reference["per_class"][name]) for name in row["per_class"]]
    return sum(min(a["correct"] + b["correct"], 2 * a["images"] - a["correct"] - b["correct"]) for a, b in pairs)


def accuracy_interval(correct: float, images: int) -> tuple[float, float]:
    """Wilson's interval of an accuracy, in percent."""
    z = 1.96
    middle = (correct + z**2 / 2) / (images + z**2)
    half = z / (images + z**2) * sqrt(correct * (images - correct) / images + z**2 / 4)
    return 100 * (middle - half), 100 * (middle + half)
