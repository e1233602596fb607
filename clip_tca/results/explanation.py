"""Figures into sentences: what a saved state or a record of ``clip-tca eval`` says, for a person to read.

Pure: figures in, lines out. The figures come from :mod:`clip_tca.adapters.diagnosis` (no labels) and
:mod:`clip_tca.results.gains` (labels, for scoring only), the judgement from :mod:`clip_tca.results.reliability`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

from clip_tca.adapters.diagnosis import Diagnosis
from clip_tca.results.gains import gains
from clip_tca.results.reliability import Sign, has_little_effect, missed, named, signs, stands_still, verdict
from clip_tca.results.rendering import as_text, printable
from clip_tca.results.table import Table

WIDTH = 100
MOST_CLASSES = 12
"""Classes up to which a table names each of them."""

MARKS = ("+", "?", "-")
MEANING = {
    "trusted": "trusted: no sign speaks against it",
    "with care": "with care: see the lines marked ?",
    "not here": "not here: see the lines marked -",
    "little effect": "little effect: it hardly matters whether it is used",
}
SPREAD = "The spread is how far embeddings lie from their mean (root mean square); shift and movement are shares of it."
BLIND = (
    "The verdict uses no labels, so it can't prove that adaptation helps. Whether the certain predictions are right "
    "can't be seen: where the model is confidently wrong, adaptation follows it. eval/explain.md counts how often the "
    "verdict was right."
)
CAREFUL = (
    "The interval is careful: a record counts right answers and does not pair them, so every changed prediction (or, "
    "where those are not known, every one that the class counts allow) is taken for one that could have gone the "
    "other way."
)


def judged(diagnosis: Diagnosis, names: list[str]) -> dict[str, Any]:
    """The verdict with its signs, ready for JSON."""
    found = signs(diagnosis, names)
    return {"verdict": verdict(found, diagnosis), "signs": [{"level": s.level, "text": s.text} for s in found]}


def judged_gains(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Gains with verdicts, ready for JSON; an oracle gets none."""
    found = gains(record)
    for told in (told for domain in found for told in domain["methods"]):
        if told["diagnosis"] and not told["uses_labels"]:
            told |= judged(told["diagnosis"], record["data"]["classes"])
    return found


def explain_state(header: dict[str, Any], diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """Lines about a saved adapter.

    Args:
        header: Of the state.
        diagnosis: Its figures.
        names: Of the classes.
    """
    found = signs(diagnosis, names)
    oracle = header["options"].get("balance") == "oracle"
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
        *_moved(diagnosis),
        "",
        f"Is adaptation to be trusted here?  {MEANING[verdict(found, diagnosis)]}.",
        *_wrapped([f"  {MARKS[sign.level]} {sign.text}" for sign in found], "    "),
        "",
        *_wrapped([SPREAD, BLIND]),
    ]
    return _clean(lines)


def explain_record(record: dict[str, Any]) -> list[str]:
    """Lines about a record: a block for each domain, then what holds over all."""
    found, names = gains(record), record["data"]["classes"]
    shuffles = f", {len(record['seeds'])} shuffles" if len(record["seeds"]) > 1 else ""
    oracles = [method["name"] for method in record["methods"] if method["uses_labels"]]
    labels = "True labels were used for scoring only."
    if oracles:
        labels = f"ORACLE: {', '.join(oracles)} counted true labels to adapt; all others were scored by them only."
    lines = [f"{record['dataset']}: {record['setting']}, protocol {record['protocol']}{shuffles}.", labels, ""]
    for domain in found:
        lines += [*as_text(printable(_block(domain, names))).splitlines(), ""]
    return _clean([*lines, *_overall(found, record)])


def _shift(diagnosis: Diagnosis) -> Iterable[str]:
    if diagnosis["mean_shift"] is None:
        return ["  All embeddings are the same: there is no spread to measure it by."]
    if "chosen" not in diagnosis:
        return [
            f"  Classes shifted one by one; together their mean moved by {diagnosis['mean_shift']:.2f} of the spread.",
            f"  {diagnosis['between']:.0%} of the variance lies between the classes, the rest within them.",
        ]
    return [
        f"  All embeddings lie {diagnosis['mean_shift']:.2f} of their spread away from the most certain (their means).",
        f"  The covariances differ by {diagnosis['covariance_shift']:.0%}; the paper's correlation distance is "
        f"{diagnosis['correlation_distance']:.2g}.",
    ]


