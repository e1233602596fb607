"""Gains and losses in words: ``clip-tca explain RECORD.json``, and the last lines of ``clip-tca eval``.

The verdict comes from :mod:`clip_tca.explanation` and uses no labels; the gains do, for scoring only.
"""

from __future__ import annotations

from statistics import fmean

from clip_tca.core.checks import counted, visible
from clip_tca.explanation import (
    LABELLED,
    NO_LABELS,
    SPREAD,
    Diagnosis,
    Finding,
    closing_lines,
    coverage,
    verdict,
    wrapped,
)
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.intervals import CONSERVATIVE, Gain, gains
from clip_tca.results.rendering import as_text
from clip_tca.results.schema import EvaluationRecord
from clip_tca.results.table import Table, headline_method, method_label, title_lines

HEAD = ["method", "accuracy", "gain", "95 % interval", "labels say", "changed", "verdict without labels"]


def closing(record: EvaluationRecord) -> list[str]:
    """What changed, the verdict of the labels, and what to do next, of the method that the first line is about."""
    if (method := headline_method(record)) is None:
        return []
    found = {}
    for domain, methods in gains(record["rows"]).items():
        rows = [row for row in record["rows"] if (row["domain"], row["method"]) == (domain, method)]
        counts = [row["changed"] for row in rows if "changed" in row]
        changed = fmean(counts) if counts else None
        gain, diagnosis = methods[method], rows[0].get("diagnosis")
        says = gain.says if gain else verdict(diagnosis) if diagnosis else None
        found[domain] = Finding(changed, rows[0]["images"], says)
    return [visible(line) for line in closing_lines(method, found, LABELLED)]


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
            mean = f"{fmean(gain.points for gain in mine):+.2f} points on average over {counted(len(mine), 'domain')}"
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
            cells[:3] = [f"{gain.points:+.2f}", gain.interval, gain.says]
            label = method if gain.reference == ZERO_SHOT else f"{method} (over {gain.reference})"
        if diagnosis := rows[0].get("diagnosis"):
            changed = diagnosis["changed"]
            cells[3:] = ["" if changed is None else f"{changed:.1%}", verdict(diagnosis)]
            reasons.append(f"{method}: {_reasons(diagnosis, names)}")
        if rows[0]["uses_labels"]:
            label, cells[4] = method_label(record, method), "none: an oracle"
        lines.append([label, f"{fmean(row['accuracy'] for row in rows):.2f}", *cells])
    return Table([f"{domain}: {rows[0]['images']} images"], HEAD, [("", lines)], wrapped(reasons))


def _reasons(diagnosis: Diagnosis, names: list[str]) -> str:
    """Shift, selection, movement, and the classes that are missed, in one line."""
    shift, moved = diagnosis["mean_shift"] or 0.0, diagnosis["movement"] or 0.0
    chosen = f"{sum(diagnosis['chosen'])} chosen; " if "chosen" in diagnosis else ""
    return f"shift {shift:.2f} of the spread; {chosen}moved {moved:.2f}. {coverage(diagnosis, names)}"
