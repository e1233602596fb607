"""Studies: what each found, and its figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clip_tca.report.markup import Content, Safe, data_uri, join, tag

KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
"""Figures that ``clip-tca study --output PREFIX`` writes beside PREFIX.json, the best first."""


@dataclass(frozen=True)
class StudyRecord:
    """A record of ``clip-tca study``.

    Attributes:
        label: Name of its file.
        record: Its content.
        figure: Kind and content of the figure beside it, if there is one.
    """

    label: str
    record: dict[str, Any]
    figure: tuple[str, bytes] | None = None

    @property
    def title(self) -> str:
        """The study, and what it looked at."""
        dataset = self.record.get("dataset")
        return f"Study {self.record['study']}" + (f": {dataset}" if dataset else "")


def study(shown: StudyRecord) -> Safe:
    """The finding and the figure; a figure is a picture here, in which no script runs."""
    record = shown.record
    finding = [str(line) for line in record.get("finding") or []]
    told = {"Paper": record.get("paper"), "Reference domain": record.get("reference"), "File": shown.label}
    parts: list[Content] = [
        tag("p", " · ".join(f"{name}: {value}" for name, value in told.items() if value), class_="lead"),
        *[tag("p", line, class_="finding") for line in finding],
    ]
    if shown.figure is None:
        parts.append(tag("p", "There is no figure (PREFIX.svg or PREFIX.png) beside this record.", class_="note"))
    else:
        alt = f"Figure of the study {record['study']}. {' '.join(finding)}".strip()
        parts.append(tag("figure", tag("img", src=data_uri(*shown.figure), alt=alt), class_="study"))
    return join(*parts)
