"""HTML tables: wide ones scroll in a box of their own, and every column can be sorted by the button in its head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clip_tca.report.markup import Content, Safe, join, tag, text
from clip_tca.results.table import Table

ORACLE = "(oracle"
"""The mark behind the name of every method that uses true labels."""

SHORT = 36
"""Characters that stay on one line in a table."""

_NUMBER = re.compile(r"[+\-−]?[\d,]*\.?\d+( ?%)?( ± [\d.]+)?")


@dataclass(frozen=True)
class Cell:
    """A cell with a background ``shade`` from −1 (lost) to 1 (gained), a ``note`` as its tooltip, or in bold."""

    text: Content
    shade: float = 0.0
    note: str | None = None
    strong: bool = False


Row = Sequence[Content | Cell]


def grid(caption: str | list[str], head: Sequence[str], sections: Sequence[tuple[str, Sequence[Row]]]) -> Safe:
    """A sortable table; the first cell of a row names it. Sections keep their rows when the table is sorted."""
    captions = [caption] if isinstance(caption, str) else caption
    rows = [row for _, lines in sections for row in lines]
    numeric = [i > 0 and _numeric([_cell(row[i]) for row in rows]) for i in range(len(head))]
    bodies = []
    for name, lines in sections:
        title = tag("tr", tag("th", tag("span", name), scope="rowgroup", colspan=len(head)), class_="group")
        body = [_row(row, numeric) for row in lines]
        bodies.append(tag("tbody", *([title] if len(sections) > 1 else []), *body))
    return sortable(captions, list(zip(head, numeric, strict=True)), bodies)


def sortable(captions: list[str], head: Sequence[tuple[str, bool]], bodies: Sequence[Safe]) -> Safe:
    """A table around its bodies, with a sorting button for each column: its name, and whether it holds numbers."""
    top = []
    for name, is_number in head:
        button = tag("button", name, type="button")
        top.append(tag("th", button, scope="col", aria_sort="none", class_="number" if is_number else None))
    table = tag("table", titled(*captions), tag("thead", tag("tr", *top)), *bodies, class_="sortable")
    return scroll(table, " ".join(captions))


def single(caption: str, head: list[str], lines: list[list[str]]) -> Safe:
    """A table of one section, without the columns that have nothing in them."""
    full = [i for i in range(len(head)) if not lines or any(line[i] for line in lines)]
    return grid(caption, [head[i] for i in full], [("", [[line[i] for i in full] for line in lines])])


def titled(*lines: str) -> Safe:
    """A caption that stays visible when the table scrolls."""
    return tag("caption", *[tag("span", line) for line in lines])


def scroll(table: Safe, label: str) -> Safe:
    """A box that scrolls sideways, by keyboard too, so that the page does not."""
    return tag("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)


def from_table(table: Table, best: bool = False) -> Safe:
    """A table of the evaluation with its notes; if ``best``, that of each measured column without labels is bold."""
    sections = [
        (name, [_marked(line, lines) for line in lines] if best and not name.startswith("reported") else lines)
        for name, lines in table.sections
    ]
    notes = [tag("p", line, class_=f"note{' warning' * line.startswith('WARNING')}") for line in table.notes]
    return join(grid(table.title, table.head, sections), *notes)


def _marked(line: list[str], lines: list[list[str]]) -> Row:
    label_free = [other for other in lines if ORACLE not in other[0]]
    cells: list[Content | Cell] = [line[0]]
    for i, cell in enumerate(line[1:-2], 1):
        values = [float(other[i].split(" ±")[0]) for other in label_free if other[i]]
        best = line in label_free and bool(cell) and float(cell.split(" ±")[0]) == max(values)
        cells.append(Cell(cell, strong=best and len(values) > 1))
    return [*cells, line[-2], line[-1]]


def _cell(cell: Content | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _numeric(cells: list[Cell]) -> bool:
    """Whether a column holds numbers, and perhaps gaps."""
    texts = [str(cell.text) for cell in cells if cell.text not in ("", None)]
    return bool(texts) and all(_NUMBER.fullmatch(text) for text in texts)


def _row(row: Row, numeric: list[bool]) -> Safe:
    first, *others = map(_cell, row)
    oracle = ORACLE in str(first.text)
    cells = [tag("th", first.text, scope="row", title=first.note)]
    for cell, number in zip(others, numeric[1:], strict=True):
        kind = "number" if number else "short" if len(str(cell.text)) <= SHORT else "long"
        shaded = "" if not cell.shade else " gained" if cell.shade > 0 else " lost"
        style = f"--shade:{min(1.0, abs(cell.shade)):.2f}" if cell.shade else None
        content = text(str(cell.text).replace("-", "−", 1) if number else cell.text)
        content = tag("strong", content) if cell.strong else content
        cells.append(tag("td", content, class_=kind + shaded, style=style, title=cell.note or None))
    return tag("tr", *cells, class_="oracle" if oracle else None)
