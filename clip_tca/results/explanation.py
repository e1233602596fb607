"""Sentences about a saved state or a record of ``clip-tca eval``, for a person to read.

Pure: figures in, lines out. The figures come from :mod:`clip_tca.adapters.diagnosis` (no labels) and
:mod:`clip_tca.results.gains` (labels, for scoring only), the verdict from :mod:`clip_tca.results.reliability`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from clip_tca.adapters.diagnosis_record import Diagnosis
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results import reliability
from clip_tca.results.gains import DomainResult, MethodResult, gains
from clip_tca.results.rendering import as_text, printable, visible
from clip_tca.results.schema import EvaluationRecord
from clip_tca.results.stream_words import stream_words
from clip_tca.results.table import Table

WIDTH = 100
MOST_CLASSES = 12
"""Classes up to which a table names each of them."""

MARKS = ("+", "?", "-")
MEANING = {
    "trusted": "trusted: no indicator speaks against it",
    "with care": "with care: see the lines marked ?",
    "not here": "not here: see the lines marked -",
    "little effect": "little effect: it hardly matters whether it is used",
}
SPREAD = "The spread is the root mean square distance from the mean; shift and movement are shares of it."
NO_LABELS = (
    "The verdict uses no labels, so it can't prove that adaptation helps. Whether the certain predictions are right "
    "can't be seen: where the model is confidently wrong, adaptation follows it. eval/explain.md counts how often the "
    "verdict was right."
)
CONSERVATIVE = (
    "The interval is conservative: a record counts right answers and does not pair them, so every changed prediction "
    "(or, where those are not known, every one that the class counts allow) is counted as one that could have gone the "
    "other way."
)


def judged(diagnosis: Diagnosis, names: list[str]) -> dict[str, Any]:
    """The verdict with its indicators, ready for JSON."""
    listed = reliability.indicators(diagnosis, names)
    return {"verdict": reliability.verdict(listed, diagnosis), "signs": [asdict(indicator) for indicator in listed]}


def judged_gains(record: EvaluationRecord) -> list[dict[str, Any]]:
    """Gains with verdicts, ready for JSON; an oracle gets no verdict."""
    names = record["data"]["classes"]
    return [
        {"domain": d.domain, "images": d.images, "methods": [_judged_result(result, names) for result in d.methods]}
        for d in gains(record)
    ]


def _judged_result(result: MethodResult, names: list[str]) -> dict[str, Any]:
    fields = asdict(result)
    gain = fields.pop("gain") or {}
    judged_fields = judged(result.diagnosis, names) if result.diagnosis and not result.uses_labels else {}
    return {**fields, **gain, **judged_fields}


def explain_state(options: dict[str, Any], diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Lines about a saved adapter with these options, figures and names of classes."""
    listed = reliability.indicators(diagnosis, names)
    oracle = "oracle" in (options.get("shares"), options.get("balance"))
    lines = [
        f"{diagnosis['kind']}: {diagnosis['embeddings']} embeddings of {diagnosis['dim']} dimensions, "
        f"{diagnosis['classes']} classes.",
        *(["ORACLE: its pseudo-source was chosen by counting true labels; for comparison only."] if oracle else []),
        "",
        "How large was the shift?",
        *_shift(diagnosis),
        "",
        "What was it aligned to?",
        *_classes(diagnosis, names),
        "",
        "How far did embeddings move?",
        *_movement(diagnosis),
        "",
        f"Can adaptation be trusted here?  {MEANING[reliability.verdict(listed, diagnosis)]}.",
        *_wrapped([f"  {MARKS[indicator.level]} {indicator.text}" for indicator in listed], "    "),
        "",
        *_wrapped([SPREAD, NO_LABELS]),
    ]
    return [visible(line) for line in lines]


def explain_record(record: EvaluationRecord) -> list[str]:
    """Lines about a record: a block for each domain, then a summary over all domains."""
    domains, names = gains(record), record["data"]["classes"]
    shuffles = f", {len(record['seeds'])} shuffles" if len(record["seeds"]) > 1 else ""
    oracles = [method["name"] for method in record["methods"] if method["uses_labels"]]
    labels = "True labels were used for scoring only."
    if oracles:
        labels = f"ORACLE: {', '.join(oracles)} counted true labels to adapt; all others used them for scoring only."
    how = ", ".join([record["setting"], f"protocol {record['protocol']}", *stream_words(record)])
    lines = [f"{record['dataset']}: {how}{shuffles}.", labels, ""]
    for domain in domains:
        lines += [*as_text(printable(_block(domain, names))).splitlines(), ""]
    return [visible(line) for line in (*lines, *_overall(domains, record))]


