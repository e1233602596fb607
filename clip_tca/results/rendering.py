"""Tables for the terminal, Markdown, LaTeX and CSV; records as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clip_tca.core.checks import visible
from clip_tca.results.metric_table import metric_table
from clip_tca.results.schema import FORMATS, EvaluationRecord
from clip_tca.results.side_tables import side_tables
from clip_tca.results.suite_table import suite_tables
from clip_tca.results.table import Table, headline


def as_text(table: Table) -> str:
    """Aligned columns for a terminal."""
    rows = [table.head, *[row for _, lines in table.sections for row in lines]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    last = len(widths) - 1

    def line(row: list[str]) -> str:
        cells = [cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        return "  ".join(cells).rstrip()

    lines = [*table.title, "", line(table.head)]
    for number, (name, section) in enumerate(table.sections):
        if len(table.sections) > 1:
            lines += [*([""] if number else []), f"[{name}]"]
        lines += map(line, section)
    return "\n".join([*lines, *(["", *table.notes] if table.notes else [])]) + "\n"


def as_markdown(table: Table) -> str:
    """A GitHub table."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|".join(["---", *["---:"] * (len(table.head) - 2), "---"])
    lines = ["  \n".join(table.title), "", line(table.head), f"|{rule}|"]
    for name, section in table.sections:
        if len(table.sections) > 1:
            lines.append(line([f"*{name}*", *[""] * (len(table.head) - 1)]))
        lines += map(line, section)
    return "\n".join([*lines, *[f"\n{note}" for note in table.notes]]) + "\n"


def as_latex(table: Table) -> str:
    """A booktabs table."""
    special = {letter: f"\\{letter}" for letter in "&%_#${}"} | {"±": r"$\pm$", "<": "$<$", ">": "$>$"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escapes = str.maketrans(special)

    def line(cells: list[str]) -> str:
        return " & ".join(cell.translate(escapes) for cell in cells) + r" \\"

    width = len(table.head)
    lines = [
        *[f"% {text}" for text in [*table.title, *table.notes]],
        rf"\begin{{tabular}}{{l{'r' * (width - 2)}l}}",
        r"\toprule",
        line(table.head),
    ]
    for name, section in table.sections:
        lines.append(r"\midrule")
        if len(table.sections) > 1:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{name.translate(escapes)}}}}} \\")
        lines += map(line, section)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Rows with the section's name in the first column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["section", *table.head])
    for name, section in table.sections:
        writer.writerows([name, *row] for row in section)
    return text.getvalue()


RENDERERS = {"table": as_text, "csv": as_csv, "markdown": as_markdown, "latex": as_latex}


def printable(table: Table) -> Table:
    """The table with line ends and other control characters in names written out."""
    sections = [(visible(name), [[visible(cell) for cell in row] for row in rows]) for name, rows in table.sections]
    title, head, notes = ([visible(line) for line in part] for part in (table.title, table.head, table.notes))
    return Table(title, head, sections, notes)


def as_json(content: Mapping[str, Any]) -> str:
    """JSON with a line for each entry, but one line for a whole list of numbers, such as a row of a confusion matrix.

    No string of JSON contains a line end as it is, so what follows a bracket and a line end is never text.
    """
    text = json.dumps(content, indent=1)
    return (
        re.sub(r"\[\n(?:[\s\d.,eE+-]|null)*\]", lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text) + "\n"
    )


def render(
    records: EvaluationRecord | Sequence[EvaluationRecord],
    format: str = "table",  # noqa: A002
    metrics: Sequence[str] = (),
) -> str:
    """What :func:`clip_tca.evaluate` returns as text: accuracy of each method and domain, with the published numbers.

    Args:
        records: One record, or several: in JSON they become a list, elsewhere one table follows the other.
        format: ``table`` (plain text), ``json``, ``csv``, ``markdown`` or ``latex``.
        metrics: Measures to show in place of accuracy, as in :data:`clip_tca.results.metrics.METRICS`; JSON has all.
    """
    if format not in FORMATS:
        raise ValueError(f"format: {format!r}; allowed are {', '.join(FORMATS)}")
    listed = [records] if isinstance(records, Mapping) else records
    if format == "json":
        return as_json(listed[0] if len(listed) == 1 else {"records": listed})
    tables = []
    for record in listed:
        table = metric_table(record, metrics or "accuracy")
        if format == "table" and not metrics and (lead := headline(record)):
            table.title = [*lead, "", *table.title]
        tables += [table, *side_tables(record)]
    return render_tables([*tables, *suite_tables(listed)], format)


def render_tables(tables: Sequence[Table], format: str) -> str:  # noqa: A002
    """Tables one after the other, in any format but JSON."""
    return "\n".join(RENDERERS[format](printable(table)) for table in tables)
