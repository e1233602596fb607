"""Which classes gained and which lost against zero-shot, by method."""

from __future__ import annotations

from heapq import nlargest

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.html_tables import Cell, Row, grid
from clip_tca.report.markup import Safe, folded, join, signed, tag
from clip_tca.report.run import NO_ZERO_SHOT, Run, Score, Section

TITLE = "Classes that gained and lost"
LEAST = 10.0
"""Points that get the full colour, at least: where nothing changed much, nothing should look as if it did."""

MOST_CLASSES = 100
"""Classes up to which every one has its line; of more, as many that changed most."""

Pairs = dict[tuple[str, str], tuple[Score, Score]]
"""Scores before and after, by domain and class."""


def class_changes(run: Run) -> Section:
    """A line for each method, and a table of classes and domains for each."""
    if not run.has_zero_shot or not run.methods:
        return Section(TITLE, None, NO_ZERO_SHOT if run.methods else "zero-shot is the only method")
    by_method = {method: _pairs(run, method) for method in run.methods}
    full = max([LEAST, *[abs(_change(*both)) for pairs in by_method.values() for both in pairs.values()]])
    intro = "Each class of each domain counts once: its accuracy after minus before, in percentage points."
    head = ["method", "gained", "lost", "unchanged", "gained most", "lost most"]
    lines = [_summary(run, method, pairs) for method, pairs in by_method.items()]
    overview = grid("Classes gained and lost", head, [("", lines)])
    tables = [(run.method_label(method), _details(run, method, pairs, full)) for method, pairs in by_method.items()]
    return Section(TITLE, join(tag("p", intro, class_="lead"), overview, folded(tables)))


def _pairs(run: Run, method: str) -> Pairs:
    pairs = {}
    for domain in run.domains:
        after = run.scores(method, domain)
        for name, before in run.scores(ZERO_SHOT, domain).items():
            if name in after:
                pairs[domain, name] = (before, after[name])
    return pairs


def _change(before: Score, after: Score) -> float:
    return after.accuracy - before.accuracy


def _summary(run: Run, method: str, pairs: Pairs) -> Row:
    changes = {key: _change(*both) for key, both in pairs.items()}
    up, down = (sum(value * sign > 0 for value in changes.values()) for sign in (1, -1))

    def extreme(sign: int) -> str:
        key = max(changes, key=lambda key: sign * changes[key], default=None)
        if key is None or sign * changes[key] <= 0:
            return "none"
        return f"{key[1]} in {key[0]} {signed(changes[key], 1)}"

    return [run.method_label(method), str(up), str(down), str(len(changes) - up - down), extreme(1), extreme(-1)]


def _details(run: Run, method: str, pairs: Pairs, full: float) -> Safe:
    totals: dict[str, tuple[Score, Score]] = {}
    for name in run.classes:
        if present := [both for domain in run.domains if (both := pairs.get((domain, name)))]:
            before, after = (Score.total(scores) for scores in zip(*present, strict=True))
            totals[name] = before, after
    most = set(nlargest(MOST_CLASSES, totals, key=lambda name: abs(_change(*totals[name]))))
    lines: list[Row] = []
    for name in filter(most.__contains__, totals):
        cells = [_cell(pairs.get((domain, name)), full) for domain in run.domains]
        lines.append([name, *cells, _cell(totals[name], full)])
    which = (
        "by class" if len(most) == len(totals) else f"the {MOST_CLASSES} of {len(totals):,} classes that changed most"
    )
    caption = (
        f"{run.method_label(method)}: change against zero-shot, {which}; the last column takes all domains together"
    )
    return grid(caption, ["class", *run.domains, "all images"], [("", lines)])


def _cell(both: tuple[Score, Score] | None, full: float) -> Cell:
    if both is None:
        return Cell("")
    before, after = both
    change = _change(before, after)
    note = f"{before.accuracy:.1f} % before, {after.accuracy:.1f} % after, {before.images} images"
    return Cell(signed(change, 1), change / full, note)
