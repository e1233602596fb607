"""Several processes of one run (torchrun) give what one gives, and fail together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_tca.bulk.staging import Staging
from clip_tca.core.processes import OtherProcessError, Processes, current, joined
from tests.cli.test_adapt import SCALE, SET, Z
from tests.datasets.test_formats import table
from tests.hub import Hub
from tests.tiny_clip import MODEL


def torchrun(*words: str, program=("-m", "clip_tca"), **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *program]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, **options)


def single(*words: str, **options) -> None:
    subprocess.run([sys.executable, "-m", "clip_tca", *words], check=True, capture_output=True, timeout=300, **options)


def record(path: Path) -> dict:
    found = json.loads(path.read_text())
    del found["cost"]
    return found


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """More rows than a unit has, in one file and in shards; one of them has a bad row."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    rows = np.tile(Z, (700, 1)) + 0.05 * generator.standard_normal((700 * len(Z), 24))
    np.save("text.npy", SET.g.text.numpy())
    rows = rows.astype(np.float16)
    rows[5], rows[150_000] = np.nan, np.nan
    np.save("one.npy", rows)
    (tmp_path / "shards").mkdir()
    for number, part in enumerate(np.array_split(rows[:30_000], 3)):
        pq.write_table(table(part), f"shards/{number}.parquet")
    return tmp_path


def test_two_processes_adapt_to_the_bit_like_one(shelf):
    words = ["adapt", "--text", "text.npy", "--scale", str(SCALE), "--write", "embeddings,labels", "--drop-bad-rows"]
    for source, names in {
        "one.npy": ["embeddings/one.npy", "labels/one.npy"],
        "shards": ["0.parquet", "2.parquet"],
    }.items():
        single(*words, source, "-o", f"{source}-1")
        done = torchrun(*words, source, "-o", f"{source}-2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("written") == 1
        for name in names:
            assert Path(f"{source}-1/{name}").read_bytes() == Path(f"{source}-2/{name}").read_bytes()
        assert record(Path(f"{source}-1/_clip-tca.json")) == record(Path(f"{source}-2/_clip-tca.json"))
    assert len(np.load("one.npy-2/labels/one.npy")) == 700 * len(Z) - 2


def test_an_error_in_one_process_is_said_once_and_nothing_is_left(shelf):
    words = ["adapt", "one.npy", "--text", "text.npy", "-o", "out"]
    done = torchrun(*words)
    assert done.returncode == 1
    assert done.stderr.count("clip-tca: one.npy: NaN or infinity in row") == 1
    assert not [path for path in shelf.iterdir() if "out" in path.name]


def test_an_output_that_another_run_writes_is_left_to_it(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "text.npy", SET.g.text.numpy())
    with Staging(tmp_path / "out", single=False) as other:
        done = torchrun("adapt", "z.npy", "--text", "text.npy", "-o", "out", cwd=tmp_path)
        assert other.staged()[0].is_dir()
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("clip-tca:")] == [
        f"clip-tca: output: another run is writing {tmp_path / 'out'}; wait for it"
    ]


UNSAVED = """
import sys
from clip_tca.adapters.base import Adapter
from clip_tca.cli import main

def save(self, path):
    raise OSError("no room for the state")

Adapter.save = save
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nan.npy", "--drop-bad-rows"], "embeddings: 0 rows that can be used; at least 2 are needed"),
        (["z.npy", "--save-state", "s.safetensors"], "no room for the state"),
    ],
)
def test_where_the_first_process_can_not_go_on_none_does(words, reason, tmp_path):
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "nan.npy", np.full_like(Z, np.nan))
    np.save(tmp_path / "text.npy", SET.g.text.numpy())
    (tmp_path / "unsaved.py").write_text(UNSAVED)
    words = ["adapt", *words, "--text", "text.npy", "--method", "linear-tca", "--k", "2", "-o", "out"]
    done = torchrun(*words, program=["unsaved.py"], cwd=tmp_path)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "clip-tca:" in line] == [f"clip-tca: {reason}"]
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_a_process_that_dies_ends_the_run_and_nothing_is_left(shelf):
    rows = np.load("one.npy")
    np.save("good.npy", np.concatenate([rows[6:150_000]] * 4))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "clip_tca",
        "adapt",
        "good.npy",
    ]
    command += ["--text", "text.npy", "-o", "out", "--write", "labels"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=shelf) as run:
        end = time.monotonic() + 120
        while not (shelf / ".out.part").exists():  # made after both have joined
            assert time.monotonic() < end
            assert run.poll() is None
            time.sleep(0.02)
        victim = next(pid for pid in _children(run.pid) if _environment(pid).get("RANK") == "1")
        os.kill(victim, signal.SIGKILL)
        error = run.communicate(timeout=120)[1]
    assert run.returncode == 1
    assert "clip-tca: ended by SIGTERM (torchrun sends it when another process of the run has died)" in error or (
        "clip-tca: another process of this run has ended" in error
    )
    assert not [path for path in shelf.iterdir() if "out" in path.name]


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(status.parent.name))
        except (OSError, ValueError):
            continue
    return found


def _environment(pid: int) -> dict[str, str]:
    content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.split("=", 1) for line in content.split("\0") if "=" in line)


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


def test_a_streamed_data_set_of_the_hub(tmp_path):
    """Two Parquet files on a hub of our own: streamed by one process and by two, ids carried through."""
    (tmp_path / "repo" / "data").mkdir(parents=True)
    for number, part in enumerate(np.array_split(Z, 2)):
        pq.write_table(table(part), tmp_path / "repo" / "data" / f"train-{number:05d}-of-00002.parquet")
    np.save(tmp_path / "text.npy", SET.g.text.numpy())
    words = ["adapt", "--hub-id", "someone/shelf", "--streaming", "--text", "text.npy", "--scale", str(SCALE)]
    with Hub() as hub:
        hub.add_dataset("someone/shelf", tmp_path / "repo")
        environment = hub.environment(tmp_path / "hf")
        single(*words, "-o", "one", "--write", "labels", cwd=tmp_path, env=environment)
        done = torchrun(*words, "-o", "two", "--write", "labels", cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
    found = [pq.read_table(tmp_path / name) for name in ("one", "two")]
    assert found[0].equals(found[1])
    assert found[0].column_names == ["id", "tca_label"]
    from clip_tca import ConditionalTCA

    agree = found[0]["tca_label"].to_numpy() == ConditionalTCA(SET.g).fit(Z).predict(Z)
    assert agree.all()


def test_a_hub_that_is_not_there_is_one_line(tmp_path):
    np.save(tmp_path / "text.npy", SET.g.text.numpy())
    command = [
        sys.executable,
        "-m",
        "clip_tca",
        "adapt",
        "--hub-id",
        "a/b",
        "--streaming",
        "--text",
        "text.npy",
        "-o",
        "o",
    ]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("clip-tca: a/b: could not be streamed")


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