def _classes(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    """A table of classes, or their range where there are many."""
    used = diagnosis.get("chosen") or [round(count) for count in diagnosis["counts"]]
    told, total = ("chosen", sum(used)) if "chosen" in diagnosis else ("weight in images", diagnosis["embeddings"])
    lines = [
        f"  To the {total} most certain of {diagnosis['embeddings']} ({total / diagnosis['embeddings']:.1%})."
        if "chosen" in diagnosis
        else f"  To the mean of each class. Its scores, {diagnosis['temperature']:.1f} times too sure, are scaled down."
    ]
    predicted = diagnosis["predicted"]
    if len(names) <= MOST_CLASSES:
        head = ["  class", *(["predicted"] if predicted else []), told, ""]
        rows = [[f"  {n}", *([str(predicted[i])] if predicted else []), str(used[i]), ""] for i, n in enumerate(names)]
        lines += as_text(printable(Table([], head, [("", rows)]))).splitlines()[1:]
    else:
        order = sorted(range(len(used)), key=lambda c: used[c])
        lines.append(f"  {told}: {used[order[0]]} to {used[order[-1]]} a class, median {median(used):g};")
        lines.append(f"  most: {named(order[:-6:-1], names)}; fewest: {named(order[:5], names)}.")
    never, unused = missed(diagnosis)
    if never or unused:
        lines.append(f"  Missed: {named(never + unused, names, MOST_CLASSES)}.")
    return lines


def _moved(diagnosis: Diagnosis) -> list[str]:
    if stands_still(diagnosis):
        return ["  Not at all."]
    changed = diagnosis["changed"]
    told = (
        "How many predictions change can't be told: this state holds no class texts, or no rows."
        if changed is None
        else f"{changed:.1%} of the predictions change."
    )
    return [f"  By {diagnosis['movement']:.2f} of their spread.", f"  {told}"]


def _block(domain: dict[str, Any], names: list[str]) -> Table:
    """One domain: a row for each method, and below it why."""
    several = any(len(told.get("gains", [])) > 1 for told in domain["methods"])
    head = ["method", "accuracy", "gain", *(["over shuffles"] if several else []), "95 % interval", "labels say"]
    rows, why, classes = [], {}, {}
    for told in domain["methods"]:
        name, diagnosis, gained = told["method"], told["diagnosis"], "gain" in told
        over = "" if told.get("reference", "zero-shot") == "zero-shot" else f" (over {told['reference']})"
        shown = f"{name} (oracle: uses true labels)" if told["uses_labels"] else name + over
        judgement = ""
        if diagnosis:
            found = signs(diagnosis, names)
            judgement = "none: an oracle" if told["uses_labels"] else verdict(found, diagnosis)
            why[name] = _compact(diagnosis, [] if told["uses_labels"] else found)
        rows.append(
            [
                shown,
                f"{told['accuracy']:.2f}",
                f"{told['gain']:+.2f}" if gained else "",
                *([f"{min(told['gains']):+.2f} to {max(told['gains']):+.2f}" if gained else ""] if several else []),
                "{:+.1f} to {:+.1f}".format(*told["interval"]) if gained else "",
                told["beyond_chance"] if gained else "",
                f"{diagnosis['changed']:.1%}" if diagnosis else "",
                judgement,
            ]
        )
        if gained:
            classes[name] = _by_class(told["classes"])
    notes = [f"{name}: {text}" for name, text in _together(why)]
    notes += [f"By class, {name}: {text}" for name, text in _together(classes) if text]
    return Table(
        [f"{domain['domain']}: {domain['images']} images"],
        [*head, "changed", "verdict without labels"],
        [("", rows)],
        _wrapped(notes),
    )


def _compact(diagnosis: Diagnosis, found: list[Sign]) -> str:
    """Shift, selection, movement and the signs against, in one line."""
    parts = [] if diagnosis["mean_shift"] is None else [f"shift {diagnosis['mean_shift']:.2f} of the spread"]
    if "chosen" in diagnosis:
        chosen = diagnosis["chosen"]
        if diagnosis["covariance_shift"] is not None:
            parts.append(f"covariance {diagnosis['covariance_shift']:.0%} off")
        parts.append(f"{sum(chosen)} chosen, {_range(chosen)} a class")
    else:
        parts.append(f"{_range([round(count) for count in diagnosis['counts']])} images a class")
    parts.append(f"moved {diagnosis['movement'] or 0:.2f}")
    doubts = [] if has_little_effect(diagnosis) else [sign.text for sign in found if sign.level]
    return "; ".join(parts) + ". " + " ".join(doubts)


def _range(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])


def _by_class(points: dict[str, float], most: int = 2) -> str:
    """The classes that gained and lost most."""
    order = sorted(points, key=lambda name: points[name])
    up, down = [c for c in order[::-1] if points[c] > 0][:most], [c for c in order if points[c] < 0][:most]
    told = [", ".join(f"{name} {points[name]:+.1f}" for name in part) for part in (up, down) if part]
    return "; ".join(told)


def _overall(found: list[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    """What holds over all domains, and what the columns mean."""
    lines, told = [], [one for domain in found for one in domain["methods"]]
    for name in dict.fromkeys(one["method"] for one in told if "gain" in one):
        mine = [one for one in told if one["method"] == name and "gain" in one]
        up, down = (sum(one["beyond_chance"] == word for one in mine) for word in ("gain", "loss"))
        mean = fmean(one["gain"] for one in mine)
        lines.append(
            f"{name}: {mean:+.2f} points on average over {len(mine)} domains; beyond chance it gained in {up} and lost "
            f"in {down}."
        )
    if not lines:
        lines.append("The record has no zero-shot row, so gains can't be told; evaluate with --method zero-shot too.")
    notes = [CAREFUL, SPREAD, BLIND] if any(one["diagnosis"] for one in told) else [CAREFUL, _undiagnosed(record)]
    if len(record["seeds"]) > 1:
        notes.append("Shuffles are of the same images: that all of them gain says nothing of other images.")
    return [*_wrapped(lines), "", *_wrapped(notes)]


def _undiagnosed(record: dict[str, Any]) -> str:
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


def _clean(lines: list[str]) -> list[str]:
    """Control characters of names written out."""
    return printable(Table(lines, [], [])).title
