"""Short runs of ``python -m tests.robustness.kills``: killed before each file operation, and by chance."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forks")
@pytest.mark.parametrize(
    ("name", "options", "kills"),
    [
        ("adapt .npz", ["--kills", "40"], 10),
        ("adapt .parquet", ["--kills", "100", "--no-steps"], 6),
        ("adapt, a loaded state", ["--kills", "100", "--no-steps"], 6),
    ],
)
def test_runs_that_are_killed_and_started_again_give_the_undisturbed_result(name, options, kills):
    command = [sys.executable, "-m", "tests.robustness.kills", "--only", name, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1].split()
    counts = dict(zip(total[1::2], map(int, total[2::2]), strict=True))
    assert counts["kills"] == counts["identical"] >= kills
    assert counts["struck"] > 0 or "--no-steps" in options
