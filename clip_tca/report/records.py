"""What a page is made of: files that ``clip-tca eval`` and ``clip-tca study`` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.record import checked, labelled, parse
from clip_tca.results.schema import EvaluationRecord, ResultRow
from clip_tca.results.table import summary

FIGURES = {".svg": "image/svg+xml", ".png": "image/png"}
"""Figures that ``clip-tca study --output PREFIX`` writes beside PREFIX.json, the best first."""


@dataclass(frozen=True)
class Run:
    """A record of ``clip-tca eval`` with the name that the page gives it."""

    label: str
    record: EvaluationRecord

    @cached_property
    def domains(self) -> list[str]:
        """Their names."""
        return list(self.record["data"]["domains"])

    @cached_property
    def classes(self) -> list[str]:
        """Their names, in the order of the labels."""
        return self.record["data"]["classes"]

    @cached_property
    def oracles(self) -> set[str]:
        """Methods that use true labels."""
        return {method["name"] for method in self.record["methods"] if method["uses_labels"]}

    @cached_property
    def methods(self) -> list[str]:
        """All but zero-shot: the best of those that use no labels, then the others in the order of the record."""
        listed = [method for method in self.summary if method != ZERO_SHOT]
        best = max((method for method in listed if method not in self.oracles), key=self.accuracy, default=None)
        return sorted(listed, key=lambda method: method != best)

    def name(self, method: str) -> str:
        """A method's name, marked if it is an oracle."""
        return f"{method} (oracle)" if method in self.oracles else method

    @cached_property
    def summary(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Accuracy by method and domain: mean and standard deviation over seeds."""
        return summary(self.record)

    def accuracy(self, method: str, domain: str | None = None) -> float:
        """Mean over seeds on a domain; without one, the unweighted mean over domains."""
        values = self.summary[method]
        return values[domain][0] if domain is not None else fmean(mean for mean, _ in values.values())

    def gain(self, method: str, domain: str | None = None) -> float:
        """Points over zero-shot."""
        return self.accuracy(method, domain) - self.accuracy(ZERO_SHOT, domain)

    @property
    def no_comparison(self) -> str:
        """Why nothing can be compared with zero-shot; empty if it can."""
        if ZERO_SHOT not in self.summary:
            return "the record has no zero-shot rows to compare with"
        return "" if self.methods else "zero-shot is the only method"

    def rows(self, method: str) -> list[ResultRow]:
        """Those of a method."""
        return [row for row in self.record["rows"] if row["method"] == method]

    def class_accuracy(self, method: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Accuracy (%) and images over all seeds, ``(domains + 1, classes)``, NaN where there are no images.

        The last row takes all domains together.
        """
        correct, images = np.zeros((2, len(self.domains) + 1, len(self.classes)))
        for row in self.rows(method):
            scores = [row["per_class"][name] for name in self.classes]
            for place in (self.domains.index(row["domain"]), -1):
                correct[place] += [score["correct"] for score in scores]
                images[place] += [score["images"] for score in scores]
        return np.divide(100 * correct, images, out=np.full_like(images, np.nan), where=images > 0), images

    def confusion(self, method: str, domain: str) -> NDArray[np.int64]:
        """Counts over all seeds, rows true and columns predicted."""
        matrices = [row["confusion"] for row in self.rows(method) if row["domain"] == domain]
        total: NDArray[np.int64] = np.sum(matrices, axis=0)
        return total


@dataclass(frozen=True)
class Study:
    """A record of ``clip-tca study``, labelled by its file; kind and content of the figure beside it, if any."""

    label: str
    record: dict[str, Any]
    figure: tuple[str, bytes] | None = None


@dataclass
class Sources:
    """Records of evaluations and of studies, and name and content of their files, for download."""

    runs: list[Run] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def read(paths: Iterable[str | Path]) -> Sources:
    """Read files of either kind, or folders of them; ValueError names the file and the field that is wrong."""
    sources = Sources()
    for path, content in parsed(paths):
        sources.files.append((path.name, path.read_bytes()))
        if isinstance(content, dict) and isinstance(content.get("study"), str):
            figures = [(kind, path.with_suffix(suffix)) for suffix, kind in FIGURES.items()]
            figure = next(((kind, file.read_bytes()) for kind, file in figures if file.is_file()), None)
            sources.studies.append(Study(path.stem, content, figure))
        else:
            taken = [run.label for run in sources.runs]
            sources.runs += [Run(*item) for item in labelled(checked(content, path), path, taken).items()]
    return sources


def parsed(paths: Iterable[str | Path]) -> Iterator[tuple[Path, Any]]:
    """Files with their content, each once; a folder stands for its JSON files, in the order of their names."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: no .json file in this folder; clip-tca eval --output FILE.json writes one")
        found |= dict.fromkeys(inside)
    return ((path, parse(path)) for path in found)
