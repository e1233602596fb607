"""The style of figures, and the two kinds of panels that studies share: lines and dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")  # Okabe and Ito's
MARKERS = "osD^vPX*"  # one for each series, so that figures can be read without colours
GREY = "#666666"
DASHES = ((0, (4, 3)), "-", "-.", ":")  # one for each horizontal line

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


def lines(axis: Axes, frame: pd.DataFrame, x: str, y: str, unit: str) -> None:
    """A line for each ``line`` of the frame; rows without ``x`` are straight lines across the panel."""
    styles, dashes = map(series, itertools.count()), itertools.cycle(DASHES)
    for label, part in frame.dropna(subset=y).groupby("line", sort=False):
        if part[x].isna().all():
            axis.axhline(part[y].iloc[0], color=GREY, linestyle=next(dashes), linewidth=1.4, label=label)
        else:
            axis.errorbar(part[x], part[y], yerr=part.get("std"), label=label, capsize=2, **next(styles))
    axis.set_ylabel(unit)
    low, high = axis.get_ylim()
    if "%" in unit and high - low < 2:  # noise must not look like a trend
        axis.set_ylim((low + high) / 2 - 1, (low + high) / 2 + 1)


def dots(axis: Axes, frame: pd.DataFrame, y: str, unit: str) -> None:
    """A dot for each ``line`` and method, the first method on top; one line alone has its numbers beside it."""
    methods = frame["method"].dropna().unique()
    known = frame.dropna(subset=y)
    for i, (label, part) in enumerate(known.groupby("line", sort=False)):
        if part["method"].isna().all():
            axis.axvline(part[y].iloc[0], color=GREY, linestyle=DASHES[0], linewidth=1.4, label=label)
            continue
        height = [list(methods).index(method) + 0.1 * i for method in part["method"]]
        axis.plot(part[y], height, linestyle="none", clip_on=False, label=label, **series(i))
        for point in zip(part[y], height, strict=True) if known["line"].nunique() == 1 else []:
            axis.annotate(f"{point[0]:.3g}", point, (8, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_yticks(range(len(methods)), methods)
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.set_xlabel(unit)
    axis.margins(x=0.25)


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
