"""The targets of ``python -m tests.robustness.fuzz``: every kind of input that clip-tca takes."""

from __future__ import annotations

from tests.robustness.fuzzing.binaries import Images, Shards, Weights
from tests.robustness.fuzzing.commands import Commands
from tests.robustness.fuzzing.documents import Prompts, Recipes, Records
from tests.robustness.fuzzing.embeddings import SUFFIXES, Files, Labels, Pipe, Texts
from tests.robustness.fuzzing.picture_sets import Corruptions, Heads, Pictures
from tests.robustness.fuzzing.shelves import Addresses, ClipRetrieval, Unfinished
from tests.robustness.fuzzing.states import Sets, States
from tests.robustness.fuzzing.target import Target

TARGETS: list[Target] = [
    Images(), *map(Files, SUFFIXES), Pipe(), Texts(), Labels(), Sets(), Prompts(), Recipes(), Records(), States(),
    Shards(), Weights(), Commands(), ClipRetrieval(), Unfinished(), Addresses(),
    Corruptions(), Pictures(), Heads(),
]  # fmt: skip
