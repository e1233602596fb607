"""What templates are filled with, and how: text is escaped everywhere, and a page needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from clip_tca.core.checks import counted, visible
from clip_tca.results.schema import PROTOCOLS
from clip_tca.results.table import (
    Table,
    dataset_name,
    has_batches,
    head_line,
    model_line,
    note_lines,
    prompt_line,
    stream_words,
)

TEMPLATES = Path(__file__).with_name("templates")
ORACLE = "(oracle"  # the mark behind the name of every method that uses true labels
_NUMBER = re.compile(r"[+\-−]?[\d,]*\.?\d+( ?%)?( ± [\d.]+)?")


@dataclass
class Cell:
    """A cell of a table."""

    text: str
    shade: float = 0.0  # of the background, from −1 (lost) to 1 (gained)
    note: str = ""  # its tooltip
    strong: bool = False


@dataclass
class Grid:
    """A sortable table: the first cell of a row names it; empty columns are left out."""

    captions: list[str]
    head: list[str]
    sections: list[tuple[str, list[list[Cell]]]]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = [row for _, lines in self.sections for row in lines]
        columns = [[row[i].text for row in rows if row[i].text] for i in range(len(self.head))]
        full = [i for i, texts in enumerate(columns) if texts or not rows]
        self.head = [self.head[i] for i in full]
        self.sections = [(name, [[row[i] for i in full] for row in lines]) for name, lines in self.sections]
        self.numeric = [i > 0 and all(_NUMBER.fullmatch(text) for text in columns[i]) for i in full]


def grid(caption: str, head: Sequence[str], lines: Sequence[Sequence[str | Cell]]) -> Grid:
    """A table of one section."""
    rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in line] for line in lines]
    return Grid([caption], list(head), [("", rows)])


def from_table(table: Table, best: bool = False) -> Grid:
    """A table of an evaluation; if ``best``, the highest accuracy of each measured column without labels is bold."""
    sections = [(name, [[Cell(text) for text in line] for line in lines]) for name, lines in table.sections]
    for name, rows in sections:
        fair = [row for row in rows if ORACLE not in row[0].text]
        columns = range(1, len(table.head) - 2)  # behind them, the gain and what was divided by
        for cells in ([row[i] for row in fair if row[i].text] for i in columns if best):
            values = [float(cell.text.split(" ±")[0]) for cell in cells]
            for cell, value in zip(cells, values, strict=True):
                cell.strong = len(values) > 1 and value == max(values) and not name.startswith("reported")
    return Grid(table.title, table.head, sections, table.notes)


def signed(number: float, digits: int = 2) -> str:
    """A change: ``+0.36``, ``−0.36``, ``0.00``."""
    rounded = f"{number:+.{digits}f}"
    return rounded[1:] if float(rounded) == 0 else rounded.replace("-", "−")


def described(value: Any) -> str:
    """A value of a record in words: lists and dictionaries too."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {content}" for name, content in value.items())
    return " · ".join(map(str, value)) if isinstance(value, list) else str(value)


def data_uri(content: bytes, kind: str) -> str:
    """Bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(text: object) -> str:
    """The data URI of a JPEG in base64; empty if it is anything else."""
    try:
        content = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        return ""
    return data_uri(content, "image/jpeg") if content.startswith(b"\xff\xd8\xff") else ""


def _text(value: Any) -> Any:
    """What a template prints: markup as it is, None as nothing, control characters and broken Unicode written out."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else visible(str(value))


ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_text,
)
ENVIRONMENT.filters |= {f.__name__: f for f in (signed, described, data_uri, thumbnail)}
ENVIRONMENT.filters["counted"] = partial(counted, form=",")
WORDS = (dataset_name, has_batches, head_line, model_line, note_lines, prompt_line, stream_words)
ENVIRONMENT.globals |= {"zip": zip, "PROTOCOLS": PROTOCOLS, **{f.__name__: f for f in WORDS}}


def render(template: str, also: Sequence[str] = (), **values: Any) -> str:
    """A whole page; its Content-Security-Policy allows its scripts by their hash, and nothing from elsewhere."""
    names = ("page.css", "page.js", *also)
    style, script = (
        "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names if name.endswith(suffix))
        for suffix in (".css", ".js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    page = ENVIRONMENT.get_template(template)
    return page.render(style=Markup(style), script=Markup(script), digest=digest, **values)  # noqa: S704 (our own files)
