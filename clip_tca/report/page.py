"""The page: its sections in order with a table of contents, in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from clip_tca.report.accuracy_panel import accuracy, domain_gains, headline
from clip_tca.report.calibration_panel import calibration
from clip_tca.report.classes_panel import class_changes
from clip_tca.report.confusion_panel import confusions
from clip_tca.report.cost_panel import costs
from clip_tca.report.examples_panel import changes
from clip_tca.report.html_tables import from_table
from clip_tca.report.markup import Content, Safe, data_uri, join, tag
from clip_tca.report.run import Run
from clip_tca.report.setup_panel import facts, setup
from clip_tca.report.sources import Sources
from clip_tca.report.studies_panel import study
from clip_tca.results.table import comparison

SECTIONS = (accuracy, domain_gains, class_changes, confusions, calibration, changes, costs, setup)

Links = list[tuple[str, str]]
"""Anchors and their titles."""


def page(sources: Sources) -> str:
    """The whole document."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    names = dict.fromkeys(str(run.record["dataset"]) for run in sources.runs)
    links: Links = []
    parts = _parts(sources, links)
    contents = tag("ul", *[tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in links])
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(script)),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", f"clip-tca report: {', '.join(names) or 'studies'}"),
        tag("style", Safe(style)),
    )
    body = join(
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", tag("h1", "clip-tca report"), tag("nav", contents, aria_label="Contents")),
        tag("main", *parts, id="main"),
        tag("script", Safe(script)),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def policy(script: str) -> str:
    """The Content-Security-Policy: our own script by its hash, inline styles, and images in the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


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
    intro = tag("p", "Every number on this page comes from these files, which it contains.", class_="lead")
    items = []
    for name, content in files:
        link = tag("a", f"Download {name}", href=data_uri("application/json", content), download=name)
        items.append(tag("li", link, " ", tag("span", f"{len(content) / 1000:,.0f} kB", class_="aside")))
    return join(intro, tag("ul", *items, class_="downloads"))
