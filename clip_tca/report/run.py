"""One record, as the sections ask for it: names as they are shown, means over seeds, sums over seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from clip_tca.report.markup import Safe
from clip_tca.results.table import summary

BEFORE = "zero-shot"
NO_BEFORE = "the record has no zero-shot rows to compare with"


@dataclass(frozen=True)
class Section:
    """A part of the page: its title and content, or why it is left out."""

    title: str
    body: Safe | None
    why: str = ""


@dataclass(frozen=True)
class Score:
    """Images of a class in a domain, over all seeds, and how many of them were right."""

    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.images


@dataclass(frozen=True)
class Run:
    """A record of ``clip-tca eval`` with the name that the page gives it."""

    label: str
    record: dict[str, Any]

    @property
    def domains(self) -> list[str]:
        """Their names."""
        return list(self.record["data"]["domains"])

    @property
    def classes(self) -> list[str]:
        """Their names, in the order of the labels."""
        return list(self.record["data"]["classes"])

    @cached_property
    def oracles(self) -> set[str]:
        """Methods that use true labels."""
        found = {method["name"] for method in self.record["methods"] if method["uses_labels"]}
        return found | {row["method"] for row in self.record["rows"] if row.get("uses_labels")}

    def shown(self, method: str) -> str:
        """A method's name, with the mark of an oracle."""
        return f"{method} (oracle)" if method in self.oracles else method

    @cached_property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Mean over seeds, by method and domain."""
        return {m: {d: mean for d, (mean, _) in found.items()} for m, found in summary(self.record).items()}

    @property
    def methods(self) -> list[str]:
        """All but zero-shot."""
        return [method for method in self.accuracy if method != BEFORE]

    @property
    def has_before(self) -> bool:
        """Whether zero-shot was evaluated on every domain."""
        return set(self.accuracy.get(BEFORE, ())) == set(self.domains)

    def average(self, method: str) -> float:
        """Plain mean over domains."""
        return fmean(self.accuracy[method].values())

    def scores(self, method: str, domain: str) -> dict[str, Score]:
        """By class, those without images left out."""
        total: dict[str, Score] = {}
        for row in self._rows(method, domain):
            for name, found in row["per_class"].items():
                before = total.get(name, Score(0, 0))
                total[name] = Score(before.correct + found["correct"], before.images + found["images"])
        return {name: score for name, score in total.items() if score.images}

    def confusion(self, method: str, domain: str) -> list[list[int]] | None:
        """Counts over all seeds, rows true and columns predicted; None if the record is older than they are."""
        total: list[list[int]] | None = None
        for row in self._rows(method, domain):
            if (matrix := row.get("confusion")) is None:
                return None
            if total is None:
                total = [[0] * len(matrix) for _ in matrix]
            total = [[a + b for a, b in zip(*lines, strict=True)] for lines in zip(total, matrix, strict=True)]
        return total

    def _rows(self, method: str, domain: str) -> Iterator[dict[str, Any]]:
        return (row for row in self.record["rows"] if (row["method"], row["domain"]) == (method, domain))
