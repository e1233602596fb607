"""Which class is taken for which, before and after: heat maps of few classes, the largest confusions of many."""

from __future__ import annotations

from heapq import nlargest

from clip_tca.report.html_tables import Cell, Row, grid, scroll, titled
from clip_tca.report.markup import Safe, join, tag
from clip_tca.report.run import BEFORE, NO_BEFORE, Run, Section

TITLE = "Confusion before and after"
MOST = 20
"""Classes that still make a heat map one can read."""

LISTED = 25
"""Confusions listed where there are more."""

Matrix = list[list[int]]


def confusions(run: Run) -> Section:
    """For each domain zero-shot and every method."""
    if not run.has_before:
        return Section(TITLE, None, NO_BEFORE)
    found: dict[str, dict[str, Matrix]] = {domain: {} for domain in run.domains}
    for domain in run.domains:
        for method in (BEFORE, *run.methods):
            matrix = run.confusion(method, domain) if domain in run.accuracy[method] else None
            if matrix is not None:
                found[domain][method] = matrix
    if not all(BEFORE in matrices for matrices in found.values()):
        return Section(TITLE, None, "the record has no confusion matrices: evaluate again to have them")
    few = len(run.classes) <= MOST
    intro = (
        "Each row is a true class, each column what its images were called, in percent of the row; "
        "empty is none. Right answers are on the outlined diagonal."
        if few
        else f"The {LISTED} largest of each domain, in percent of the images of the true class."
    )
    parts = [
        tag(
            "details",
            tag("summary", domain),
            _maps(run, matrices) if few else _largest(run, domain, matrices),
            open=number == 0,
        )
        for number, (domain, matrices) in enumerate(found.items())
    ]
    return Section(TITLE, join(tag("p", intro, class_="lead"), *parts))


def _maps(run: Run, matrices: dict[str, Matrix]) -> Safe:
    return tag(
        "div", *[_map(run.shown(method), run.classes, matrix) for method, matrix in matrices.items()], class_="maps"
    )


def _map(title: str, classes: list[str], matrix: Matrix) -> Safe:
    top = [tag("th", tag("span", name), scope="col") for name in classes]
    rows = []
    for i, (name, line) in enumerate(zip(classes, matrix, strict=True)):
        cells = [_share(value, sum(line), i == j) for j, value in enumerate(line)]
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    head = tag("tr", tag("td", tag("span", "true ↓ called →", class_="corner")), *top)
    table = tag("table", titled(title), tag("thead", head), tag("tbody", *rows), class_="heat")
    return scroll(table, f"Confusion of {title}")


def _share(value: int, images: int, right: bool) -> Safe:
    if not value:
        return tag("td", class_="right" if right else None)
    share = value / images
    shown = f"{100 * share:.0f}" if share >= 0.005 else "<1"
    kind = "right" if right else "wrong"
    return tag("td", shown, class_=kind, style=f"--shade:{share:.2f}", title=f"{value} of {images}")


def _largest(run: Run, domain: str, matrices: dict[str, Matrix]) -> Safe:
    classes = run.classes
    images = {method: [sum(line) for line in matrix] for method, matrix in matrices.items()}

    def share(method: str, i: int, j: int) -> float:
        return 100 * matrices[method][i][j] / (images[method][i] or 1)

    pairs = {(i, j) for m in matrices.values() for i, line in enumerate(m) for j, n in enumerate(line) if n and i != j}
    lines: list[Row] = []
    for pair in nlargest(LISTED, sorted(pairs), key=lambda pair: max(share(method, *pair) for method in matrices)):
        before = share(BEFORE, *pair)
        cells = [Cell(f"{share(m, *pair):.1f}", (before - share(m, *pair)) / 50) for m in matrices]
        lines.append([classes[pair[0]], classes[pair[1]], *cells])
    head = ["true class", "called", *[run.shown(method) for method in matrices]]
    return grid(f"{domain}: the largest confusions, in percent of the true class", head, [("", lines)])
