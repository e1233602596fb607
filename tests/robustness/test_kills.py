"""A short run of ``python -m tests.robustness.kills``: killed before each file operation, and by chance."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.robustness import killing

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forks")


@fork
def test_runs_that_are_killed_and_started_again_give_the_undisturbed_result():
    command = [sys.executable, "-m", "tests.robustness.kills", "--kills", "40", "--only", "adapt .npz"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1].split()
    counts = dict(zip(total[1::2], total[2::2], strict=False))
    assert int(counts["kills"]) == int(counts["identical"]) > 10
    assert int(counts["struck"]) > 10


@fork
@pytest.mark.parametrize("name", ["adapt .parquet", "adapt, a loaded state"])
def test_a_run_over_shards_that_is_killed_goes_on_to_the_undisturbed_result(name):
    command = [sys.executable, "-m", "tests.robustness.kills", "--kills", "100", "--no-steps", "--only", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1].split()
    counts = dict(zip(total[1::2], total[2::2], strict=False))
    assert int(counts["kills"]) == int(counts["identical"]) == 6


@fork
def test_a_run_that_hangs_is_ended_though_one_of_its_processes_has_ended_itself(monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(killing, "PATIENCE", 0.05)
    monkeypatch.setattr(killing, "family", lambda pid: [gone.pid, pid])
    try:
        assert killing.finish(hanging.pid) == killing.HANGS
    finally:
        hanging.kill()
        hanging.wait()
