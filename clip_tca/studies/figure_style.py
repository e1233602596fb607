"""The style of figures: colours that colour-blind readers can tell apart, and the two plots that studies share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Okabe and Ito's palette, dark colours first; one for each series."""

MARKERS = "osD^vPX*"
"""One for each series, so that figures can be read without colours."""

GREY = "#666666"
DASHES = ((0, (4, 3)), "-", "-.", ":")
"""One for each horizontal line."""

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.hashsalt": "clip-tca",  # ids are the same in every run
}


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: numbers by name, and what they are compared with.

    ``series`` are x and y of lines, with a deviation as a third if there is one, or a number for each row of a dot plot
    (None where there is none). ``levels`` are straight lines across the panel.
    """

    title: str
    unit: str
    series: Mapping[str, Any]
    levels: Mapping[str, float] = field(default_factory=dict)


def series(index: int) -> dict[str, Any]:
    """Colour and marker of a series."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def panels(figure: Figure, titles: Sequence[str], height: float = 3.1, columns: int = 3, **shared: Any) -> list[Axes]:
    """One panel for each title, in rows of at most ``columns``; the figure is as wide as a README."""
    wide = min(columns, max(1, len(titles)))
    rows = math.ceil(len(titles) / wide)
    figure.set_size_inches(9, 0.7 + height * rows)
    axes: list[Axes] = figure.subplots(rows, wide, squeeze=False, **shared).ravel().tolist()
    for extra in axes[len(titles) :]:
        extra.set_axis_off()
    for panel, title in zip(axes, titles, strict=False):
        panel.set_title(title.replace("_", " "), loc="left")
    return axes[: len(titles)]


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below the figure, with every name once."""
    entries = {name: handle for panel in axes for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    if entries:
        names = [name.replace("_", " ") for name in entries]
        figure.legend(entries.values(), names, loc="outside lower center", ncols=min(4, len(names)))


def lines(figure: Figure, shown: Sequence[Panel], name: str, columns: int = 3, log: bool = False) -> None:
    """Lines over an x axis called ``name``; at least two units high, so that noise does not look like a trend."""
    axes = panels(figure, [panel.title for panel in shown], 3.1, columns)
    for axis, panel in zip(axes, shown, strict=True):
        for i, (label, points) in enumerate(panel.series.items()):
            axis.errorbar(*points, label=label, capsize=2, **series(i))
        for dashes, (label, level) in zip(DASHES * len(panel.levels), panel.levels.items(), strict=False):
            axis.axhline(level, color=GREY, linestyle=dashes, linewidth=1.4, label=label)
        axis.set_ylabel(panel.unit)
        axis.set_xlabel(name)
        low, high = axis.get_ylim()
        if "%" in panel.unit and high - low < 2:
            axis.set_ylim((low + high) / 2 - 1, (low + high) / 2 + 1)
        if log:
            sizes_axis(axis, points[0], name)
    legend_below(figure, axes)


def sizes_axis(panel: Axes, sizes: Sequence[int], name: str) -> None:
    """A logarithmic x axis with a tick for each size that fits."""
    panel.set_xscale("log")
    panel.set_xlabel(name)
    ticks: list[int] = []
    room = math.log(max(sizes) / min(sizes)) / 6 if len(sizes) > 1 else 0.0
    for size in sizes:
        if not ticks or math.log(size) - math.log(ticks[-1]) >= room:
            ticks.append(size)
    panel.set_xticks(ticks, [str(size) for size in ticks])
    panel.minorticks_off()


def dots(figure: Figure, shown: Sequence[Panel], rows: Sequence[str]) -> None:
    """A dot for each series in each of the ``rows``, the first on top; a single series has its numbers beside it."""
    titles = [panel.title for panel in shown]
    axes = panels(figure, titles, 0.9 + 0.36 * len(rows), min(3, len(shown)), sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
        for i, (label, values) in enumerate(panel.series.items()):
            known = [(value, row + 0.1 * i) for row, value in enumerate(values) if value is not None]
            axis.plot(*zip(*known, strict=True), linestyle="none", clip_on=False, label=label, **series(i))
            for x, y in known if len(panel.series) == 1 else []:
                axis.annotate(f"{x:.3g}", (x, y), (8, 0), textcoords="offset points", va="center", fontsize=9)
        for label, level in panel.levels.items():
            axis.axvline(level, color=GREY, linestyle=DASHES[0], linewidth=1.4, label=label)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel(panel.unit)
        axis.margins(x=0.25)
    legend_below(figure, axes)