def _shift(diagnosis: Diagnosis) -> Iterable[str]:
    if diagnosis["mean_shift"] is None:
        return ["  All embeddings are the same: there is no spread to measure it by."]
    if "chosen" not in diagnosis:
        return [
            f"  Classes shifted one by one; together their mean moved by {diagnosis['mean_shift']:.2f} of the spread.",
            f"  {diagnosis['between'] or 0:.0%} of the variance lies between the classes, the rest within them.",
        ]
    return [
        f"  The mean of all embeddings is {diagnosis['mean_shift']:.2f} of the spread away from that of the most "
        "certain.",
        f"  The covariances differ by {diagnosis['covariance_shift'] or 0:.0%}; the paper's correlation distance is "
        f"{diagnosis['correlation_distance']:.2g}.",
    ]


def _classes(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """A table of classes, or their range where there are many."""
    n, used = diagnosis["embeddings"], diagnosis.get("chosen") or [round(count) for count in diagnosis["counts"]]
    if "chosen" in diagnosis:
        column, total = "chosen", sum(used)
        lines = [f"  To the {total} most certain of {n} ({total / n:.1%}).", *_wrapped(_why_shares(diagnosis), "  ")]
    else:
        column = "weight in images"
        temperature = diagnosis["temperature"]
        lines = [f"  To the mean of each class. Scores are {temperature:.1f} times overconfident, and scaled down."]
    predicted = diagnosis["predicted"]
    if len(names) <= MOST_CLASSES:
        shares = diagnosis.get("shares")
        head = ["  class", *(["predicted"] if predicted else []), column, *(["share"] if shares else []), ""]
        rows = []
        for i, name in enumerate(names):
            before, after = [str(predicted[i])] if predicted else [], [f"{shares[i]:.1%}"] if shares else []
            rows.append([f"  {name}", *before, str(used[i]), *after, ""])
        lines += as_text(printable(Table([], head, [("", rows)]))).splitlines()[1:]
    else:
        order = sorted(range(len(used)), key=lambda c: used[c])
        lines.append(f"  {column}: {used[order[0]]} to {used[order[-1]]} a class, median {median(used):g};")
        most, fewest = (reliability.class_list(part, names) for part in (order[:-6:-1], order[:5]))
        lines.append(f"  most: {most}; fewest: {fewest}.")
    never, unused = reliability.missed_classes(diagnosis)
    if never or unused:
        lines.append(f"  Missed: {reliability.class_list(never + unused, names, MOST_CLASSES)}.")
    return lines


def _why_shares(diagnosis: Diagnosis) -> list[str]:
    """Which class shares were taken, where they were estimated."""
    if not (agreement := diagnosis.get("agreement")):
        return []
    best = max((name for name in agreement if name != "zero-shot"), key=lambda name: agreement[name])
    taken = {
        "uniform": "Equal class shares are",
        "estimated": "The class shares that ConditionalTCA counts are",
        "met": "The class shares with which each class is predicted as often as by ConditionalTCA are",
    }[best]
    others = ", ".join(f"{name} {value:.0%}" for name, value in agreement.items() if name != best)
    return [f"  {taken} taken: {agreement[best]:.0%} of the predictions agree with ConditionalTCA's ({others})."]


def _movement(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.get("kept"):
        return ["  Not at all: zero-shot is sure of the predictions that would change, so it is kept."]
    if reliability.stands_still(diagnosis):
        return ["  Not at all."]
    effect = "How many predictions change is not known: this state holds no class texts, or no rows."
    if (changed := diagnosis["changed"]) is not None:
        effect = f"{changed:.1%} of the predictions change."
    return [f"  By {diagnosis['movement'] or 0:.2f} of their spread.", f"  {effect}"]


def _block(domain: DomainResult, names: list[str]) -> Table:
    """One domain: a row for each method, and below it why."""
    several = any(result.gain and len(result.gain.gains) > 1 for result in domain.methods)
    head = ["method", "accuracy", "gain", *(["over shuffles"] if several else []), "95 % interval", "labels say"]
    rows, reasons, classes = [], {}, {}
    for result in domain.methods:
        name, diagnosis, gain, judgement = result.method, result.diagnosis, result.gain, ""
        if diagnosis:
            listed = [] if result.uses_labels else reliability.indicators(diagnosis, names)
            judgement = "none: an oracle" if result.uses_labels else reliability.verdict(listed, diagnosis)
            reasons[name] = _compact(diagnosis, listed, names)
        cells = [""] * (len(head) - 2)
        if gain:
            over_shuffles = f"{min(gain.gains):+.2f} to {max(gain.gains):+.2f}"
            interval = "{:+.1f} to {:+.1f}".format(*gain.interval)
            cells = [f"{gain.gain:+.2f}", *([over_shuffles] if several else []), interval, gain.beyond_chance]
            classes[name] = _by_class(gain.classes)
        changed = diagnosis["changed"] if diagnosis else None
        share = "" if changed is None else f"{changed:.1%}"
        rows.append([_label(result), f"{result.accuracy:.2f}", *cells, share, judgement])
    notes = [f"{name}: {text}" for name, text in _together(reasons)]
    notes += [f"By class, {name}: {text}" for name, text in _together(classes) if text]
    title = [f"{domain.domain}: {domain.images} images"]
    return Table(title, [*head, "changed", "verdict without labels"], [("", rows)], _wrapped(notes))


def _label(result: MethodResult) -> str:
    if result.uses_labels:
        return f"{result.method} (oracle: uses true labels)"
    reference = result.gain.reference if result.gain else ZERO_SHOT
    return result.method if reference == ZERO_SHOT else f"{result.method} (over {reference})"


def _compact(diagnosis: Diagnosis, listed: list[reliability.Indicator], names: list[str]) -> str:
    """Shift, selection, movement, missed classes and the other indicators against, in one line."""
    parts = [] if diagnosis["mean_shift"] is None else [f"shift {diagnosis['mean_shift']:.2f} of the spread"]
    if "chosen" in diagnosis:
        chosen = diagnosis["chosen"]
        if diagnosis["covariance_shift"] is not None:
            parts.append(f"covariance {diagnosis['covariance_shift']:.0%} off")
        parts.append(f"{sum(chosen)} chosen, {_range(chosen)} a class")
    else:
        parts.append(f"{_range([round(count) for count in diagnosis['counts']])} images a class")
    parts.append(f"moved {diagnosis['movement'] or 0:.2f}")
    if not listed or reliability.has_little_effect(diagnosis):
        listed = [reliability.coverage(diagnosis, names)]
    return f"{'; '.join(parts)}. {' '.join(sign.text for sign in listed if sign.level)}"


def _range(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])


def _by_class(points: dict[str, float], most: int = 2) -> str:
    """The classes that gained and lost most."""
    order = sorted(points, key=lambda name: points[name])
    up, down = [c for c in order[::-1] if points[c] > 0][:most], [c for c in order if points[c] < 0][:most]
    return "; ".join(", ".join(f"{name} {points[name]:+.1f}" for name in part) for part in (up, down) if part)


def _overall(domains: list[DomainResult], record: EvaluationRecord) -> list[str]:
    """The summary over all domains, and what the columns mean."""
    results = [result for domain in domains for result in domain.methods]
    lines = []
    for name in dict.fromkeys(result.method for result in results if result.gain):
        method_gains = [result.gain for result in results if result.method == name and result.gain]
        up, down = (sum(gain.beyond_chance == outcome for gain in method_gains) for outcome in ("gain", "loss"))
        mean = fmean(gain.gain for gain in method_gains)
        lines.append(
            f"{name}: {mean:+.2f} points on average over {len(method_gains)} domains; beyond chance it gained in {up} "
            f"and lost in {down}."
        )
    if not lines:
        lines.append("The record has no zero-shot row, so gains are not known; evaluate with --method zero-shot too.")
    has_diagnosis = any(result.diagnosis for result in results)
    notes = [CONSERVATIVE, SPREAD, NO_LABELS] if has_diagnosis else [CONSERVATIVE, _undiagnosed(record)]
    if len(record["seeds"]) > 1:
        notes.append("Shuffles are of the same images: that all of them gain says nothing of other images.")
    return [*_wrapped(lines), "", *_wrapped(notes)]


def _undiagnosed(record: EvaluationRecord) -> str:
    """Why a record has no diagnosis."""
    if record["setting"] != "transductive":
        return f"No diagnosis in it (setting {record['setting']}): only transductive runs of adapters have one."
    if not any(method["parameters"] for method in record["methods"]):
        return "No diagnosis in it: only adapters have one, and none was evaluated."
    return "No diagnosis in it: the record is older than diagnoses; evaluate again to have them."


def _together(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Methods with the same text under one name."""
    return [(", ".join(n for n in texts if texts[n] == text), text) for text in dict.fromkeys(texts.values())]


def _wrapped(paragraphs: list[str], indent: str = "  ") -> list[str]:
    return [line for text in paragraphs for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent)]
