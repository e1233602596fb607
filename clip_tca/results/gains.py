"""Gain and loss of each method in a record, and whether they exceed chance.

A record holds counts, not which image was right. Of two methods on the same n images, only those on which their
predictions differ can tell them apart: with D images gained and m predictions changed, the standard error of D is at
most √m, so ±(1.96 √m + 1) images is a conservative 95 % interval (McNemar's test with continuity correction, counting
every changed prediction). Where a record does not say how many changed, the class counts bound it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from clip_tca.explanation import Diagnosis
from clip_tca.methods.registry import PLUS, ZERO_SHOT
from clip_tca.results.schema import EvaluationRecord, ResultRow


@dataclass(frozen=True)
class Gain:
    """What a method gained over its reference on a domain, in percentage points: mean over seeds, by seed, by class.

    The reference is NAME for NAME+tca where the record has it, and zero-shot otherwise. ``beyond_chance`` says whether
    the 95 % interval excludes 0; ``same``: nothing differs. ``pairs_known``: changed predictions were counted, not
    bounded.
    """

    reference: str
    gain: float
    interval: list[float]
    beyond_chance: Literal["gain", "loss", "chance", "same"]
    pairs_known: bool
    gains: list[float]
    classes: dict[str, float]


@dataclass(frozen=True)
class MethodResult:
    """A method on a domain, over all seeds: mean accuracy (%), right answers by seed, diagnosis of the first seed."""

    method: str
    uses_labels: bool
    accuracy: float
    correct: list[int]
    diagnosis: Diagnosis | None
    gain: Gain | None


@dataclass(frozen=True)
class DomainResult:
    """A domain: the images seen of it, and what each method did."""

    domain: str
    images: int
    methods: list[MethodResult]


def gains(record: EvaluationRecord) -> list[DomainResult]:
    """For each domain the accuracy of each method and its gain over its reference."""
    by_domain: dict[str, dict[str, list[ResultRow]]] = {}
    for row in record["rows"]:
        by_domain.setdefault(row["domain"], {}).setdefault(row["method"], []).append(row)
    return [
        DomainResult(
            domain,
            methods[next(iter(methods))][0]["images"],
            [_result(name, rows, methods) for name, rows in methods.items()],
        )
        for domain, methods in by_domain.items()
    ]


def half_width(differing: float) -> float:
    """Half the 95 % interval of the number of images gained, when at most ``differing`` predictions differ."""
    return 1.96 * differing**0.5 + 1 if differing else 0.0


def most_differing(row: ResultRow, reference: ResultRow) -> int:
    """The most images on which one of two methods can be right and the other wrong, by their counts in each class."""
    pairs = [(row["per_class"][name], reference["per_class"][name]) for name in row["per_class"]]
    return sum(min(a["correct"] + b["correct"], 2 * a["images"] - a["correct"] - b["correct"]) for a, b in pairs)


def _result(name: str, rows: list[ResultRow], methods: dict[str, list[ResultRow]]) -> MethodResult:
    base = name.removesuffix(PLUS)
    reference = base if base != name and base in methods else ZERO_SHOT
    counted = reference == base or base == name  # the changes that diagnoses count are against this reference
    has_reference = reference != name and reference in methods
    return MethodResult(
        name,
        rows[0]["uses_labels"],
        fmean(row["accuracy"] for row in rows),
        [row["correct"] for row in rows],
        rows[0].get("diagnosis"),
        _gain(rows, methods[reference], reference, counted) if has_reference else None,
    )


def _gain(rows: list[ResultRow], others: list[ResultRow], reference: str, counted: bool) -> Gain:
    """The gain of ``rows`` over ``others``; ``counted``: diagnoses count the changes against this reference."""
    pairs = list(zip(rows, others, strict=True))
    points = [100 * (row["correct"] - other["correct"]) / row["divisor"] for row, other in pairs]
    changed = [
        share * row["images"]
        for row in rows
        if (diagnosis := row.get("diagnosis")) and (share := diagnosis["changed"]) is not None
    ]
    counted = counted and len(changed) == len(rows)
    differing = fmean(changed) if counted else fmean(most_differing(*pair) for pair in pairs)
    gained, half = fmean(points), 100 * half_width(differing) / fmean(row["divisor"] for row in rows)
    return Gain(
        reference,
        gained,
        [gained - half, gained + half],
        "gain" if gained > half else "loss" if gained < -half else "chance" if differing else "same",
        counted,
        points,
        {name: fmean(changes) for name in rows[0]["per_class"] if (changes := _class_gains(name, pairs))},
    )


def _class_gains(name: str, pairs: list[tuple[ResultRow, ResultRow]]) -> list[float]:
    """Points gained in one class, by seed; empty if a seed has no images of it."""
    changes = []
    for row, other in pairs:
        after, before = row["per_class"][name]["accuracy"], other["per_class"][name]["accuracy"]
        if after is None or before is None:
            return []
        changes.append(after - before)
    return changes
