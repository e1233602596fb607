"""The sources of a report: files that ``clip-tca eval`` and ``clip-tca study`` wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clip_tca.report.run import Run
from clip_tca.report.studies_panel import KINDS, StudyRecord
from clip_tca.results.record import parse, read_all


@dataclass
class Sources:
    """Records of evaluations and of studies, and name and content of their files, for download."""

    runs: list[Run] = field(default_factory=list)
    studies: list[StudyRecord] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def read(paths: Iterable[str | Path]) -> Sources:
    """Read files of either kind; ValueError names the file and the field that is wrong."""
    sources, evaluations = Sources(), []
    for path in dict.fromkeys(map(Path, paths)):
        content = parse(path)
        sources.files.append((path.name, path.read_bytes()))
        if isinstance(content, dict) and isinstance(content.get("study"), str):
            sources.studies.append(StudyRecord(path.stem, content, _figure(path)))
        else:
            evaluations.append(path)
    sources.runs = [Run(label, record) for label, record in read_all(evaluations).items()]
    return sources


def _figure(record: Path) -> tuple[str, bytes] | None:
    """The figure beside a study's record."""
    for suffix, kind in KINDS.items():
        if (path := record.with_suffix(suffix)).is_file():
            return kind, path.read_bytes()
    return None
