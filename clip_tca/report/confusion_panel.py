"""Confusion before and after: heat maps of few classes, the largest confusions of many."""

from __future__ import annotations

from heapq import nlargest

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.html_tables import Cell, Row, grid, scroll, titled
from clip_tca.report.markup import Safe, folded, join, tag
from clip_tca.report.run import NO_ZERO_SHOT, Run, Section

TITLE = "Confusion before and after"
MOST_CLASSES = 20
"""Classes up to which a heat map can be read."""

LISTED = 25
"""Confusions listed where there are more."""

Matrix = list[list[int]]


def confusions(run: Run) -> Section:
    """For each domain zero-shot and every method."""
    if not run.has_zero_shot:
        return Section(TITLE, None, NO_ZERO_SHOT)
    by_domain: dict[str, dict[str, Matrix]] = {
        domain: {m: matrix for m in (ZERO_SHOT, *run.methods) if (matrix := run.confusion(m, domain))}
        for domain in run.domains
    }
    if not all(ZERO_SHOT in matrices for matrices in by_domain.values()):
        return Section(TITLE, None, "the record has no confusion matrices: evaluate again to have them")
    few = len(run.classes) <= MOST_CLASSES
    intro = (
        "Each row is a true class, each column what its images were called, in percent of the row; "
        "empty is none. Right answers are on the outlined diagonal."
        if few
        else f"The {LISTED} largest of each domain, in percent of the images of the true class."
    )
    parts = {domain: _maps(run, m) if few else _largest(run, domain, m) for domain, m in by_domain.items()}
    return Section(TITLE, join(tag("p", intro, class_="lead"), folded(parts.items())))


def _maps(run: Run, matrices: dict[str, Matrix]) -> Safe:
    maps = [_map(run.method_label(method), run.classes, matrix) for method, matrix in matrices.items()]
    return tag("div", *maps, class_="maps")


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
    percent = f"{100 * share:.0f}" if share >= 0.005 else "<1"
    kind = "right" if right else "wrong"
    return tag("td", percent, class_=kind, style=f"--shade:{share:.2f}", title=f"{value} of {images}")


def _largest(run: Run, domain: str, matrices: dict[str, Matrix]) -> Safe:
    classes = run.classes
    images = {method: [sum(line) for line in matrix] for method, matrix in matrices.items()}

    def share(method: str, i: int, j: int) -> float:
        return 100 * matrices[method][i][j] / (images[method][i] or 1)

    pairs = {(i, j) for m in matrices.values() for i, line in enumerate(m) for j, n in enumerate(line) if n and i != j}
    lines: list[Row] = []
    for pair in nlargest(LISTED, sorted(pairs), key=lambda pair: max(share(method, *pair) for method in matrices)):
        before = share(ZERO_SHOT, *pair)
        cells = [Cell(f"{share(m, *pair):.1f}", (before - share(m, *pair)) / 50) for m in matrices]
        lines.append([classes[pair[0]], classes[pair[1]], *cells])
    head = ["true class", "called", *[run.method_label(method) for method in matrices]]
    return grid(f"{domain}: the largest confusions, in percent of the true class", head, [("", lines)])
