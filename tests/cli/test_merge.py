"""Three lines share one fit among independent tasks, and give what one process gives."""

from __future__ import annotations

import glob
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from clip_tca.cli import main
from tests.conftest import ROOT, Shifted
from tests.object_stores import content, upload

SET = Shifted(classes=4, dim=24, images=60)
Z = SET.z.numpy()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "embeddings").mkdir()
    np.save("text.npy", SET.g.text.numpy())
    for number, part in enumerate(np.array_split(Z, 7)):
        np.save(f"embeddings/z_{number}.npy", part)
    return tmp_path


def documented() -> list[str]:
    """The lines of docs/clusters.md."""
    lines = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if "--task $I/3 --save-state" in line)
    return lines[start : start + 3]


def run(line: str, also: str = "") -> None:
    for task in (1, 2, 3) if "$I" in line else (1,):
        words = [word for part in shlex.split(line.replace("$I", str(task))) for word in glob.glob(part) or [part]]
        assert main([*words[1:], *also.split()]) == 0


@pytest.mark.parametrize("method", ["conditional-tca", "linear-tca"])
def test_the_three_lines_of_the_page_give_what_one_process_gives(method, folder, capsys):
    fit, merge, adapt = documented()
    run(fit, f"--method {method}")
    run(merge)
    run(adapt, "--write embeddings,labels")
    words = ["adapt", "embeddings", "--text", "text.npy", "--write", "embeddings,labels", "--method", method]
    assert main([*words, "-o", "one", "--save-state", "one.safetensors"]) == 0
    for number in range(7):
        for kind in ("embeddings", "labels"):
            ours, theirs = (np.load(f"{out}/{kind}/z_{number}.npy") for out in ("one", "adapted"))
            assert np.array_equal(ours, theirs)
    records = [json.loads(Path(f"adapted/_clip-tca-{task}-of-3.json").read_text()) for task in (1, 2, 3)]
    assert sum(record["rows"] for record in records) == len(Z)
    assert main(["explain", "state.safetensors"]) == 0
    assert main(["explain", "one.safetensors"]) == 0
    parts = capsys.readouterr().out.split("written: one")[1].splitlines()[2:]
    assert parts[: len(parts) // 2] == parts[len(parts) // 2 :]


def test_more_tasks_than_shards_and_a_store_between_them(folder, memory):
    upload(folder, memory)
    words = ["adapt", f"{memory}/embeddings", "--text", f"{memory}/text.npy", "--write", "labels"]
    for task in range(1, 10):
        state = f"{memory}/part_{task}.safetensors"
        assert main([*words, "--fit-only", "--task", f"{task}/9", "--save-state", state]) == 0
    parts = [f"{memory}/part_{task}.safetensors" for task in range(9, 0, -1)]
    assert main(["merge", *parts, "-o", f"{memory}/state.safetensors"]) == 0
    for task in range(1, 10):
        load = ["--load-state", f"{memory}/state.safetensors", "--task", f"{task}/9"]
        assert main([*words, *load, "-o", f"{memory}/adapted"]) == 0
    assert main(["adapt", "embeddings", "--text", "text.npy", "--write", "labels", "-o", "one"]) == 0
    found = content(f"{memory}/adapted")
    for number in range(7):
        assert found[f"z_{number}.npy"] == Path(f"one/z_{number}.npy").read_bytes()
    assert sum(name.startswith("_clip-tca") for name in found) == 9


def test_a_fit_of_all_rows_can_be_saved_without_writing_anything(folder):
    words = ["adapt", "embeddings", "--text", "text.npy"]
    assert main([*words, "--fit-only", "--save-state", "state.safetensors"]) == 0
    assert {path.name for path in folder.iterdir()} == {"embeddings", "text.npy", "state.safetensors"}
    assert main([*words, "--load-state", "state.safetensors", "--write", "labels", "-o", "out"]) == 0
    assert main([*words, "--write", "labels", "-o", "one"]) == 0
    assert all(
        Path(f"out/z_{number}.npy").read_bytes() == Path(f"one/z_{number}.npy").read_bytes() for number in range(7)
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-o", "out", "--task", "1/3"], "--task needs --fit-only --save-state FILE, or --load-state"),
        (["--fit-only"], "--fit-only needs --save-state FILE, and neither --load-state nor --output"),
        (["--fit-only", "--save-state", "s.safetensors", "-o", "out"], "--fit-only needs"),
        (["--fit-only", "--save-state", "s.safetensors", "--online"], "leave out --online"),
        ([], "the following arguments are required: --output/-o"),
        (["-o", "out", "--load-state", "s", "--task", "0/3"], "'0/3'; write I/N, from 1/N to N/N, such as 1/8"),
        (["-o", "out", "--load-state", "s", "--task", "4/3"], "'4/3'; write I/N"),
        (["-o", "out", "--load-state", "s", "--task", "1"], "'1'; write I/N"),
    ],
)
def test_words_that_do_not_go_together_are_a_usage_error(words, reason, folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["adapt", "embeddings", "--text", "text.npy", *words])
    assert reason in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"embeddings", "text.npy"}


def test_parts_and_fits_are_not_taken_for_each_other(folder, capsys):
    words = ["adapt", "embeddings", "--text", "text.npy"]
    assert main([*words, "--fit-only", "--task", "1/2", "--save-state", "part.safetensors"]) == 0
    assert main([*words, "--load-state", "part.safetensors", "-o", "out"]) == 1
    assert main(["explain", "part.safetensors"]) == 1
    assert main(["export", "part.safetensors", "-o", "a.onnx"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("what one task has seen, not a whole fit; merge all of them first: clip-tca merge" in x for x in lines)
    assert main(["merge", "part.safetensors", "-o", "state.safetensors"]) == 1
    assert "merge: task 2 of 2 is missing" in capsys.readouterr().err
    assert not Path("state.safetensors").exists()


def test_one_output_file_is_not_shared(folder, capsys):
    words = ["adapt", "embeddings/z_0.npy", "--text", "text.npy"]
    assert main([*words, "--fit-only", "--save-state", "state.safetensors"]) == 0
    assert main([*words, "--load-state", "state.safetensors", "--task", "1/2", "-o", "a.npy"]) == 1
    assert "task: tasks do not share one output file; name a folder" in capsys.readouterr().err
