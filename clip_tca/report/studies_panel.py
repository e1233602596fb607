"""Studies: the finding of each, and its figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clip_tca.report.markup import Content, Safe, data_uri, join, tag
from clip_tca.report.setup_panel import definitions

MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
"""Figures that ``clip-tca study --output PREFIX`` writes beside PREFIX.json, the best first."""


@dataclass(frozen=True)
class StudyRecord:
    """A record of ``clip-tca study``, labelled by its file; kind and content of the figure beside it, if any."""

    label: str
    record: dict[str, Any]
    figure: tuple[str, bytes] | None = None

    @property
    def title(self) -> str:
        """What was studied, and on which data."""
        dataset = self.record.get("dataset")
        name = self.record.get("title") or f"Study {self.record['study']}"
        return f"{name} ({dataset})" if dataset else str(name)


def study(source: StudyRecord) -> Safe:
    """The finding and the figure; the figure is an ``img``, in which no script runs."""
    record = source.record
    lines = record.get("finding")
    finding = [str(line) for line in lines] if isinstance(lines, list) else []
    parts: list[Content] = [tag("p", line, class_="finding") for line in finding]
    if source.figure is None:
        parts.append(tag("p", "There is no figure (PREFIX.svg or PREFIX.png) beside this record.", class_="note"))
    else:
        alt = f"Figure of the study {record['study']}. {' '.join(finding)}".strip()
        parts.append(tag("figure", tag("img", src=data_uri(*source.figure), alt=alt), class_="study"))
    names = ("study", "paper", "dataset", "reference", "options", "commit")
    fields, model = {name: record.get(name) for name in names}, record.get("model")
    model_name = str(model.get("model", "")) if isinstance(model, dict) else ""
    return join(*parts, definitions({**fields, "model": model_name, "file": source.label}))
