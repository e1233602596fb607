"""Studies: the paper's figures and analysis tables, on any data set, from stored embeddings. One file each.

A study *measures* (a JSON-able dict) and *draws* what it measured; nothing is drawn that is not in the record. They are
imported when they are asked for, so that the names alone cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clip_tca.studies.base import Study

NAMES = (
    "certainty",
    "alignment",
    "k",
    "test-size",
    "batch-size",
    "upper-bound",
    "forgetting",
    "efficiency",
    "toy",
    "map",
)
"""A study lives in the module of its name, with underscores."""


def study_class(name: str) -> type[Study]:
    """The class of a study: ``TestSize`` in ``clip_tca.studies.test_size`` for ``test-size``."""
    if name not in NAMES:
        raise ValueError(f"study: {name!r}; allowed are {', '.join(NAMES)}")
    words = name.split("-")
    found: type[Study] = getattr(
        import_module(f"clip_tca.studies.{'_'.join(words)}"), "".join(word.capitalize() for word in words)
    )
    return found
