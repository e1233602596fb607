"""The paper's figures and analysis tables, on any data set, from stored embeddings.

A study *measures* a tidy table and is *drawn* from it alone (contract: :class:`clip_tca.studies.frame.Study`). Only the
names are here, so that listing them imports no torch.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from clip_tca.core.checks import not_among

if TYPE_CHECKING:
    from clip_tca.studies.frame import Study

STUDIES = {
    "corruption": "paper:Corruption",
    "certainty": "paper:Certainty",
    "alignment": "paper:Alignment",
    "k": "paper:K",
    "test-size": "paper:TestSize",
    "batch-size": "paper:BatchSize",
    "upper-bound": "paper:UpperBound",
    "forgetting": "paper:Forgetting",
    "toy": "toy:Toy",
}
"""Module and class of each study, by the name that ``clip-tca study`` takes."""


def study_class(name: str) -> type[Study]:
    """The class of a study."""
    if name not in STUDIES:
        raise ValueError(f"study: {not_among(name, list(STUDIES))}")
    study: type[Study] = resolve_name(f"clip_tca.studies.{STUDIES[name]}")
    return study
