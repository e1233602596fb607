"""The measures that a table can show, by the names that ``--metric`` takes and the record has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clip_tca.core.checks import choices


@dataclass(frozen=True)
class Metric:
    """A measure: title, digits to print, whether more is better, and whether it is of a method, not of its domains."""

    title: str
    digits: int = 2
    higher: bool = True
    overall: bool = False


METRICS = {
    "accuracy": Metric("accuracy, %"),
    "macro_accuracy": Metric("macro accuracy, %"),
    "macro_f1": Metric("macro F1, %"),
    "worst_class": Metric("worst class, %"),
    "nll": Metric("NLL", 4, higher=False),
    "ece": Metric("ECE, %", higher=False),
    "adaptive_ece": Metric("adaptive ECE, %", higher=False),
    "unknown_auroc": Metric("AUROC of unknown classes, %"),
    "seconds": Metric("ms/image", 3, higher=False, overall=True),
    "memory": Metric("KB/image", 1, higher=False, overall=True),
    "peak_memory": Metric("peak memory, MB", 0, higher=False, overall=True),
}


def check_metrics(names: str | Sequence[str]) -> list[str]:
    """Names of measures without duplicates; ``macro-f1`` is ``macro_f1``. ValueError names one that is unknown."""
    listed = [names] if isinstance(names, str) else names
    return choices("metric", [name.strip().replace("-", "_") for name in listed], tuple(METRICS)) if listed else []
