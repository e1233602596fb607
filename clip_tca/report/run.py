"""One record as the sections of the page need it: names of methods, means and sums over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.markup import Safe
from clip_tca.results.schema import EvaluationRecord, ResultRow
from clip_tca.results.table import summary

NO_ZERO_SHOT = "the record has no zero-shot rows to compare with"


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

    @classmethod
    def total(cls, scores: Iterable[Score]) -> Score:
        """Of all together."""
        return cls(*map(sum, zip(*[(score.correct, score.images) for score in scores], strict=True)))


@dataclass(frozen=True)
class Run:
    """A record of ``clip-tca eval`` with the name that the page gives it."""

    label: str
    record: EvaluationRecord

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
        marked = {method["name"] for method in self.record["methods"] if method["uses_labels"]}
        return marked | {row["method"] for row in self.record["rows"] if row["uses_labels"]}

    def method_label(self, method: str) -> str:
        """A method's name, marked if it is an oracle."""
        return f"{method} (oracle)" if method in self.oracles else method

    @cached_property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Mean over seeds, by method and domain."""
        return {m: {d: mean for d, (mean, _) in values.items()} for m, values in summary(self.record).items()}

    @property
    def methods(self) -> list[str]:
        """All but zero-shot."""
        return [method for method in self.accuracy if method != ZERO_SHOT]

    @property
    def has_zero_shot(self) -> bool:
        """Whether zero-shot was evaluated on every domain."""
        return set(self.accuracy.get(ZERO_SHOT, ())) == set(self.domains)

    def average(self, method: str) -> float:
        """Unweighted mean over domains."""
        return fmean(self.accuracy[method].values())

    def scores(self, method: str, domain: str) -> dict[str, Score]:
        """By class, those without images left out."""
        total: dict[str, Score] = {}
        for row in self._rows(method, domain):
            for name, score in row["per_class"].items():
                before = total.get(name, Score(0, 0))
                total[name] = Score(before.correct + score["correct"], before.images + score["images"])
        return {name: score for name, score in total.items() if score.images}

    def confusion(self, method: str, domain: str) -> list[list[int]] | None:
        """Counts over all seeds, rows true and columns predicted; None if the record is too old to have them."""
        matrices = []
        for row in self._rows(method, domain):
            if (matrix := row.get("confusion")) is None:
                return None
            matrices.append(matrix)
        if len(matrices) == 1:
            return matrices[0]  # of many classes, a sum would take longer than all else
        return [[sum(cells) for cells in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)] or None

    def _rows(self, method: str, domain: str) -> Iterator[ResultRow]:
        return (row for row in self.record["rows"] if (row["method"], row["domain"]) == (method, domain))
