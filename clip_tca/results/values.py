"""Values of a measure in a record: by domain and run, averaged over domains, and in the worst tenth of the runs."""

from __future__ import annotations

from statistics import fmean

from clip_tca.results.metrics import METRICS
from clip_tca.results.schema import EvaluationRecord


def measured(record: EvaluationRecord, method: str, metric: str) -> dict[tuple[str, int], float]:
    """A measure of a method by domain and seed, where it has a value."""
    values = {}
    for row in record["rows"]:
        if row["method"] == method:
            value = row["accuracy"] if metric == "accuracy" else row.get("metrics", {}).get(metric)
            if value is not None:
                values[row["domain"], row["seed"]] = value
    return values


def averages(record: EvaluationRecord, method: str, metric: str) -> list[float]:
    """A measure of a method in each run, the mean over domains; of time and memory one value for all runs."""
    if METRICS[metric].overall:
        return _cost(record, method, metric)
    by_seed: dict[int, list[float]] = {}
    for (_, seed), value in measured(record, method, metric).items():
        by_seed.setdefault(seed, []).append(value)
    return [fmean(values) for values in by_seed.values()]


def _cost(record: EvaluationRecord, method: str, metric: str) -> list[float]:
    """Milliseconds or KB for an image, or the peak of extra memory in MB, if it was measured."""
    cost = record["cost"]["methods"].get(method)
    if cost is None:
        return []
    if metric == "memory":
        each = cost.get("memory_bytes_per_image")
        return [] if each is None else [each / 1e3]
    if metric == "peak_memory":
        peak = cost.get("memory_bytes", cost["base_memory_bytes"])
        return [] if peak is None else [peak / 1e6]
    seconds = cost["adapting_seconds"] + cost["predicting_seconds"] + cost["base_seconds"]
    return [1000 * seconds / cost["images"]]


def worst_tenth(values: list[float], higher: bool = True) -> float:
    """Mean of the worst tenth of some runs, at least one of them; ``higher`` values are better, or lower ones."""
    return fmean(sorted(values, reverse=not higher)[: max(1, len(values) // 10)])
