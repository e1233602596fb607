"""The report: records of evaluations and studies as one page, with the records themselves to download.

A run has panels. Each has a function here: it gives what the template in ``templates/panels/`` takes, or says why the
panel is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clip_tca.explanation import SAID
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.records import Run, Sources
from clip_tca.report.templating import Cell, Grid, from_table, grid, render, signed
from clip_tca.results.intervals import average_gain
from clip_tca.results.schema import METRICS, CalibrationBins
from clip_tca.results.table import accuracy_table, comparison, metric_table, side_tables

FULL_SHADE = 10.0  # points that get the full colour, at least: where little changed, nothing should look as if it did
LISTED_CLASSES = 100  # up to which every class has its line; of more, as many that changed most
MAPPED_CLASSES = 20  # up to which a heat map of the confusion can be read
LISTED_CONFUSIONS = 25  # where there are more classes
LARGE = 1_000_000  # bytes of a record that the page contains at most

Panel = dict[str, Any] | str
"""The values of a template, or why there are none."""


def headline(run: Run) -> dict[str, Any] | None:
    """Zero-shot and the best method without labels, whatever it gained or lost; None where there is no such method."""
    if run.no_comparison or (best := run.methods[0]) in run.oracles:
        return None
    gains, paired = [run.gain(best, domain) for domain in run.domains], average_gain(run.record["rows"], best)
    found = {"best": best, "gain": run.gain(best), "gains": gains, "interval": None}
    return found | ({"interval": paired.interval, "verdict": SAID[paired.says]} if paired else {})


def accuracy(run: Run) -> Panel:
    """The table of ``clip-tca eval``."""
    table = accuracy_table(run.record)
    table.title = table.title[:1]
    return {"table": from_table(table, best=True)}


def gains(run: Run) -> Panel:
    """Gains over zero-shot as bars: the average, then every domain, all on one scale."""
    if run.no_comparison:
        return run.no_comparison
    domains = [None, *run.domains]
    low, high = limits([run.gain(method, domain) for method in run.methods for domain in domains])
    return {"domains": domains, "low": low, "high": high}


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The scale: round numbers around all values and zero."""
    reach = max([1.0, *map(abs, values)])
    step = 10 ** math.floor(math.log10(reach))
    step = step if reach / step >= 4 else step / 2
    low, high = min([0.0, *values]), max([0.0, *values])
    return math.floor(low / step) * step, max(math.ceil(high / step), 1) * step


def classes(run: Run) -> Panel:
    """Which classes gained and which lost: a line for each method, and a table of classes and domains for each."""
    if run.no_comparison:
        return run.no_comparison
    before, images = run.class_accuracy(ZERO_SHOT)
    changes = {method: run.class_accuracy(method)[0] - before for method in run.methods}
    full = max(FULL_SHADE, *[np.abs(points).max(initial=0, where=~np.isnan(points)) for points in changes.values()])
    present = np.flatnonzero(~np.isnan(before[-1]))
    tables = []
    for method, points in changes.items():
        most = sorted(present[np.argsort(-np.abs(points[-1, present]), kind="stable")[:LISTED_CLASSES]])
        few = len(most) == len(present)
        which = "by class" if few else f"the {LISTED_CLASSES} of {len(present):,} classes that changed most"
        caption = f"{run.name(method)}: change compared with zero-shot, {which}; the last column is over all domains"
        lines: list[list[str | Cell]] = []
        for i in most:
            cells = []
            for old, change, count in zip(before[:, i], points[:, i], images[:, i], strict=True):
                note = f"{old:.1f} % before, {old + change:.1f} % after, {count:.0f} images"
                cells.append(Cell("") if math.isnan(change) else Cell(signed(change, 1), change / full, note))
            lines.append([run.classes[i], *cells])
        tables.append((run.name(method), grid(caption, ["class", *run.domains, "all images"], lines)))
    head = ["method", "gained", "lost", "unchanged", "gained most", "lost most"]
    overview = [[run.name(method), *_summary(run, points[:-1])] for method, points in changes.items()]
    return {"overview": grid("Classes gained and lost", head, overview), "tables": tables}


def _summary(run: Run, points: NDArray[np.float64]) -> list[str]:
    """Classes of domains that gained, lost and did not change, and the largest gain and loss."""

    def named(place: np.intp) -> str:
        domain, name = np.unravel_index(place, points.shape)
        return f"{run.classes[name]} in {run.domains[domain]} {signed(points[domain, name], 1)}"

    up, down, same = (points > 0).sum(), (points < 0).sum(), (points == 0).sum()
    most = named(np.nanargmax(points)) if up else "none"
    least = named(np.nanargmin(points)) if down else "none"
    return [str(up), str(down), str(same), most, least]


