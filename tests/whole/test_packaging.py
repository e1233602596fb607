"""The wheel carries what the program reads and nothing else, and the resolver finds it there and in a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import clip_tca
from tests.conftest import ROOT

RESOURCES = ("prompts/**/*.txt", "eval/benchmarks.json", "eval/recipes/*.toml", "eval/reported/*.json",
             "eval/demo/model.safetensors", "eval/demo/open_clip_config.json", "eval/demo/pictures.parquet",
             "eval/demo/LICENCES.md")  # fmt: skip
CODE = (".py", ".md", ".css", ".html", ".js", ".typed")


def files(*patterns: str) -> set[str]:
    """Files of the repository, without what Python compiles."""
    paths = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source distribution."""
    target = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", target, "-t", "wheel", "-t", "sdist"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return target


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return next(built.glob("clip_tca-*.whl"))


def test_the_wheel_holds_the_package_and_its_resources_and_nothing_else(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code, resources = files("clip_tca/**/*"), files(*RESOURCES)
    assert {Path(name).suffix for name in code} == set(CODE)
    assert len(resources) >= 10
    assert inside == code | {f"clip_tca/_resources/{name}" for name in resources}


def test_the_source_distribution_holds_what_is_needed_and_nothing_compiled(built):
    with tarfile.open(next(built.glob("clip_tca-*.tar.gz"))) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames()}
    assert files("clip_tca/**/*", *RESOURCES, "tests/**/*.py", "README.md", "LICENSE") <= inside
    assert not [name for name in inside if "__pycache__" in name or name.endswith(".pyc")]


def test_an_installed_wheel_evaluates_pictures_with_the_bundled_model(wheel, tmp_path):
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)  # noqa: S202 (our own)
    assert all((installed / "clip_tca" / "_resources" / name).is_file() for name in files(*RESOURCES))
    for number, name in enumerate(("dog", "house")):
        (tmp_path / "own" / name).mkdir(parents=True)
        Image.new("RGB", (64, 64), (200 * number, 90, 9)).save(tmp_path / "own" / name / "0.png")
    words = ["eval", "--dataset", "folder", "--data-dir", tmp_path / "own", "--model", "demo", "--method", "zero-shot"]
    done = subprocess.run(
        [sys.executable, "-m", "clip_tca", *words, "--workers", "0"],
        capture_output=True, text=True, check=False, cwd=installed, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "zero-shot" in done.stdout


def test_public_names():
    adapters = {"LinearTCA", "MLPTCA", "ConditionalTCA"}
    functions = {"adapt_shard", "encode", "evaluate", "label", "label_free_score", "load_embeddings", "render"}
    functions |= {"estimate_change", "from_pretrained", "register", "sample_changed"}
    types = {"ZeroShotClassifier", "LinearClassifier", "Method", "Task"}
    types |= {"ClipTcaError", "CorruptFileError", "OfflineError"}
    assert set(clip_tca.__all__) == {*adapters, *functions, *types, "__version__"}
    assert set(clip_tca.__all__) == set(dir(clip_tca))
    assert all(getattr(clip_tca, name) is not None for name in clip_tca.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = clip_tca.Nothing
