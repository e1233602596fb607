"""The list of studies: the paper's figures and analysis tables, on any data set, from stored embeddings.

A study *measures* a dict of JSON values and *draws* from it alone. To add one, write its class (contract:
:mod:`clip_tca.studies.base`) in a file of its own and add its name to :data:`NAMES`. Studies are imported when they are
first used, so that the list of names costs no import of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clip_tca.studies.base import Study

NAMES = (
    "corruption",
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
    module = import_module(f"clip_tca.studies.{'_'.join(words)}")
    study: type[Study] = getattr(module, "".join(word.capitalize() for word in words))
    return study
