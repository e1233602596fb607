"""The board: many records on one page, as a matrix of methods and data sets and as a long table, with filters."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from clip_tca.report.board_rows import TUNED, Entry
from clip_tca.report.document import document
from clip_tca.report.html_tables import SHORT, sortable
from clip_tca.report.markup import Safe, count, join, signed, tag
from clip_tca.report.setup_panel import definitions

COMPARED = ("encoder", "prompts", "setting", "protocol", "stream")
"""Traits that rows of one section of the matrix share: only such rows are compared."""

NUMBERS = ("batch", "runs")
"""Columns behind those of the results that hold numbers."""

FULL = 10.0
"""Points of gain that get the full colour."""


def board(entries: Sequence[Entry], place: Path) -> str:
    """The whole document; ``place`` is the file that it is for: links to records are relative to its folder."""
    links = {entry.file: _link(entry.file, place) for entry in entries}
    shown = [trait for trait in entries[0].traits if len({entry.traits[trait] for entry in entries}) > 1]
    same = {name: text for name, text in entries[0].traits.items() if name not in shown and text}
    records = len({(entry.file, entry.label) for entry in entries})
    size = f"{count(len(entries), 'row', 'rows')} of {count(records, 'record', 'records')}"
    lead = f"{size}: one row for each method. Accuracy in percent; gain: points over zero-shot of the same record."
    parts = [
        tag("p", lead, class_="lead"),
        definitions({f"{name[0].upper()}{name[1:]} of all": text for name, text in same.items()}, "facts"),
        _filters(entries, shown),
        tag("section", tag("h2", "Methods by data sets"), _matrix(entries, links, shown), id="matrix"),
        tag("section", tag("h2", "All rows"), _table(entries, links, shown), id="rows"),
    ]
    contents = [
        tag("li", tag("a", "Methods by data sets", href="#matrix")),
        tag("li", tag("a", "All rows", href="#rows")),
    ]
    close = tag("form", tag("button", "Close"), method="dialog")
    body = [
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", tag("h1", "clip-tca board"), tag("nav", tag("ul", *contents), aria_label="Contents")),
        tag("main", *parts, id="main"),
        tag("dialog", close, tag("div"), id="drawer", aria_label="Details of a row"),
    ]
    return document("clip-tca board", body, ("page.css", "board.css", "page.js", "board.js"), "board")


def _link(file: Path, place: Path) -> str:
    """The address of a file from the folder of the page; a colon in it must not look like that of ``https:``."""
    try:
        relative = os.path.relpath(file, place.parent)
    except ValueError:  # another drive
        return file.absolute().as_uri()
    return quote(Path(relative).as_posix().encode(errors="surrogateescape"))


def _filters(entries: Sequence[Entry], shown: Sequence[str]) -> Safe:
    """Words and a choice for each trait; hidden until the script, which they need, has started."""
    words = tag("label", "words", tag("input", type="search", name_="words", autocomplete="off"))
    choices = []
    for trait in shown:
        values = _values(entries, trait)
        options = [tag("option", value or "(none)", value=value) for value in values]
        choices.append(tag("label", trait, tag("select", tag("option", "all", value=""), *options, name_=trait)))
    counted = tag("output", f"{len(entries)} of {len(entries)} rows", role="status")
    reset = tag("button", "Show all", type="button")
    return tag("form", words, *choices, reset, counted, id="filters", hidden=True, aria_label="Filters")


def _values(entries: Sequence[Entry], trait: str) -> list[str]:
    """The values of a trait in order, with 2 before 10 and none last."""

    def key(text: str) -> tuple[bool, str]:
        return not text, re.sub(r"\d{1,9}", lambda digits: digits[0].zfill(9), text.lower())

    return sorted({entry.traits[trait] for entry in entries}, key=key)


def _matrix(entries: Sequence[Entry], links: dict[Path, str], shown: Sequence[str]) -> Safe:
    """Sections of rows that can be compared; the best of each column that uses no labels is bold."""
    columns = _values(entries, "data set")
    sections: dict[tuple[str, ...], list[tuple[int, Entry]]] = {}
    for number, entry in enumerate(entries):
        sections.setdefault(tuple(entry.traits[name] for name in COMPARED), []).append((number, entry))
    bodies = []
    for key in sorted(sections):
        traits = [text for name, text in zip(COMPARED, key, strict=True) if name in shown and text]
        title = tag("th", tag("span", " · ".join(traits) or "all rows"), scope="rowgroup", colspan=len(columns) + 1)
        bodies.append(tag("tbody", tag("tr", title, class_="group"), *_section(sections[key], columns, links, shown)))
    caption = [
        "Average accuracy (%) of each method on each data set; every number is a link to its record.",
        "In bold the best of its column in its section among the methods that use no labels.",
    ]
    if any(entry.traits["labels"] == TUNED for entry in entries):
        caption.append("† The authors of the method chose its options by the accuracy on test data.")
    return sortable(caption, [("method", False), *[(name, True) for name in columns]], bodies)


def _section(
    members: Sequence[tuple[int, Entry]], columns: Sequence[str], links: dict[Path, str], shown: Sequence[str]
) -> list[Safe]:
    fair: dict[str, list[float]] = {}
    lines: dict[str, dict[str, list[tuple[int, Entry]]]] = {}
    for number, entry in members:
        batch = f"batch {entry.traits['batch']}" if "batch" in shown and entry.traits["batch"] else ""
        name = ", ".join(filter(None, (entry.traits["method"], entry.traits["options"], batch)))
        lines.setdefault(name, {}).setdefault(entry.traits["data set"], []).append((number, entry))
        if not entry.oracle:
            fair.setdefault(entry.traits["data set"], []).append(round(entry.average, 2))

    def value(number: int, entry: Entry) -> Safe:
        others = fair.get(entry.traits["data set"], [])
        best = not entry.oracle and len(others) > 1 and round(entry.average, 2) == max(others)
        mark = "†" if entry.traits["labels"] == TUNED else ""
        link = tag("a", f"{entry.average:.2f}{mark}", href=links[entry.file], title=entry.label, data_row=number)
        return tag("strong", link) if best else link

    rows = []
    for name, cells in lines.items():
        oracle = any(entry.oracle for found in cells.values() for _, entry in found)
        numbers = [[value(*one) for one in cells.get(column, [])] for column in columns]
        content = [tag("td", Safe(" ".join(found)), class_="number") for found in numbers]
        rows.append(tag("tr", tag("th", name, scope="row"), *content, class_="oracle" if oracle else None))
    return rows


def _table(entries: Sequence[Entry], links: dict[Path, str], shown: Sequence[str]) -> Safe:
    """One row for each entry."""
    several = any(entry.runs > 1 for entry in entries)
    measures = {name: _digits(name, entries) for entry in entries for name in entry.measures}
    first = [name for name in ("method", "options", "data set") if name in shown or name == "method"]
    others = [name for name in shown if name not in first]
    named = [name.replace("_", " ") for name in measures]
    numbers = ["average", *(["std"] if several else []), "gain", *named, "domains"]
    rows = []
    for number, entry in enumerate(entries):
        gain = entry.gain or 0.0
        shade = f"--shade:{min(1.0, abs(gain) / FULL):.2f}" if gain else None
        kind = "number gained" if gain > 0 else "number lost" if gain < 0 else "number"
        deviation = f"{entry.deviation:.2f}" if entry.runs > 1 else ""
        cells = [
            *[_text(entry.traits[name], name) for name in first[1:]],
            tag("td", f"{entry.average:.2f}", class_="number"),
            *([tag("td", deviation, class_="number")] if several else []),
            tag("td", "" if entry.gain is None else signed(gain), class_=kind, style=shade),
            *[tag("td", _number(entry.measures.get(m), digits), class_="number") for m, digits in measures.items()],
            tag("td", _details(entry, links[entry.file]), class_="number"),
            *[_text(entry.traits[name], name) for name in others],
            *([tag("td", entry.runs, class_="number")] if several else []),
            tag("td", tag("a", entry.label, href=links[entry.file]), class_="record"),
        ]
        name = tag("th", entry.traits["method"], scope="row", data_trait="method")
        rows.append(tag("tr", name, *cells, class_="oracle" if entry.oracle else None, data_row=number))
    texts = [*others, *(["runs"] if several else []), "record"]
    head = [*[(name, False) for name in first], *[(name, True) for name in numbers]]
    head += [(name, name in NUMBERS) for name in texts]
    runs = "; std: standard deviation of this average over runs" if several else ""
    return sortable([f"Average over domains{runs}."], head, [tag("tbody", *rows)])


def _text(value: str, trait: str) -> Safe:
    kind = "number" if trait in NUMBERS else "short" if len(value) <= SHORT else "long"
    return tag("td", value, class_=kind, data_trait=trait)


def _digits(measure: str, entries: Sequence[Entry]) -> int:
    """Decimals for a measure: percentages are larger than shares."""
    return 2 if max(abs(entry.measures.get(measure, 0.0)) for entry in entries) > 5 else 4


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _details(entry: Entry, link: str) -> Safe:
    """A button, and what it shows in the drawer: accuracy by domain and what identifies the run."""
    deviations = entry.runs > 1
    values = {name: f"{mean:.2f}" + f" ± {std:.2f}" * deviations for name, (mean, std) in entry.domains.items()}
    content = join(
        tag("h2", f"{entry.traits['method']} on {entry.traits['data set']}"),
        *[tag("p", line, class_="note warning") for line in entry.warnings],
        definitions(values),
        definitions({**{name.capitalize(): text for name, text in entry.traits.items()}, **entry.facts}),
        tag("p", tag("a", entry.label, href=link)),
    )
    mark = " ⚠" if entry.warnings else ""
    return join(tag("button", f"{len(values)}{mark}", type="button"), tag("template", content))
