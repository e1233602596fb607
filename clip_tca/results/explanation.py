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
    Outcome,
    closing_lines,
    coverage,
    never_predicted,
    verdict,
    wrapped,
)
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.intervals import CONSERVATIVE, Gain, gains
from clip_tca.results.rendering import as_text
from clip_tca.results.schema import EvaluationRecord
from clip_tca.results.table import Table, averages, dataset_name, headline_method, method_label, title_lines

OUTCOMES: dict[Outcome, str] = {
    "gain": "It is better on {}, by more than luck explains.",
    "loss": "It is worse on {}, by more than bad luck explains.",
    "chance": "On {}, the difference is small enough to be luck.",
    "same": "On {}, nothing changed.",
}
"""What the labels say of some domains."""

HEAD = ["method", "accuracy", "gain", "95 % interval", "labels say", "changed", "verdict without labels"]


def closing(record: EvaluationRecord) -> list[str]:
    """What changed, the verdict of the labels, and what to do next, of the method that the first line is about."""
    if (method := headline_method(record)) is None:
        return []
    findings = {}
    for domain, methods in gains(record["rows"]).items():
        rows = [row for row in record["rows"] if (row["domain"], row["method"]) == (domain, method)]
        counts = [row["changed"] for row in rows if "changed" in row]
        changed = fmean(counts) if counts else None
        gain, diagnosis = methods[method], rows[0].get("diagnosis")
        says = gain.says if gain else verdict(diagnosis) if diagnosis else None
        findings[domain] = Finding(changed, rows[0]["images"], says)
    return [visible(line) for line in closing_lines(method, findings, LABELLED)]


def explain_record(record: EvaluationRecord) -> list[str]:
    """Lines about a record: what each method did, in words, then the figures, a block for each domain."""
    by_domain = gains(record["rows"])
    oracles = [method["name"] for method in record["methods"] if method["uses_labels"]]
    labels = "The true labels were used to count right answers. No method saw them."
    if oracles:
        labels = f"ORACLE: {', '.join(oracles)} counted true labels to adapt; the other methods did not see them."
    images = counted(sum(about["images"] for about in record["data"]["domains"].values()), "image")
    classes, domains = len(record["data"]["classes"]), counted(len(by_domain), "domain")
    lines = [f"{dataset_name(record)}: {images} of {classes} classes in {domains}."]
    for name in (method["name"] for method in record["methods"]):
        if of_method := {domain: gain for domain, methods in by_domain.items() if (gain := methods[name])}:
            lines += ["", name, *wrapped([f"  {text}" for text in _plainly(record, name, of_method)])]
    if len(lines) == 1:
        lines.append("It has no zero-shot row, so gains are not known; evaluate with --method zero-shot too.")
    lines += ["", *wrapped([*_never(record), labels]), "", *title_lines(record, "The figures: gains")[:1], ""]
    for domain, methods in by_domain.items():
        lines += [*as_text(_block(record, domain, methods).map(visible)).splitlines(), ""]
    notes = [CONSERVATIVE, "It has no diagnosis: only adapters have one, in the transductive setting."]
    if any("diagnosis" in row for row in record["rows"]):
        notes = [CONSERVATIVE, SPREAD, NO_LABELS]
    return [visible(line) for line in (*lines, *wrapped(notes))]


def _plainly(record: EvaluationRecord, method: str, gains: dict[str, Gain]) -> list[str]:
    """Sentences for a reader who knows no statistics: right answers of 100, and where that is more than chance."""
    after = fmean(averages(record, method))
    points, reference = fmean(gain.points for gain in gains.values()), next(iter(gains.values())).reference
    sentences = [
        f"Of 100 images, {reference} gets {after - points:.0f} right, and {method} {after:.0f} "
        f"({points:+.2f} points on average)."
    ]
    for outcome, words in OUTCOMES.items():
        if where := [domain for domain, gain in gains.items() if gain.says == outcome]:
            sentences.append(words.format(", ".join(where)))
    return sentences


def _never(record: EvaluationRecord) -> list[str]:
    """Sentences about the classes that zero-shot never predicts, by domain."""
    names, sentences = [visible(name) for name in record["data"]["classes"]], []
    for row in record["rows"]:
        if row["method"] == ZERO_SHOT and row["seed"] == 0:
            counts = [sum(column) for column in zip(*row["confusion"], strict=True)]
            missing = [name for name, count in zip(names, counts, strict=True) if not count]
            sentences += never_predicted(missing, f" on {row['domain']}")
    return sentences


def _block(record: EvaluationRecord, domain: str, gains: dict[str, Gain | None]) -> Table:
    names = [visible(name) for name in record["data"]["classes"]]
    lines, reasons = [], []
    for method, gain in gains.items():
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
    shift, moved = diagnosis["mean_shift"] or 0.0, diagnosis["movement"] or 0.0
    chosen = f"{sum(diagnosis['chosen'])} chosen; " if "chosen" in diagnosis else ""
    return f"shift {shift:.2f} of the spread; {chosen}moved {moved:.2f}. {coverage(diagnosis, names)}"
