"""What ``benchmarks/fuzz.py`` aims at: every kind of input that clip-tca takes."""

from __future__ import annotations

from benchmarks.fuzzing.binaries import Images, Store, Weights
from benchmarks.fuzzing.commands import Commands
from benchmarks.fuzzing.documents import Prompts, Recipes, Records
from benchmarks.fuzzing.embeddings import Pipe, Shelf, Texts
from benchmarks.fuzzing.states import Sets, States
from benchmarks.fuzzing.target import Target

FORMATS = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather")

TARGETS: list[Target] = [
    Images(), *map(Shelf, FORMATS), Pipe(), Texts(), Sets(), Prompts(), Recipes(), Records(), States(), Store(),
    Weights(), Commands(),
]  # fmt: skip
