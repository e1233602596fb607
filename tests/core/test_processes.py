"""Several processes of one run (torchrun) give what one gives, and fail together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_tca.core.processes import OtherProcessError, Processes, current, joined
from tests.tiny_clip import MODEL


def torchrun(*words: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "clip_tca"]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, **options)


def single(*words: str, **options) -> None:
    subprocess.run([sys.executable, "-m", "clip_tca", *words], check=True, capture_output=True, timeout=300, **options)


def record(path: Path) -> dict:
    found = json.loads(path.read_text())
    del found["cost"]
    return found


def test_encoding_and_evaluating_are_shared(tmp_path):
    """600 pictures: three shards of the store for each of two domains."""
    generator = np.random.default_rng(0)
    for domain in ("a", "b"):
        for name in ("cat", "dog"):
            (tmp_path / "data" / domain / name).mkdir(parents=True)
            for number in range(150):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / domain / name / f"{number}.png")
    (tmp_path / "data" / "b" / "dog" / "7.png").write_bytes(b"\x89PNG broken")
    words = ["eval", "--dataset", "folder", "--data-dir", "data", "--model", MODEL, "--skip-bad", "--seeds", "2"]
    words += ["--method", "zero-shot", "--method", "linear-tca", "--workers", "0"]
    for name, run in {"one": single, "two": torchrun}.items():
        environment = {**os.environ, "CLIP_TCA_CACHE": str(tmp_path / f"store-{name}")}
        run(*words, "-o", f"{name}.json", cwd=tmp_path, env=environment)
    assert record(tmp_path / "one.json") == record(tmp_path / "two.json")
    shards = [
        sorted(path.name for path in (tmp_path / f"store-{name}").rglob("0*.safetensors")) for name in ("one", "two")
    ]
    assert shards[0] == shards[1]
    assert len(shards[0]) == 4


FAILING = """
import sys
from clip_tca.core.processes import joined

with joined() as processes:
    try:
        processes.together(lambda: 1 // processes.rank)  # the first divides by zero
    except Exception as error:
        sys.stdout.write("" if getattr(error, "reported", False) else f"said by {processes.rank}: {error}\\n")
"""


def test_an_error_in_one_process_is_that_of_all_and_said_once(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "failing.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "said by 0: integer division or modulo by zero\n"), done.stderr


# -- alone -------------------------------------------------------------------------------------------------------------


def test_alone_nothing_is_sent():
    alone = Processes()
    assert alone.first
    assert alone.gather("a") == ["a"]
    assert alone.all_gather("a") == ["a"]
    assert alone.broadcast("a") == "a"
    assert alone.together(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        alone.together(lambda: 1 // 0)


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with joined() as processes:
        assert processes == current() == Processes(0, 1)


def test_what_the_first_says_the_others_need_not():
    assert not OtherProcessError("gone").reported
    assert OtherProcessError("gone", reported=True).reported
