"""The scripts behind the pages in eval/ run on any stored embeddings."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


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
