"""Sentences about a record of ``clip-tca eval``, for a person to read.

Pure: figures in, lines out. The figures come from :mod:`clip_tca.adapters.diagnosis` (no labels) and
:mod:`clip_tca.results.gains` (labels, for scoring only), the verdict from :mod:`clip_tca.explanation`.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from clip_tca.core.checks import visible
from clip_tca.explanation import (
    NO_LABELS,
    SPREAD,
    Diagnosis,
    Indicator,
    coverage,
    has_little_effect,
    indicators,
    judged,
    verdict,
    wrapped,
)
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.gains import DomainResult, MethodResult, gains
from clip_tca.results.rendering import as_text, printable
from clip_tca.results.schema import EvaluationRecord
from clip_tca.results.stream_words import stream_words
from clip_tca.results.table import Table

CONSERVATIVE = (
    "The interval is conservative: a record counts right answers and does not pair them, so every changed prediction "
    "(or, where those are not known, every one that the class counts allow) is counted as one that could have gone the "
    "other way."
)


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


def explain_record(record: EvaluationRecord) -> list[str]:
    """Lines about a record: a block for each domain, then a summary over all domains."""
    domains, names = gains(record), [visible(name) for name in record["data"]["classes"]]
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


def _block(domain: DomainResult, names: list[str]) -> Table:
    """One domain: a row for each method, and below it why."""
    several = any(result.gain and len(result.gain.gains) > 1 for result in domain.methods)
    head = ["method", "accuracy", "gain", *(["over shuffles"] if several else []), "95 % interval", "labels say"]
    rows, reasons, classes = [], {}, {}
    for result in domain.methods:
        name, diagnosis, gain, judgement = result.method, result.diagnosis, result.gain, ""
        if diagnosis:
            listed = [] if result.uses_labels else indicators(diagnosis, names)
            judgement = "none: an oracle" if result.uses_labels else verdict(listed, diagnosis)
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
    return Table(title, [*head, "changed", "verdict without labels"], [("", rows)], wrapped(notes))


def _label(result: MethodResult) -> str:
    if result.uses_labels:
        return f"{result.method} (oracle: uses true labels)"
    reference = result.gain.reference if result.gain else ZERO_SHOT
    return result.method if reference == ZERO_SHOT else f"{result.method} (over {reference})"


def _compact(diagnosis: Diagnosis, listed: list[Indicator], names: list[str]) -> str:
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
    if not listed or has_little_effect(diagnosis):
        listed = [coverage(diagnosis, names)]
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
    return [*wrapped(lines), "", *wrapped(notes)]


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
