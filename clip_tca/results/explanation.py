"""``clip-tca explain RECORD.json``: what each method gained, whether that exceeds chance, and whether to trust it.

A record holds counts, not which image was right. Of two methods on the same n images, only those on which their
predictions differ can tell them apart: with D images gained and m predictions changed, the standard error of D is at
most √m, so ±(1.96 √m + 1) images is a conservative 95 % interval (McNemar's test with continuity correction, counting
every changed prediction). Where a record does not say how many changed, the class counts bound it.

The verdict comes from :mod:`clip_tca.explanation` and uses no labels; the gains do, for scoring only.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from clip_tca.core.checks import visible
from clip_tca.explanation import (
    NO_LABELS,
    SPREAD,
    Diagnosis,
    Indicator,
    coverage,
    has_little_effect,
    indicators,
    verdict,
    wrapped,
)
from clip_tca.methods.registry import PLUS, ZERO_SHOT
from clip_tca.results.rendering import as_text
from clip_tca.results.schema import EvaluationRecord, ResultRow
from clip_tca.results.table import Table, method_label, title_lines

CONSERVATIVE = (
    "The interval is conservative: a record counts right answers and does not pair them, so every changed prediction "
    "(or, where those are not known, every one that the class counts allow) is counted as one that could have gone the "
    "other way."
)
Outcome = Literal["gain", "loss", "chance", "same"]
HEAD = ["method", "accuracy", "gain", "95 % interval", "labels say", "changed", "verdict without labels"]


# -- the figures -------------------------------------------------------------------------------------------------------


class Gain(NamedTuple):
    """Points gained over the reference, the mean over seeds; half of their 95 % interval; whether it excludes 0.

    The reference is NAME for NAME+tca where the record has it, and zero-shot otherwise. ``same``: nothing differs.
    """

    reference: str
    points: float
    half: float
    says: Outcome


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
    diagnoses = [(row.get("diagnosis"), row["images"]) for row, _ in pairs]
    changed = [found["changed"] * images for found, images in diagnoses if found and found["changed"] is not None]
    is_counted = base in (name, reference) and len(changed) == len(pairs)  # a diagnosis compares with the base method
    differing = fmean(changed) if is_counted else fmean(most_differing(*pair) for pair in pairs)
    half = 100 * half_width(differing) / fmean(row["divisor"] for row, _ in pairs)
    says: Outcome = "gain" if points > half else "loss" if points < -half else "chance" if differing else "same"
    return Gain(reference, points, half, says)


def half_width(differing: float) -> float:
    """Half the 95 % interval of the number of images gained, when at most ``differing`` predictions differ."""
    return 1.96 * differing**0.5 + 1 if differing else 0.0


def most_differing(row: ResultRow, reference: ResultRow) -> int:
    """The most images on which one of two methods can be right and the other wrong, by their counts in each class."""
    pairs = [(row["per_class"][name], reference["per_class"][name]) for name in row["per_class"]]
    return sum(min(a["correct"] + b["correct"], 2 * a["images"] - a["correct"] - b["correct"]) for a, b in pairs)


# -- the text ----------------------------------------------------------------------------------------------------------


def explain_record(record: EvaluationRecord) -> list[str]:
    """Lines about a record: a block for each domain, then a summary over all domains."""
    by_domain = gains(record["rows"])
    oracles = [method["name"] for method in record["methods"] if method["uses_labels"]]
    labels = "True labels were used for scoring only."
    if oracles:
        labels = f"ORACLE: {', '.join(oracles)} counted true labels to adapt; all others used them for scoring only."
    lines = [*title_lines(record, "Gains")[:1], labels, ""]
    for domain, found in by_domain.items():
        lines += [*as_text(_block(record, domain, found).map(visible)).splitlines(), ""]
    summary = []
    for method in record["methods"]:
        mine = [gain for found in by_domain.values() if (gain := found[method["name"]])]
        up, down = (sum(gain.says == outcome for gain in mine) for outcome in ("gain", "loss"))
        if mine:
            mean = f"{fmean(gain.points for gain in mine):+.2f} points on average over {len(mine)} domains"
            summary.append(f"{method['name']}: {mean}; beyond chance it gained in {up} and lost in {down}.")
    missing = "The record has no zero-shot row, so gains are not known; evaluate with --method zero-shot too."
    notes = [CONSERVATIVE, "No diagnosis in it: only adapters have one, in the setting transductive."]
    if any("diagnosis" in row for row in record["rows"]):
        notes = [CONSERVATIVE, SPREAD, NO_LABELS]
    return [visible(line) for line in (*lines, *wrapped(summary or [missing]), "", *wrapped(notes))]


def _block(record: EvaluationRecord, domain: str, found: dict[str, Gain | None]) -> Table:
    """One domain: a row for each method, and below it why."""
    names = [visible(name) for name in record["data"]["classes"]]
    lines, reasons = [], []
    for method, gain in found.items():
        rows = [row for row in record["rows"] if (row["domain"], row["method"]) == (domain, method)]
        label, cells = method, ["", "", "", "", ""]
        if gain:
            interval = f"{gain.points - gain.half:+.1f} to {gain.points + gain.half:+.1f}"
            cells[:3] = [f"{gain.points:+.2f}", interval, gain.says]
            label = method if gain.reference == ZERO_SHOT else f"{method} (over {gain.reference})"
        if diagnosis := rows[0].get("diagnosis"):
            signs = [] if rows[0]["uses_labels"] else indicators(diagnosis, names)
            changed = diagnosis["changed"]
            cells[3:] = ["" if changed is None else f"{changed:.1%}", verdict(signs, diagnosis)]
            reasons.append(f"{method}: {_reasons(diagnosis, signs, names)}")
        if rows[0]["uses_labels"]:
            label, cells[4] = method_label(record, method), "none: an oracle"
        lines.append([label, f"{fmean(row['accuracy'] for row in rows):.2f}", *cells])
    return Table([f"{domain}: {rows[0]['images']} images"], HEAD, [("", lines)], wrapped(reasons))


def _reasons(diagnosis: Diagnosis, signs: list[Indicator], names: list[str]) -> str:
    """Shift, selection, movement, and what speaks against the adaptation, in one line."""
    shift, moved = diagnosis["mean_shift"] or 0.0, diagnosis["movement"] or 0.0
    chosen = f"{sum(diagnosis['chosen'])} chosen; " if "chosen" in diagnosis else ""
    if not signs or has_little_effect(diagnosis):
        signs = [coverage(diagnosis, names)]
    against = " ".join(sign.text for sign in signs if sign.level)
    return f"shift {shift:.2f} of the spread; {chosen}moved {moved:.2f}. {against}"
