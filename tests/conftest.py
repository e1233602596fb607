"""Shared fixtures: a small shifted set, and real PACS embeddings where they lie beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clip_tca import ZeroShotClassifier
from clip_tca.datasets.embedding_set import EmbeddingSet, load
from clip_tca.datasets.synthetic import synthetic

torch.set_num_threads(1)  # the matrices here are small: more threads only wait for each other

ROOT = Path(__file__).resolve().parent.parent
PACS = ROOT.parent / "shared" / "data" / "embeddings" / "pacs.safetensors"


class Shifted:
    """One shifted domain: classifier g, embeddings z and labels y."""

    def __init__(self, classes: int = 4, dim: int = 24, images: int = 60, domain: str = "shifted") -> None:
        made = synthetic(0, classes, dim, images)
        self.g = ZeroShotClassifier(made.text, made.scale)
        self.z, self.y = made.domains[domain]


@pytest.fixture(scope="session")
def shifted() -> Shifted:
    return Shifted()


@pytest.fixture(scope="session")
def pacs() -> EmbeddingSet:
    if not PACS.is_file():
        pytest.skip("the real PACS embeddings are not beside the project")
    return load(PACS)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
