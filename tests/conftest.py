"""Shared fixtures: a small shifted set, and real PACS embeddings where they lie beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clip_tca import ZeroShotClassifier
from clip_tca.data.embeddings import EmbeddingSet, load_embeddings, synthetic
from tests.object_stores import memory, place, s3, s3_server  # noqa: F401 (fixtures)

torch.set_num_threads(1)  # the matrices here are small: more threads only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so in the processes that tests start

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""A job in the background of a shell ignores Ctrl-C, and so would everything that tests start there."""

PACS = DATA / "embeddings" / "pacs.safetensors"
MINI = DATA / "mini"
RESNET18 = DATA / "resnet18"


class Shifted:
    """One shifted domain: classifier g, embeddings z and labels y."""

    def __init__(self, classes: int = 4, dim: int = 24, images: int = 60, domain: str = "shifted") -> None:
        made = synthetic(0, classes, dim, images)
        self.g = ZeroShotClassifier(made.text, made.scale)
        self.z, self.y = made.domains[domain]


@pytest.fixture(scope="session", autouse=True)
def store(tmp_path_factory) -> Path:
    """A store of the tests' own: what one has encoded another finds, and nobody's cache is touched."""
    os.environ["CLIP_TCA_CACHE"] = str(tmp_path_factory.mktemp("store"))
    return Path(os.environ["CLIP_TCA_CACHE"])


@pytest.fixture(scope="session")
def shifted() -> Shifted:
    return Shifted()


@pytest.fixture(scope="session")
def pacs() -> EmbeddingSet:
    if not PACS.is_file():
        pytest.skip("the real PACS embeddings are not beside the project")
    return load_embeddings(PACS)


@pytest.fixture(scope="session")
def resnet18() -> dict[str, EmbeddingSet]:
    """Features of a fine-tuned ResNet-18 with its head, by the domain that it has not seen."""
    domains = ("art_painting", "cartoon", "photo", "sketch")
    files = {domain: RESNET18 / f"pacs_resnet18_{domain}.safetensors" for domain in domains}
    if not all(file.is_file() for file in files.values()):
        pytest.skip("the features of ResNet-18 are not beside the project")
    return {domain: load_embeddings(file) for domain, file in files.items()}


@pytest.fixture(scope="session")
def mini() -> Path:
    if not MINI.is_dir():
        pytest.skip("the real pictures are not beside the project")
    return MINI


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def stored(tmp_path_factory) -> Path:
    """A file of stored embeddings as others make them: half precision, several templates, no class names."""
    made = synthetic(0, classes=7, dim=24, images=40)
    tensors = {"text.watt": made.text.repeat(2, 1, 1)}
    for name, (z, y) in made.domains.items():
        tensors |= {f"{name}.embeddings": z.half(), f"{name}.labels": y}
    path = tmp_path_factory.mktemp("stored") / "made.safetensors"
    save_file(tensors, path, metadata={"scale": str(made.scale)})
    return path
