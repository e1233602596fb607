"""The scripts behind the pages in eval/ run on any stored embeddings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clip_tca.datasets.embedding_set import load
from clip_tca.datasets.synthetic import synthetic
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    made = synthetic(0, classes=7, dim=24, images=40)
    tensors = {"text.watt": made.text.repeat(2, 1, 1)}
    for name, (z, y) in made.domains.items():
        tensors |= {f"{name}.embeddings": z.half(), f"{name}.labels": y}
    path = tmp_path_factory.mktemp("stored") / "made.safetensors"
    save_file(tensors, path, metadata={"scale": str(made.scale)})
    return path


def test_stored_embeddings_are_read_back(stored):
    data = load(stored)
    assert data.scale == 30.0
    assert data.text.shape == (2, 7, 24)
    assert {name: tuple(z.shape) for name, (z, _) in data.domains.items()}["clean"] == (280, 24)
    assert data.domains["clean"][1].dtype == torch.int64
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(stored.parent / "none.safetensors")


def test_what_is_saved_can_be_loaded_without_a_word(tmp_path):
    made = synthetic(0, classes=3, dim=8, images=10)
    for name in ("text.single", "text.watt", "text.mine"):
        made.save(tmp_path / "made.safetensors", name)
        assert torch.equal(load(tmp_path / "made.safetensors").text, made.text)


def test_other_files_are_refused_in_one_line(stored, tmp_path):
    (tmp_path / "text.safetensors").write_text("no tensors here")
    with pytest.raises(ValueError, match="not stored embeddings"):
        load(tmp_path / "text.safetensors")
    save_file({"text.watt": torch.eye(3)}, tmp_path / "no_scale.safetensors")
    with pytest.raises(ValueError, match="and a scale"):
        load(tmp_path / "no_scale.safetensors")
    with pytest.raises(ValueError, match=r"no text\.single, but text\.watt; choose one of those by --prompts"):
        load(stored, text="text.single")


def test_batch_size_writes_its_page(stored, tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, ROOT / "eval" / "batch_size.py", stored, "--output", page]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "TCA | " in line]
    assert len(rows) == 2 * 3
    assert all(0 <= float(cell.strip(" |")) <= 100 for row in rows for cell in row[2:])


def test_defaults_draws_every_kind_of_task(stored, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "eval")
    import defaults

    groups = {}
    for group, g, z, y in defaults.tasks(str(stored)):
        groups.setdefault(group, []).append(len(z))
        assert len(z) == len(y)
        assert int(y.max()) < g.n_classes
    assert set(groups) == {
        *("clean", "shifted", "skewed"),
        *("unequal", "3 of 7", "2 of 7", "1 of 7", "200 to 5", "few", "65 classes"),
    }
    gains = {"a": [1.0, 3.0], "b": [-1.0]}
    assert defaults.line("x", gains) == "| x | +2.0 (+1.0) | -1.0 | +0.50 | -1.0 |"


def test_the_readme_shows_the_divisors_as_printed():
    done = subprocess.run(
        [sys.executable, ROOT / "eval" / "reported" / "divisors.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "| pacs | 96.08 | 97.11 | 97.36 | +1.28 | +0.25 |" in done.stdout
