"""Tables of the measures that ``--metric`` names: one of them by domain, several of them as averages over domains."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.metrics import METRICS, check_metrics
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord
from clip_tca.results.table import (
    TENTH,
    Table,
    accuracy_table,
    comparison,
    method_label,
    note_lines,
    same_data,
    title_lines,
)
from clip_tca.results.values import averages, measured, worst_tenth

SEEN = "images seen"
"""What every measure but accuracy is divided by, in every protocol."""

WORST = "worst tenth of the runs"
"""The section of several measures in many runs; one measure has a column for it."""


def metric_table(record: EvaluationRecord, metrics: str | Sequence[str]) -> Table:
    """A record's measured rows; accuracy alone has its own table, with the published rows."""
    names = check_metrics(metrics)
    if names == ["accuracy"]:
        return accuracy_table(record)
    domains, tenth = list(record["data"]["domains"]), len(record["seeds"]) >= TENTH
    title, notes = title_lines(record, _what(names)), [*_cost_notes(names), *note_lines(record)]
    sections = [("measured", _rows(record, names, domains, tenth))]
    if tenth and not _by_domain(names):
        sections.append((WORST, _worst_rows(record, names)))
    return Table(title, _head(names, domains, tenth), sections, notes)


def metric_comparison(records: dict[str, EvaluationRecord], metrics: str | Sequence[str]) -> list[Table]:
    """One table for each data set, with the measured rows of all records."""
    names = check_metrics(metrics)
    if names == ["accuracy"]:
        return comparison(records)
    tables = []
    for group in same_data(records):
        domains = list(dict.fromkeys(domain for record in group.values() for domain in record["data"]["domains"]))
        tenth = any(len(record["seeds"]) >= TENTH for record in group.values())
        title = [f"{label}: {line}" for label, record in group.items() for line in title_lines(record, _what(names))]
        notes = [f"{label}: {line}" for label, record in group.items() for line in note_lines(record)]
        sections = [(label, _rows(record, names, domains, tenth)) for label, record in group.items()]
        if not _by_domain(names):
            runs = {label: record for label, record in group.items() if len(record["seeds"]) >= TENTH}
            sections += [(f"{label}: {WORST}", _worst_rows(record, names)) for label, record in runs.items()]
        tables.append(Table(title, _head(names, domains, tenth), sections, [*_cost_notes(names), *notes]))
    return tables


def _by_domain(names: list[str]) -> bool:
    return len(names) == 1 and not METRICS[names[0]].overall


def _what(names: list[str]) -> str:
    if _by_domain(names):
        return METRICS[names[0]].title
    return "Measures, averaged over domains,"


def _cost_notes(names: list[str]) -> list[str]:
    costs = "Time and memory are of the method alone: embeddings were there already, unless a base method made its own."
    return [costs] if any(METRICS[name].overall for name in names) else []


def _head(names: list[str], domains: list[str], tenth: bool) -> list[str]:
    if not _by_domain(names):
        return ["method", *[METRICS[name].title for name in names], "divided by"]
    return ["method", *domains, "average", *(["worst tenth"] if tenth else []), "change", "divided by"]


def _rows(record: EvaluationRecord, names: list[str], domains: list[str], tenth: bool) -> list[list[str]]:
    lines = []
    for method in dict.fromkeys(row["method"] for row in record["rows"]):
        if _by_domain(names):
            cells = _domain_cells(record, method, names[0], domains, tenth)
        else:
            cells = [_cell(averages(record, method, name), name) for name in names]
        lines.append([method_label(record, method), *cells, _divided_by(record, names)])
    return lines


def _worst_rows(record: EvaluationRecord, names: list[str]) -> list[list[str]]:
    """Each measure in its own worst tenth of the runs; what has one value for all runs is a gap."""
    return [
        [
            method_label(record, method),
            *[_worst(averages(record, method, name), name) for name in names],
            _divided_by(record, names),
        ]
        for method in dict.fromkeys(row["method"] for row in record["rows"])
    ]


def _divided_by(record: EvaluationRecord, names: list[str]) -> str:
    return PROTOCOLS[record["protocol"]] if "accuracy" in names else SEEN


def _worst(runs: list[float], metric: str) -> str:
    """The mean of the worst tenth, empty if there are fewer than ten runs."""
    return f"{worst_tenth(runs, METRICS[metric].higher):.{METRICS[metric].digits}f}" if len(runs) >= TENTH else ""


def _domain_cells(record: EvaluationRecord, method: str, metric: str, domains: list[str], tenth: bool) -> list[str]:
    """Each domain, the average, the worst tenth if there are enough runs, and the difference from zero-shot."""
    values, runs, digits = measured(record, method, metric), averages(record, method, metric), METRICS[metric].digits
    cells = [_cell([value for (name, _), value in values.items() if name == domain], metric) for domain in domains]
    average = f"{fmean(runs):.{digits}f}" if runs else ""
    before = averages(record, ZERO_SHOT, metric)
    change = f"{fmean(runs) - fmean(before):+.{digits}f}" if runs and before else ""
    return [*cells, average, *([_worst(runs, metric)] if tenth else []), change]


def _cell(values: list[float], metric: str) -> str:
    """The mean, with the standard deviation if there are several; empty if the record has none."""
    if not values:
        return ""
    mean = f"{fmean(values):.{METRICS[metric].digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {pstdev(values):.{METRICS[metric].digits}f}"
