"""Tables for the terminal, Markdown, LaTeX and CSV; records as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

from clip_tca.results.side_tables import extra_tables
from clip_tca.results.table import Table, table


def as_text(shown: Table) -> str:
    """Aligned columns for a terminal."""
    rows = [shown.head, *[row for _, lines in shown.sections for row in lines]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(shown.head))]
    last = len(widths) - 1

    def line(row: list[str]) -> str:
        cells = [cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        return "  ".join(cells).rstrip()

    lines = [*shown.title, "", line(shown.head)]
    for number, (name, section) in enumerate(shown.sections):
        if len(shown.sections) > 1:
            lines += [*([""] if number else []), f"[{name}]"]
        lines += map(line, section)
    return "\n".join([*lines, *(["", *shown.notes] if shown.notes else [])]) + "\n"


def as_markdown(shown: Table) -> str:
    """A GitHub table."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = ["  \n".join(shown.title), "", line(shown.head)]
    lines.append(
        "|" + "|".join("---" if i in (0, len(shown.head) - 1) else "---:" for i in range(len(shown.head))) + "|"
    )
    for name, section in shown.sections:
        if len(shown.sections) > 1:
            lines.append(line([f"*{name}*", *[""] * (len(shown.head) - 1)]))
        lines += map(line, section)
    return "\n".join([*lines, *[f"\n{note}" for note in shown.notes]]) + "\n"


def as_latex(shown: Table) -> str:
    """A booktabs table."""
    special = {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
    }
    special |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$"}

    def line(cells: list[str]) -> str:
        return " & ".join("".join(special.get(letter, letter) for letter in cell) for cell in cells) + r" \\"

    width = len(shown.head)
    lines = [
        *[f"% {text}" for text in [*shown.title, *shown.notes]],
        rf"\begin{{tabular}}{{l{'r' * (width - 2)}l}}",
        r"\toprule",
    ]
    lines += [line(shown.head)]
    for name, section in shown.sections:
        lines.append(r"\midrule")
        if len(shown.sections) > 1:
            heading = line([name]).removesuffix(r" \\")
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{heading}}}}} \\")
        lines += map(line, section)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(shown: Table) -> str:
    """Rows with the section's name in the first column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["section", *shown.head])
    for name, section in shown.sections:
        writer.writerows([name, *row] for row in section)
    return text.getvalue()


RENDERERS: dict[str, Callable[[Table], str]] = {
    "table": as_text,
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}


def visible(text: str) -> str:
    """``text`` with line ends and other control characters written out."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def printable(shown: Table) -> Table:
    """The table with line ends and other control characters in names written out."""
    sections = [(visible(name), [[visible(cell) for cell in row] for row in rows]) for name, rows in shown.sections]
    title, head, notes = ([visible(line) for line in part] for part in (shown.title, shown.head, shown.notes))
    return Table(title, head, sections, notes)


def as_json(content: dict[str, Any]) -> str:
    """JSON with a line for each entry, but one for a whole list of numbers: a row of a confusion matrix.

    No string of JSON holds a line end as it is, so what follows a bracket and a line end is never text.
    """
    text = json.dumps(content, indent=1)
    return re.sub(r"\[\n[\s\d.,eE+-]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text) + "\n"


def render(records: list[dict[str, Any]], form: str) -> str:
    """Records in one of the formats: several are a list in JSON, and tables one after the other elsewhere."""
    if form == "json":
        return as_json(records[0] if len(records) == 1 else {"records": records})
    return render_tables([shown for record in records for shown in (table(record), *extra_tables(record))], form)


def render_tables(tables: list[Table], form: str) -> str:
    """Tables one after the other, in any format but JSON."""
    return "\n".join(RENDERERS[form](printable(shown)) for shown in tables)
