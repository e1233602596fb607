"""The paper's figures and analysis tables, on any data set, from stored embeddings.

A study *measures* a dict of JSON values and *draws* from it alone (contract: :class:`clip_tca.studies.frame.Study`).
Only the names are here. The classes are imported when they are used, so the list does not import torch.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from clip_tca.core.checks import not_among

if TYPE_CHECKING:
    from clip_tca.studies.frame import Study

STUDIES = {
    "corruption": "distances:Corruption",
    "certainty": "distances:Certainty",
    "alignment": "distances:Alignment",
    "k": "sizes:K",
    "test-size": "sizes:TestSize",
    "batch-size": "sizes:BatchSize",
    "upper-bound": "source:UpperBound",
    "forgetting": "source:Forgetting",
    "toy": "toy:Toy",
}
"""Module and class of each study, by the name that ``clip-tca study`` takes."""


def study_class(name: str) -> type[Study]:
    """The class of a study."""
    if name not in STUDIES:
        raise ValueError(f"study: {not_among(name, list(STUDIES))}")
    study: type[Study] = resolve_name(f"clip_tca.studies.{STUDIES[name]}")
    return study
