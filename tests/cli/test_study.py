"""``clip-tca study``: the finding on the screen, record and figure in files, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from clip_tca.cli import main
from clip_tca.studies.registry import NAMES

QUICK = ["study", "k", "--dataset", "synthetic", "--reference", "clean", "--set", "values=3,9"]


def test_without_output_only_the_finding_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(QUICK) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("k on synthetic, source-like domain clean: How many pseudo-source embeddings? (paper: ")
    assert lines[1].startswith("  shifted: zero-shot ")
    assert said.err == ""
    assert list(tmp_path.iterdir()) == []


def test_record_and_figures_are_written(capsys, tmp_path):
    assert main([*QUICK, "--output", str(tmp_path / "k")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {tmp_path / 'k.png'}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.json", "k.png", "k.svg"]
    record = json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))
    assert record["options"] == {"values": [3, 9], "shares": "estimated"}
    assert record["reference"] == "clean"


def test_no_figure_needs_no_matplotlib(tmp_path):
    code = (
        "import sys\nsys.modules['matplotlib'] = None\nfrom clip_tca.cli import main\n"
        f"sys.exit(main({[*QUICK, '--no-figure', '-o', str(tmp_path / 'k')]!r}))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["k.json"]


def test_missing_matplotlib_is_said_before_the_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    assert main([*QUICK, "--output", str(tmp_path / "k")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert 'pip install "clip-tca[plot]"' in said


def test_what_is_wrong_is_one_line_before_the_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    for more, message in {
        ("--output", str(tmp_path / "none" / "k")): "output: ",
        ("--set", "size=3"): "option: study k has no 'size'; allowed are values, shares",
    }.items():
        assert main([*QUICK, *more]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"clip-tca: {message}")
        assert said.count("\n") == 1


@pytest.mark.parametrize("words", [["k"], ["fly", "--dataset", "demo"], ["k", "--dataset", "synthetic", "--set", "k"]])
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["study", *words])
    assert stop.value.code == 2
    assert "usage: clip-tca study" in capsys.readouterr().err


def test_a_study_that_needs_a_reference_lists_the_domains(capsys):
    assert main(["study", "certainty", "--dataset", "synthetic"]) == 1
    assert "name one of clean, shifted, skewed" in capsys.readouterr().err


def test_without_a_name_the_studies_are_listed(capsys):
    assert main(["study"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(NAMES)


def test_a_study_with_data_of_its_own_says_what_it_does_not_look_at(tmp_path, capsys):
    words = [
        "study",
        "toy",
        "--dataset",
        "demo",
        "--set",
        "points=60",
        "--output",
        str(tmp_path / "toy"),
        "--no-figure",
    ]
    assert main(words) == 0
    assert "toy makes its own data: demo is ignored" in capsys.readouterr().err
    assert (tmp_path / "toy.json").is_file()
