"""The style of figures: colours that colour-blind readers can tell apart, and the shapes that studies share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Okabe and Ito's palette, dark colours first; one for each series."""

MARKERS = "osD^vPX*"
"""One for each series, so that figures can be read without colours."""

GREY = "#666666"
WIDTH = 9.0
"""Inches: at 100 dots to an inch, the width of a README."""

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "clip-tca",  # ids are the same in every run
}


def label(name: str) -> str:
    """A domain's name as people write it."""
    return name.replace("_", " ")


def series(index: int) -> dict[str, Any]:
    """Colour and marker of a series."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def panels(figure: Figure, titles: Sequence[str], height: float = 3.1, columns: int = 3, **shared: Any) -> list[Axes]:
    """One panel for each title, in rows of at most ``columns``."""
    wide = min(columns, max(1, len(titles)))
    rows = math.ceil(len(titles) / wide)
    figure.set_size_inches(WIDTH, 0.7 + height * rows)
    axes: list[Axes] = figure.subplots(rows, wide, squeeze=False, **shared).ravel().tolist()
    for extra in axes[len(titles) :]:
        extra.set_axis_off()
    for panel, title in zip(axes, titles, strict=False):
        panel.set_title(title, loc="left")
    return axes[: len(titles)]


def domain_panels(figure: Figure, results: dict[str, Any], **options: Any) -> list[tuple[Axes, Any]]:
    """A panel for each domain, with the results of the domain; options as in :func:`panels`."""
    axes = panels(figure, [label(name) for name in results["domains"]], **options)
    return list(zip(axes, results["domains"].values(), strict=True))


def legend_below(figure: Figure, panels: Axes | Sequence[Axes], columns: int = 4, title: str = "") -> None:
    """One legend below the figure, with the series of ``panels``."""
    entries = [panel.get_legend_handles_labels() for panel in (panels if isinstance(panels, Sequence) else [panels])]
    handles, labels = [h for entry in entries for h in entry[0]], [text for entry in entries for text in entry[1]]
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), title=title)


def level(panel: Axes, value: float, name: str) -> None:
    """A dashed horizontal line: the baseline."""
    panel.axhline(value, color=GREY, linestyle=(0, (4, 3)), linewidth=1.4, label=name)


def at_least(panel: Axes, span: float = 2.0, across: bool = False) -> None:
    """Let an axis cover at least ``span`` points of accuracy, so that noise does not look like a trend."""
    low, high = panel.get_xlim() if across else panel.get_ylim()
    if high - low < span:
        (panel.set_xlim if across else panel.set_ylim)((low + high - span) / 2, (low + high + span) / 2)


def magnitude(values: Sequence[float]) -> tuple[float, str]:
    """The power of ten of the largest value, and its notation for an axis label of values divided by it."""
    largest = max(values, default=0.0)
    power = math.floor(math.log10(largest)) if largest > 0 else 0
    return 10.0**power, "" if power in (0, 1) else rf"  ($\times 10^{{{power}}}$)"


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


def decades(panel: Axes) -> None:
    """A logarithmic x axis with plain numbers as ticks: 1, 2 and 5 of each decade, or 1 only if there are many."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    panel.set_xscale("log")
    low, high = panel.get_xlim()
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_locator(NullLocator())


def value(panel: Axes, text: str, x: float, y: float, beside: bool = False) -> None:
    """A number above its dot, or beside it, readable where it meets a line."""
    offset, side = ((9, 0), "left") if beside else ((0, 11), "center")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    panel.annotate(text, (x, y), offset, textcoords="offset points", ha=side, va="center", fontsize=9, bbox=box)


def dots(panel: Axes, rows: Sequence[str]) -> None:
    """Prepare a dot plot with a named row for each item, the first on top."""
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
