"""The sources of a report: files that ``clip-tca eval`` and ``clip-tca study`` wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clip_tca.report.run import Run
from clip_tca.report.studies_panel import MEDIA_TYPES, StudyRecord
from clip_tca.results.record import parse, read_all


@dataclass
class Sources:
    """Records of evaluations and of studies, and name and content of their files, for download."""

    runs: list[Run] = field(default_factory=list)
    studies: list[StudyRecord] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def read(paths: Iterable[str | Path]) -> Sources:
    """Read files of either kind, or folders of them; ValueError names the file and the field that is wrong."""
    sources, evaluations = Sources(), []
    for path in files(paths):
        content = parse(path)
        sources.files.append((path.name, path.read_bytes()))
        if is_study(content):
            sources.studies.append(StudyRecord(path.stem, content, _figure(path)))
        else:
            evaluations.append(path)
    sources.runs = [Run(label, record) for label, record in read_all(evaluations).items()]
    return sources


def files(paths: Iterable[str | Path]) -> list[Path]:
    """The files, each once; a folder stands for its JSON files, in the order of their names."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: no .json file in this folder; clip-tca eval --output FILE.json writes one")
        found |= dict.fromkeys(inside)
    return list(found)


def is_study(content: object) -> bool:
    """Whether the content of a file is a record of ``clip-tca study``."""
    return isinstance(content, dict) and isinstance(content.get("study"), str)


def _figure(record: Path) -> tuple[str, bytes] | None:
    """The figure beside a study's record."""
    for suffix, kind in MEDIA_TYPES.items():
        if (path := record.with_suffix(suffix)).is_file():
            return kind, path.read_bytes()
    return None
