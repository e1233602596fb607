"""The page: its sections in order with a table of contents, in one self-contained file."""

from __future__ import annotations

import gzip
import hashlib

from clip_tca.report.accuracy_panel import accuracy, domain_gains, headline
from clip_tca.report.calibration_panel import calibration
from clip_tca.report.classes_panel import class_changes
from clip_tca.report.confusion_panel import confusions
from clip_tca.report.cost_panel import costs
from clip_tca.report.document import document
from clip_tca.report.examples_panel import changes
from clip_tca.report.html_tables import from_table
from clip_tca.report.markup import Content, Safe, data_uri, join, tag
from clip_tca.report.run import Run
from clip_tca.report.setup_panel import facts, setup
from clip_tca.report.sources import Sources
from clip_tca.report.studies_panel import study
from clip_tca.results.table import comparison

SECTIONS = (accuracy, domain_gains, class_changes, confusions, calibration, changes, costs, setup)

LARGE = 1_000_000
"""Bytes of a record that the page contains at most."""

Links = list[tuple[str, str]]
"""Anchors and their titles."""


def page(sources: Sources) -> str:
    """The whole document."""
    names = dict.fromkeys(str(run.record["dataset"]) for run in sources.runs)
    links: Links = []
    parts = _parts(sources, links)
    contents = tag("ul", *[tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in links])
    body = [
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", tag("h1", "clip-tca report"), tag("nav", contents, aria_label="Contents")),
        tag("main", *parts, id="main"),
    ]
    return document(f"clip-tca report: {', '.join(names) or 'studies'}", body, ("page.css", "page.js"))


def _parts(sources: Sources, links: Links) -> list[Content]:
    """Runs, studies and files; ``links`` gets an anchor to each, and to the sections of a single run."""
    parts: list[Content] = []
    runs = sources.runs
    if len(runs) > 1:
        tables = comparison({run.label: run.record for run in runs})
        parts.append(_part("All runs", join(*map(from_table, tables)), links))
    for run in runs:
        name = f"{run.record['dataset']}: {run.record['setting']}, protocol {run.record['protocol']}"
        inner: Links = []
        parts.append(_part(name if len(runs) == 1 else f"{run.label} — {name}", _run(run, len(links), inner), links))
        if len(runs) == 1:
            links[-1:] = inner
    parts += [_part(record.title, study(record), links) for record in sources.studies]
    parts.append(_part("Records", _downloads(sources.files), links))
    return parts


def _part(title: str, body: Safe, links: Links) -> Safe:
    links.append((f"part-{len(links) + 1}", title))
    return tag("section", tag("h2", title), body, id=links[-1][0])


def _run(run: Run, number: int, links: Links) -> Safe:
    """One run: the finding, then its sections; those it has no data for are listed at the end."""
    parts: list[Content] = [headline(run), facts(run)]
    missing = []
    for section in (make(run) for make in SECTIONS):
        if section.body is None:
            missing.append(tag("li", f"{section.title}: {section.why}."))
            continue
        links.append((f"run-{number + 1}-{len(links) + 1}", section.title))
        parts.append(tag("section", tag("h3", section.title), section.body, id=links[-1][0]))
    if missing:
        parts.append(tag("div", tag("h3", "Left out"), tag("ul", *missing), class_="missing"))
    return join(*parts)


def _downloads(files: list[tuple[str, bytes]]) -> Safe:
    """Links that save the records; one that is large is compressed, and only named if that is still large."""
    intro = "Every number on this page comes from these files, which it contains"
    items, named = [], False
    for name, content in files:
        kind, saved, data = "application/json", name, content
        if len(content) > LARGE:
            kind, saved, data = "application/gzip", f"{name}.gz", gzip.compress(content, mtime=0)
        size = f"{len(content) / 1000:,.0f} kB"
        if len(data) > LARGE:
            named = True
            about: Content = join(name, " (too large for this page)")
            size += f", sha256 {hashlib.sha256(content).hexdigest()}"
        else:
            about = tag("a", f"Download {saved}", href=data_uri(kind, data), download=saved)
        items.append(tag("li", about, " ", tag("span", size, class_="aside")))
    intro += ", but for those that are too large." if named else "."
    return join(tag("p", intro, class_="lead"), tag("ul", *items, class_="downloads"))
