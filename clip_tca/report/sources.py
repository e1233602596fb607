"""What a report is made of: files that ``clip-tca eval`` and ``clip-tca study`` wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clip_tca.report.run import Run
from clip_tca.report.studies_panel import KINDS, StudyRecord
from clip_tca.results.record import parse, read_all


@dataclass
class Sources:
    """Records of evaluations and of studies, and the files they came from, by name, to be downloaded."""

    runs: list[Run] = field(default_factory=list)
    studies: list[StudyRecord] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def read(paths: Iterable[str | Path]) -> Sources:
    """Read files of either kind.

    Raises:
        FileNotFoundError: If one is not there.
        ValueError: If one is not JSON, or not a whole record; the message names it.
    """
    found, evaluations = Sources(), []
    for path in dict.fromkeys(map(Path, paths)):
        content = parse(path)
        found.files.append((path.name, path.read_bytes()))
        if isinstance(content, dict) and isinstance(content.get("study"), str):
            found.studies.append(StudyRecord(path.stem, content, _figure(path)))
        else:
            evaluations.append(path)
    found.runs = [Run(label, record) for label, record in read_all(evaluations).items()]
    return found


def _figure(record: Path) -> tuple[str, bytes] | None:
    """The figure beside a study's record."""
    for suffix, kind in KINDS.items():
        if (path := record.with_suffix(suffix)).is_file():
            return kind, path.read_bytes()
    return None
