"""A wheel carries prompts/ and eval/, and the resolver finds them there and in a checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import clip_tca
from clip_tca.core.resources import FOLDERS, resource
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", target, ROOT]
    subprocess.run(command, check=True)
    return next(target.glob("clip_tca-*.whl"))


def test_the_wheel_holds_every_file_that_people_may_edit(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in FOLDERS:
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert files
        assert {f"clip_tca/_resources/{p.relative_to(ROOT).as_posix()}" for p in files} <= inside
    assert {"clip_tca/py.typed", "clip_tca/report/page.css", "clip_tca/report/page.js"} <= inside


def test_an_installed_wheel_reads_its_own_prompts(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from clip_tca.core.resources import resource as r; p = r('prompts/watt.txt'); print(p); print(p.read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": "."}
    )
    path, text = done.stdout.split("\n", 1)
    assert path.startswith(str(tmp_path.resolve()))
    assert text.strip() == (ROOT / "prompts" / "watt.txt").read_text().strip()


def test_watt_has_its_eight_templates_and_each_takes_a_name():
    templates = resource("prompts/watt.txt").read_text().splitlines()
    assert len(templates) == 8
    assert all(template.count("{}") == 1 for template in templates)
    assert resource("prompts/single.txt").read_text().splitlines() == ["a photo of a {}"]


@pytest.mark.parametrize("name", ["prompts/none.txt", "README.md", "prompts/../README.md", ""])
def test_anything_else_is_refused(name):
    with pytest.raises(FileNotFoundError):
        resource(name)


def test_public_names():
    adapters = {"LinearTCA", "MLPTCA", "ConditionalTCA", "ZeroShotClassifier"}
    assert set(clip_tca.__all__) == {*adapters, "evaluate", "__version__"}
    assert set(clip_tca.__all__) == set(dir(clip_tca))
    with pytest.raises(AttributeError, match="Nothing"):
        _ = clip_tca.Nothing
