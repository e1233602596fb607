"""How time and memory of a fit grow with images, dimensions, classes and k, on one thread; draws growth.svg."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import torch

from benchmarks.measure import Row, embeddings, peak_bytes, seconds
from clip_tca import ConditionalTCA, LinearTCA
from clip_tca.adapters.base import Adapter

FIGURE = Path(__file__).with_name("growth.svg")
AXES = {
    "n": ("images n", (500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)),
    "d": ("dimensions d", (64, 128, 256, 512, 1024)),
    "classes": ("classes", (2, 7, 20, 65, 200, 500, 1000)),
    "k": ("k", (5, 10, 20, 50, 100, 300)),
}
FIXED = {"n": 8000, "d": 512, "classes": 7, "k": 20}
METHODS = {
    "LinearTCA": lambda g, k: LinearTCA(g, k=k),
    "LinearTCA, gradient": lambda g, k: LinearTCA(g, k=k, solver="gradient", shares="uniform"),
    "ConditionalTCA": lambda g, _k: ConditionalTCA(g),
}


def cost(method: str, n: int, d: int, classes: int, k: int) -> tuple[float, float]:
    """Seconds, and MB beyond the embeddings."""
    z, g = embeddings(n, d, classes)
    adapter: Adapter = METHODS[method](g, k)
    return seconds(lambda: adapter.fit(z), 2), peak_bytes(lambda: adapter.fit(z)) / 1e6


def measure(quick: bool) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """Costs by what is varied and by method."""
    torch.set_num_threads(1)
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    costs: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for axis, (_, values) in AXES.items():
        for method in METHODS:
            if axis == "k" and method == "ConditionalTCA":
                continue  # it has no k
            line = [(v, *cost(method, **{**FIXED, axis: v})) for v in (values[1:4] if quick else values)]
            costs.setdefault(axis, {})[method] = line
    return costs


def draw(costs: dict[str, dict[str, list[tuple[int, float, float]]]], path: Path) -> None:
    """Time above, memory below, a column for each of the four."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from clip_tca.studies.figure_style import GREY, STYLE, legend_below, panels, series, sizes_axis

    with rc_context(STYLE):
        figure = Figure(layout="constrained")
        axes = panels(figure, [AXES[axis][0] for axis in costs] + [""] * len(costs), 2.6, len(costs), sharey="row")
        for column, (axis, lines) in enumerate(costs.items()):
            for what in (0, 1):
                panel = axes[column + what * len(costs)]
                for method, line in lines.items():
                    x, y = [v for v, *_ in line], [point[what] for _, *point in line]
                    panel.plot(x, y, label=method, **series(list(METHODS).index(method)))
                sizes_axis(panel, x, AXES[axis][0] if what else "")
                panel.set_yscale("log")
        axes[0].set_ylabel("seconds, one thread")
        axes[len(costs)].set_ylabel("MB beyond the embeddings")
        legend_below(figure, axes[:1])
        others = ", ".join(f"{name} = {value:,}" for name, value in FIXED.items())
        figure.suptitle(f"Cost of a fit; what is not varied: {others}", fontsize=10, color=GREY)
        figure.savefig(path, metadata={"Date": None})


def rows(quick: bool) -> list[Row]:
    """The exponent with which time grows at the large end: 1 is linear."""
    costs = measure(quick)
    if not quick:
        draw(costs, FIGURE)
    table = []
    for axis, goal in {"n": "<= 1.15", "d": "<= 3.15", "classes": "<= 1.15", "k": "<= 1.15"}.items():
        for method, line in costs[axis].items():
            (low, early, little), (high, late, much) = line[-2:]
            power = math.log(late / early) / math.log(high / low)
            sides = {
                f"{axis} = {low:,}": f"{early:.3f} s, {little:.0f} MB",
                f"{axis} = {high:,}": f"{late:.3f} s, {much:.0f} MB",
            }
            table.append(Row(f"{method}: time grows as {axis} to the power", power, goal, sides))
    return table
