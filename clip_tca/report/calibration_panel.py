"""All measures beside accuracy, and for each method a reliability diagram: the accuracy of predictions by confidence.

Of a calibrated method every bar ends at the line: of the predictions with 80 % confidence, 80 % are right. Plain SVG,
with horizontal positions in percent and text that is not scaled, as in :mod:`clip_tca.report.charts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from clip_tca.report.html_tables import from_table
from clip_tca.report.markup import Content, Safe, join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.metric_table import metric_table
from clip_tca.results.metrics import METRICS
from clip_tca.results.schema import CalibrationBins

TITLE = "Calibration and other measures"
HEIGHT, AXIS, GAP = 150, 18, 0.6
"""Heights in pixels of 100 % and of the axis below; between two bars, percent of the width."""


@dataclass(frozen=True)
class Bin:
    """Predictions in a range of confidence: images, mean confidence and accuracy (%)."""

    images: int
    confidence: float
    accuracy: float


def calibration(run: Run) -> Section:
    """The table of measures, and the diagrams."""
    rows = run.record["rows"]
    bins = {
        method: [row["calibration"] for row in rows if row["method"] == method and "calibration" in row]
        for method in run.accuracy
    }
    if not all(bins.values()):
        return Section(TITLE, None, "the record is older than these measures; evaluate again to have them")
    has = {name for row in rows for name, value in row.get("metrics", {}).items() if value is not None}
    table = metric_table(run.record, [name for name in METRICS if name in has])
    table.title, table.notes = ["Measures, averaged over domains"], []
    intro = (
        "Reliability: bars are the accuracy of predictions by their confidence, the images of all domains and shuffles "
        "together; marks are their mean confidence, and on the line both are the same. Darker bars have more images."
    )
    diagrams = [_diagram(run.method_label(method), pooled(parts)) for method, parts in bins.items()]
    body = join(from_table(table), tag("p", intro, class_="lead"), tag("div", *diagrams, class_="panels"))
    return Section(TITLE, body)


def pooled(parts: list[CalibrationBins]) -> list[Bin | None]:
    """The bins of several rows together; None where there is no image."""
    bins: list[Bin | None] = []
    for place in range(len(parts[0]["count"])):
        images = sum(part["count"][place] for part in parts)
        confidence, accuracy = (
            sum(part["count"][place] * (values[place] or 0.0) for part, values in zip(parts, listed, strict=True))
            for listed in ([part["confidence"] for part in parts], [part["accuracy"] for part in parts])
        )
        bins.append(Bin(images, confidence / images, accuracy / images) if images else None)
    return bins


def _diagram(name: str, bins: list[Bin | None]) -> Safe:
    width, most = 100 / len(bins), max(each.images for each in bins if each)
    shapes: list[Content] = []
    for place, each in enumerate(bins):
        if each is None:
            continue
        left, right = f"{place * width:.2f}%", f"{(place + 1) * width - GAP:.2f}%"
        top, level = (HEIGHT * (1 - percent / 100) for percent in (each.accuracy, each.confidence))
        bar = {"x": left, "y": f"{top:.1f}", "width": f"{width - GAP:.2f}%", "height": f"{HEIGHT - top:.1f}"}
        shade = f"fill-opacity:{0.25 + 0.75 * each.images / most:.2f}"
        shapes.append(tag("rect", class_="bin", style=shade, **bar))
        shapes.append(tag("line", x1=left, x2=right, y1=f"{level:.1f}", y2=f"{level:.1f}", class_="mark"))
    shapes += [
        tag("line", x1="0%", y1=HEIGHT, x2="100%", y2=0, class_="ideal"),
        tag("line", x1="0%", y1=HEIGHT, x2="100%", y2=HEIGHT, class_="zero"),
    ]
    for text, across, anchor in (("0 %", "0%", "start"), ("confidence", "50%", "middle"), ("100 %", "100%", "end")):
        shapes.append(tag("text", text, x=across, y=HEIGHT + AXIS - 4, class_=f"tick {anchor}"))
    drawing = tag("svg", *shapes, width="100%", height=HEIGHT + AXIS, aria_hidden="true")
    values = "; ".join(
        f"{each.confidence:.0f} % confident, {each.accuracy:.0f} % right ({each.images:,} images)"
        for each in bins
        if each
    )
    label = f"Reliability diagram of {name}: {values}"
    return tag("figure", tag("figcaption", name), tag("div", drawing, role="img", aria_label=label), class_="panel")
