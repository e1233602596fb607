"""Studies: the paper's figures and analysis tables, on any data set, from stored embeddings. One file each.

A study *measures* (a JSON-able dict) and *draws* what it measured; nothing is drawn that is not in the record. They are
imported when they are asked for, so that the names alone cost nothing.
"""

from __future__ import annotations

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
