"""The report: records of evaluations and studies as one page, with the records themselves to download.

Each panel of a run has a function here that fills its template in ``templates/panels/``, or says why it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clip_tca.explanation import SAID
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.templating import Cell, Grid, from_table, grid, render, signed
from clip_tca.results.intervals import average_gain
from clip_tca.results.record import checked, labelled, parse
from clip_tca.results.schema import METRICS, CalibrationBins, EvaluationRecord, ResultRow
from clip_tca.results.table import accuracy_table, comparison, metric_table, side_tables, summary

FULL_SHADE = 10.0  # points that get the full colour, at least: where little changed, nothing should look as if it did
LISTED_CLASSES = 100  # up to which every class has its line; of more, as many that changed most
MAPPED_CLASSES = 20  # up to which a heat map of the confusion can be read
LISTED_CONFUSIONS = 25  # where there are more classes
LARGE = 1_000_000  # bytes of a record that the page contains at most

FIGURES = {".svg": "image/svg+xml", ".png": "image/png"}  # beside the record of a study, the best first

Panel = dict[str, Any] | str  # the values of a template, or why there are none


@dataclass(frozen=True)
class Run:
    """A record of ``clip-tca eval`` with the name that the page gives it."""

    label: str
    record: EvaluationRecord

    @cached_property
    def domains(self) -> list[str]:
        return list(self.record["data"]["domains"])

    @cached_property
    def classes(self) -> list[str]:
        return self.record["data"]["classes"]

    @cached_property
    def oracles(self) -> set[str]:
        return {method["name"] for method in self.record["methods"] if method["uses_labels"]}

    @cached_property
    def methods(self) -> list[str]:
        """All but zero-shot: the best of those that use no labels, then the others in the order of the record."""
        listed = [method for method in self.summary if method != ZERO_SHOT]
        best = max((method for method in listed if method not in self.oracles), key=self.accuracy, default=None)
        return sorted(listed, key=lambda method: method != best)

    def name(self, method: str) -> str:
        return f"{method} (oracle)" if method in self.oracles else method

    @cached_property
    def summary(self) -> dict[str, dict[str, tuple[float, float]]]:
        return summary(self.record)

    def accuracy(self, method: str, domain: str | None = None) -> float:
        values = self.summary[method]
        return values[domain][0] if domain is not None else fmean(mean for mean, _ in values.values())

    def gain(self, method: str, domain: str | None = None) -> float:
        return self.accuracy(method, domain) - self.accuracy(ZERO_SHOT, domain)

    @property
    def no_comparison(self) -> str:
        """Why nothing can be compared with zero-shot; empty if it can."""
        if ZERO_SHOT not in self.summary:
            return "the record has no zero-shot rows to compare with"
        return "" if self.methods else "zero-shot is the only method"

    def rows(self, method: str) -> list[ResultRow]:
        return [row for row in self.record["rows"] if row["method"] == method]

    def class_accuracy(self, method: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Accuracy (%) and images over all seeds, ``(domains + 1, classes)``; the last row is of all domains."""
        correct, images = np.zeros((2, len(self.domains) + 1, len(self.classes)))
        for row in self.rows(method):
            scores = [row["per_class"][name] for name in self.classes]
            for domain in (self.domains.index(row["domain"]), -1):
                correct[domain] += [score["correct"] for score in scores]
                images[domain] += [score["images"] for score in scores]
        return np.divide(100 * correct, images, out=np.full_like(images, np.nan), where=images > 0), images

    def confusion(self, method: str, domain: str) -> NDArray[np.int64]:
        matrices = [row["confusion"] for row in self.rows(method) if row["domain"] == domain]
        total: NDArray[np.int64] = np.sum(matrices, axis=0)
        return total


@dataclass(frozen=True)
class Study:
    """A record of ``clip-tca study``."""

    label: str
    record: dict[str, Any]
    figure: tuple[str, bytes] | None = None  # kind and content of the one beside the record


@dataclass
class Sources:
    """Records of evaluations and of studies, and name and content of their files, for download."""

    runs: list[Run] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def read(paths: Iterable[str | Path]) -> Sources:
    """Read files of either kind, or folders of them; ValueError names the file and the field that is wrong."""
    sources = Sources()
    for path, content in parsed(paths):
        sources.files.append((path.name, path.read_bytes()))
        if isinstance(content, dict) and isinstance(content.get("study"), str):
            figures = [(kind, path.with_suffix(suffix)) for suffix, kind in FIGURES.items()]
            figure = next(((kind, file.read_bytes()) for kind, file in figures if file.is_file()), None)
            sources.studies.append(Study(path.stem, content, figure))
        else:
            taken = [run.label for run in sources.runs]
            sources.runs += [Run(*item) for item in labelled(checked(content, path), path, taken).items()]
    return sources


def parsed(paths: Iterable[str | Path]) -> Iterator[tuple[Path, Any]]:
    """Files with their content, each once; a folder stands for its JSON files, in the order of their names."""
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: no .json file in this folder; clip-tca eval --output FILE.json writes one")
        files |= dict.fromkeys(inside)
    return ((path, parse(path)) for path in files)


def headline(run: Run) -> dict[str, Any] | None:
    """Zero-shot and the best method without labels, whatever it gained or lost; None where there is no such method."""
    if run.no_comparison or (best := run.methods[0]) in run.oracles:
        return None
    gains, average = [run.gain(best, domain) for domain in run.domains], average_gain(run.record["rows"], best)
    values = {"best": best, "gain": run.gain(best), "gains": gains, "interval": None}
    return values | ({"interval": average.interval, "verdict": SAID[average.says]} if average else {})


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

    def named(position: np.intp) -> str:
        domain, name = np.unravel_index(position, points.shape)
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
    for position in np.argsort(-worst, axis=None, kind="stable")[:LISTED_CONFUSIONS]:
        true, called = np.unravel_index(position, worst.shape)
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
    pictures = run.record.get("examples")
    if not pictures or not pictures["groups"]:
        return "the record has no pictures; run eval with --examples 6"
    return dict(pictures)


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
