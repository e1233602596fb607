"""Fits of parts of a data set, saved apart and merged: how tasks that know nothing of each other share one fit.

A saved part holds what was observed, segment by segment, and g; so the merged fit is that of one process to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.registry import adapter_classes
from clip_tca.adapters.state import TASK, read_state, save_state
from clip_tca.classifier import LinearClassifier
from clip_tca.core.remote import Location


class SavedClassifier(LinearClassifier):
    """g out of a saved part: its fingerprint is that of the classifier it was."""

    def __init__(self, weight: Tensor, bias: Tensor, classes: Sequence[str] | None, fingerprint: str) -> None:
        """Take what was saved."""
        super().__init__(weight, bias, classes=classes)
        self._fingerprint = fingerprint

    def fingerprint(self) -> str:
        """As it was."""
        return self._fingerprint


def save_partial(adapter: Adapter, path: Location, task: tuple[int, int], source: str) -> None:
    """Save what task ``(i, n)`` has observed of the data set with the fingerprint ``source``."""
    state = adapter.partial_state()
    about = {TASK: list(task), "source": source, "classes": adapter.classifier.classes}
    save_state(path, replace(state, counters={**state.counters, **about}))


def merge_partials(paths: Sequence[Location]) -> Adapter:
    """The adapter that has seen what all tasks have seen, solved.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is no part of a fit, a task is missing, or the parts do not belong together.
    """
    parts: dict[int, Adapter] = {}
    first: tuple[object, ...] = ()
    for path in paths:
        number, count, source, adapter = _load(path)
        if first and (count, source) != first:
            raise ValueError(f"{path}: of other embeddings, or one of {count} tasks; merge the parts of one fit")
        if number in parts:
            raise ValueError(f"{path}: task {number} again; give each task once")
        first, parts[number] = (count, source), adapter
    if missing := [number for number in range(1, count + 1) if number not in parts]:
        raise ValueError(f"merge: task {missing[0]} of {count} is missing; give what all tasks saved")
    merged = reduce(lambda one, other: one.merge(other), [parts[number] for number in sorted(parts)])
    if merged.n_seen_ < 2:
        raise ValueError(f"embeddings: {merged.n_seen_} rows that can be used; at least 2 are needed")
    merged.solve()
    merged.warn()
    return merged


def _load(path: Location) -> tuple[int, int, str, Adapter]:
    saved = read_state(path)
    classes = adapter_classes()
    if TASK not in saved.counters or saved.kind not in classes:
        raise ValueError(f"{path}: no part of a fit; merge takes what adapt --fit-only --task I/N saved")
    try:
        number, count = map(int, saved.counters[TASK])
        g = saved.part("classifier")
        classifier = SavedClassifier(g["weight"], g["bias"], saved.counters["classes"], saved.classifier)
        source = str(saved.counters["source"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: a part of the saved state is missing or wrong ({error}); save it again") from None
    return number, count, source, classes[saved.kind].load(path, classifier)
