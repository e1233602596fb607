"""The result in a sentence, the table of accuracy with published numbers, and gains by domain."""

from __future__ import annotations

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.charts import Bar, bar_charts
from clip_tca.report.html_tables import from_table
from clip_tca.report.markup import Safe, count, join, signed, tag
from clip_tca.report.run import NO_ZERO_SHOT, Run, Section
from clip_tca.results.table import accuracy_table


def headline(run: Run) -> Safe:
    """Zero-shot and the best method without labels in large figures, and one sentence, whatever it is."""
    label_free = [method for method in run.methods if method not in run.oracles]
    if not label_free or not run.has_zero_shot:
        return Safe("")
    before = run.average(ZERO_SHOT)
    best = max(label_free, key=run.average)
    gain = run.average(best) - before
    figures = [
        _figure("zero-shot", f"{before:.2f} %"),
        _figure(best, f"{run.average(best):.2f} %"),
        _figure("change", signed(gain), "gained" if gain > 0 else "lost" if gain < 0 else ""),
    ]
    return join(tag("dl", *figures, class_="figures"), tag("p", finding(run, best), class_="finding"))


def finding(run: Run, best: str) -> str:
    """One sentence: what the method with the highest average did, and where."""
    before, after = run.accuracy[ZERO_SHOT], run.accuracy[best]
    gain = run.average(best) - run.average(ZERO_SHOT)
    up = sum(after[d] > before[d] for d in after)
    down = sum(after[d] < before[d] for d in after)
    where = f"it gained in {up} and lost in {down} of {count(len(after), 'domain', 'domains')}"
    others = "Of the methods that use no labels, "
    if gain > 0:
        return f"{others}{best} has the highest average: {signed(gain)} points over zero-shot; {where}."
    if gain == 0:
        return f"{others}none has a higher average than zero-shot; {best} has the same, and {where}."
    return f"{others}none has a higher average than zero-shot; {best} comes closest at {signed(gain)} points; {where}."


def _figure(name: str, value: str, kind: str = "") -> Safe:
    return tag("div", tag("dt", name), tag("dd", value, class_=kind or None))


def accuracy(run: Run) -> Section:
    """The table of ``clip-tca eval``."""
    table = accuracy_table(run.record)
    table.title = table.title[:1]
    intro = "In bold the highest measured number of each column among the methods that use no labels."
    return Section("Accuracy", join(tag("p", intro, class_="lead"), from_table(table, best=True)))


def domain_gains(run: Run) -> Section:
    """The chart."""
    if not run.has_zero_shot or not run.methods:
        return Section("Gains by domain", None, NO_ZERO_SHOT if run.methods else "zero-shot is the only method")
    panels = {"average": [_bar(run, m, run.average(m) - run.average(ZERO_SHOT)) for m in run.methods]}
    for domain in run.domains:
        panels[domain] = [
            _bar(run, method, run.accuracy[method][domain] - run.accuracy[ZERO_SHOT][domain])
            for method in run.methods
            if domain in run.accuracy[method]
        ]
    seeds = len(run.record["seeds"])
    shuffles = f", mean of {seeds} shuffles" if seeds > 1 else ""
    oracles = " Dashed bars are oracles: they use true labels." if run.oracles else ""
    intro = f"Accuracy minus that of zero-shot, in percentage points{shuffles}; all panels on one scale.{oracles}"
    return Section("Gains by domain", join(tag("p", intro, class_="lead"), bar_charts(panels)))


def _bar(run: Run, method: str, points: float) -> Bar:
    return Bar(run.method_label(method), points, method in run.oracles)