def confusion(run: Run) -> Panel:
    """For each domain zero-shot and every method: heat maps of few classes, the largest confusions of many."""
    if ZERO_SHOT not in run.summary:
        return run.no_comparison
    few = len(run.classes) <= MAPPED_CLASSES
    parts: list[tuple[str, Any]] = []
    for domain in run.domains:
        matrices = {run.name(m): run.confusion(m, domain) for m in (ZERO_SHOT, *run.methods)}
        parts.append((domain, matrices if few else _largest(run, domain, matrices)))
    return {"few": few, "parts": parts, "listed": LISTED_CONFUSIONS}


def _largest(run: Run, domain: str, matrices: dict[str, NDArray[np.int64]]) -> Grid:
    """The largest confusions by any method; zero-shot is the first one."""
    shares = np.stack([100 * matrix / np.maximum(matrix.sum(1, keepdims=True), 1) for matrix in matrices.values()])
    worst = shares.max(axis=0)
    np.fill_diagonal(worst, 0)
    lines: list[list[str | Cell]] = []
    for place in np.argsort(-worst, axis=None, kind="stable")[:LISTED_CONFUSIONS]:
        true, called = np.unravel_index(place, worst.shape)
        if worst[true, called]:
            before, *_ = values = shares[:, true, called].tolist()
            cells = [Cell(f"{share:.1f}", (before - share) / 50) for share in values]
            lines.append([run.classes[true], run.classes[called], *cells])
    caption = f"{domain}: the largest confusions, in percent of the true class"
    return grid(caption, ["true class", "predicted", *matrices], lines)


def calibration(run: Run) -> Panel:
    """All measures beside accuracy, and for each method a reliability diagram."""
    has = {name for row in run.record["rows"] for name, value in row["metrics"].items() if value is not None}
    table = metric_table(run.record, [name for name in METRICS if name in has])
    table.title, table.notes = ["Measures, averaged over domains"], []
    diagrams = [(run.name(m), pooled([row["calibration"] for row in run.rows(m)])) for m in run.summary]
    return {"table": from_table(table), "diagrams": diagrams}


def pooled(parts: list[CalibrationBins]) -> list[tuple[int, float, float] | None]:
    """The bins of several rows together: images, mean confidence and accuracy (%); None where there is no image."""
    count, confidence, accuracy = (
        np.array([part[name] for part in parts], dtype=float) for name in ("count", "confidence", "accuracy")
    )
    images = count.sum(axis=0)
    sums = (np.nansum(count * values, axis=0) for values in (confidence, accuracy))
    return [(int(n), c / n, a / n) if n else None for n, c, a in zip(images, *sums, strict=True)]


def examples(run: Run) -> Panel:
    """Images whose prediction changed: the fixed and the broken alike, with the count of all of each kind."""
    kept = run.record.get("examples")
    if not kept or not kept["groups"]:
        return "the record has no pictures; run eval with --examples 6"
    return dict(kept)


def cost(run: Run) -> Panel:
    """Time and memory of each method, and what ``--profile`` measured."""
    tables = side_tables(run.record)
    for table in tables:
        table.sections = [(name, [[run.name(row[0]), *row[1:]] for row in rows]) for name, rows in table.sections]
    return {"tables": [from_table(table) for table in tables]}


PANELS: list[tuple[str, str, Callable[[Run], Panel]]] = [
    ("accuracy", "Accuracy", accuracy),
    ("gains", "Gains by domain", gains),
    ("examples", "Examples of changed predictions", examples),
    ("classes", "Classes that gained and lost", classes),
    ("confusion", "Confusion before and after", confusion),
    ("calibration", "Calibration and other measures", calibration),
    ("cost", "Cost", cost),
    ("setup", "How it was run", lambda _: {}),
]
"""Each has a template of its name, a title, and the function that fills it, in the order of the page."""


def page(sources: Sources) -> str:
    """The whole document."""
    runs = []
    for run in sources.runs:
        panels = [(name, title, fill(run)) for name, title, fill in PANELS]
        runs.append({"run": run, "headline": headline(run), "panels": panels})
    tables = comparison({run.label: run.record for run in sources.runs}) if len(runs) > 1 else []
    grids = [from_table(table) for table in tables]
    return render("report.html", comparison=grids, runs=runs, studies=sources.studies, files=sources.files, large=LARGE)
