"""Tables for the terminal, Markdown, LaTeX and CSV; records as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clip_tca.core.checks import one_of, visible
from clip_tca.results.schema import FORMATS, EvaluationRecord
from clip_tca.results.table import Table, headline, metric_table, side_tables, suite_tables

SPECIAL = {letter: f"\\{letter}" for letter in "&%_#${}"} | {"±": r"$\pm$", "<": "$<$", ">": "$>$"}
SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX = {ord(letter): text for letter, text in SPECIAL.items()}


def render(
    records: EvaluationRecord | Sequence[EvaluationRecord],
    format: str = "table",  # noqa: A002
    metrics: Sequence[str] = (),
    intervals: bool = False,
) -> str:
    """What :func:`clip_tca.evaluate` returns as text: accuracy of each method and domain, with the published numbers.

    Args:
        records: One record, or several: in JSON they become a list, elsewhere one table follows the other.
        format: ``table`` (plain text), ``json``, ``csv``, ``markdown`` or ``latex``.
        metrics: Measures to show in place of accuracy, as in :data:`clip_tca.results.schema.METRICS`; JSON has all.
        intervals: Add 95 % intervals to accuracies and gains.
    """
    if intervals and list(metrics or ["accuracy"]) != ["accuracy"]:
        raise ValueError(f"intervals: they are of accuracy, not of {', '.join(metrics)}; leave out one of the two")
    one_of("format", format, FORMATS)
    listed = [records] if isinstance(records, Mapping) else records
    if format == "json":
        return as_json(listed[0] if len(listed) == 1 else {"records": listed})
    tables = []
    for record in listed:
        table = metric_table(record, metrics or "accuracy", intervals)
        if format == "table" and not metrics and (lead := headline(record)):
            table.title = [lead, "", *table.title]
        tables += [table, *side_tables(record)]
    return render_tables([*tables, *suite_tables(listed)], format)


def render_tables(tables: Sequence[Table], format: str) -> str:  # noqa: A002
    """Tables one after the other, in any format but JSON; control characters in names are written out."""
    renderers = {"table": as_text, "csv": as_csv, "markdown": as_markdown, "latex": as_latex}
    return "\n".join(renderers[format](table.map(visible)) for table in tables)


def as_text(table: Table) -> str:
    """Aligned columns for a terminal."""
    columns = zip(table.head, *(row for _, rows in table.sections for row in rows), strict=True)
    widths, last = [max(map(len, column)) for column in columns], len(table.head) - 1

    def line(row: list[str]) -> str:
        cells = [cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        return "  ".join(cells).rstrip()

    lines = [*table.title, "", line(table.head)]
    for number, (name, rows) in enumerate(table.sections):
        if len(table.sections) > 1:
            lines += [*([""] if number else []), f"[{name}]"]
        lines += map(line, rows)
    return "\n".join([*lines, *(["", *table.notes] if table.notes else [])]) + "\n"


def as_markdown(table: Table) -> str:
    """A GitHub table."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    gaps = [""] * (len(table.head) - 1)
    lines = ["  \n".join(table.title), "", line(table.head), f"|---{'|---:' * (len(gaps) - 1)}|---|"]
    for name, rows in table.sections:
        if len(table.sections) > 1:
            lines.append(line([f"*{name}*", *gaps]))
        lines += map(line, rows)
    return "\n".join([*lines, *[f"\n{note}" for note in table.notes]]) + "\n"


def as_latex(table: Table) -> str:
    """A booktabs table."""
    escaped, width = table.map(lambda text: text.translate(LATEX)), len(table.head)

    def line(cells: list[str]) -> str:
        return " & ".join(cells) + r" \\"

    lines = [f"% {text}" for text in (*table.title, *table.notes)]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 2)}l}}", r"\toprule", line(escaped.head)]
    for name, rows in escaped.sections:
        lines.append(r"\midrule")
        if len(table.sections) > 1:
            lines.append(line([rf"\multicolumn{{{width}}}{{l}}{{\emph{{{name}}}}}"]))
        lines += map(line, rows)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Rows with the section's name in the first column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["section", *table.head])
    writer.writerows([name, *row] for name, rows in table.sections for row in rows)
    return text.getvalue()


def as_json(content: Mapping[str, Any]) -> str:
    """JSON with a line for each entry, but one line for a whole list of numbers, such as a row of a confusion matrix.

    No string of JSON contains a line end as it is, so what follows a bracket and a line end is never text.
    """
    numbers = re.compile(r"\[\n(?:[\s\d.,eE+-]|null)*\]")
    return numbers.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", json.dumps(content, indent=1)) + "\n"
