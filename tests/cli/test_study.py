"""``clip-tca study``: the finding on the screen, record and figure in files, and one line for what is wrong."""

from __future__ import annotations

import json
import sys

import pytest

from clip_tca.cli import main
from clip_tca.studies import STUDIES

QUICK = ["study", "k", "--dataset", "synthetic", "--reference", "clean", "--set", "values=3,9"]


def test_the_finding_is_printed_and_record_and_figures_are_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(QUICK) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("k on synthetic, source-like domain clean: How many pseudo-source embeddings? (paper: ")
    assert lines[1].split() == ["domain", "method", "k", "pseudo_source", "accuracy"]
    assert [line.split()[0] for line in lines[2:]] == ["shifted"] * 4 + ["skewed"] * 4
    assert said.err == ""
    assert list(tmp_path.iterdir()) == []
    assert main([*QUICK, "--output", "k"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: k.png"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.json", "k.png", "k.svg"]
    record = json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))
    assert record["options"] == {"values": [3, 9]}
    assert record["reference"] == "clean"


def test_what_is_wrong_is_one_line_before_the_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    wrong = {
        ("--output", str(tmp_path / "none" / "k")): "output: ",
        ("--set", "size=3"): "option: study k has no 'size'; allowed are values",
        ("--output", "k"): 'figures need matplotlib; run pip install ".[plot]"',
    }
    for more, message in wrong.items():
        if "matplotlib" in message:
            monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert main([*QUICK, *more]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"clip-tca: {message}")


@pytest.mark.parametrize("words", [["k"], ["fly", "--dataset", "demo"], ["k", "--dataset", "synthetic", "--set", "k"]])
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["study", *words])
    assert stop.value.code == 2
    assert "see clip-tca study --help" in capsys.readouterr().err


def test_a_study_that_needs_a_reference_lists_the_domains(capsys):
    assert main(["study", "certainty", "--dataset", "synthetic"]) == 1
    assert "name one of clean, shifted, skewed" in capsys.readouterr().err


def test_without_a_name_the_studies_are_listed(capsys):
    assert main(["study"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(STUDIES)


def test_a_study_with_data_of_its_own_says_what_it_does_not_look_at(capsys):
    assert main(["study", "toy", "--dataset", "demo", "--set", "points=60"]) == 0
    assert "toy makes its own data: demo is ignored" in capsys.readouterr().err
