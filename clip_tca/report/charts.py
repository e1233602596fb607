"""Gains over zero-shot as bars, a panel for each domain, all on one scale. Plain SVG.

Horizontal positions are percentages and text is not scaled, so a panel can be read at any width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clip_tca.report.markup import Safe, signed, tag

ROW, BAR, AXIS = 34, 9, 20
"""Heights in pixels: of a method, of its bar, of the axis."""


@dataclass(frozen=True)
class Bar:
    """A bar: the label of a method, its gain in points, and whether it is an oracle."""

    name: str
    points: float
    oracle: bool


def bar_charts(panels: dict[str, list[Bar]]) -> Safe:
    """All panels, side by side where there is room."""
    low, high = limits([bar.points for bars in panels.values() for bar in bars])
    return tag("div", *[_panel(name, bars, low, high) for name, bars in panels.items()], class_="panels")


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The scale: round numbers around all values and zero."""
    reach = max([1.0, *map(abs, values)])
    step = 10 ** math.floor(math.log10(reach))
    step = step if reach / step >= 4 else step / 2
    low, high = min([0.0, *values]), max([0.0, *values])
    return math.floor(low / step) * step, max(math.ceil(high / step), 1) * step


def _panel(name: str, bars: list[Bar], low: float, high: float) -> Safe:
    def across(points: float) -> str:
        return f"{100 * (points - low) / (high - low):.2f}%"

    height = ROW * len(bars) + AXIS
    ticks = [0.0, *[end for end in (low, high) if abs(end) > 0.15 * (high - low)]]  # not too close to zero
    shapes = []
    for tick in ticks:
        label = signed(tick, 0 if tick == round(tick) else 1) if tick else "0"
        kind = "start" if tick == low else "end" if tick == high else "middle"
        shapes.append(tag("text", label, x=across(tick), y=height - 4, class_=f"tick {kind}"))
    zero = across(0)
    for number, bar in enumerate(bars):
        top = ROW * number
        kind = "oracle" if bar.oracle else "gained" if bar.points >= 0 else "lost"
        width = f"{100 * abs(bar.points) / (high - low):.2f}%"
        shapes += [
            tag("text", bar.name, x=0, y=top + 13, class_="name"),
            tag("text", signed(bar.points), x="100%", y=top + 13, class_="value"),
            tag("line", x1=zero, x2=zero, y1=top + 17, y2=top + 21 + BAR, class_="zero"),
            tag("rect", x=across(min(0, bar.points)), y=top + 19, width=width, height=BAR, class_=f"bar {kind}"),
        ]
    values = ", ".join(f"{bar.name} {signed(bar.points)}" for bar in bars)
    label = f"Gain over zero-shot on {name}, in points: {values}"
    drawing = tag("svg", *shapes, width="100%", height=height, role="img", aria_label=label)
    return tag("figure", tag("figcaption", name), drawing, class_="panel")
