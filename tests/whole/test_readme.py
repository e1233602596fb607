"""What the README promises is what a stranger gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from clip_tca.cli import main
from clip_tca.methods.registry import DEFAULT_METHODS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return [
        text
        for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
        if name == language
    ]


def test_the_readme_takes_three_minutes():
    assert len(README.splitlines()) <= 120


def test_the_two_commands_are_single_lines_that_make_their_own_venv():
    commands = blocks("bash")
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].strip().endswith("clip-tca eval --dataset demo")
    assert commands[1].strip().endswith("pytest -n auto")


def test_the_first_command_prints_what_the_readme_shows(capsys):
    assert main(["eval", "--dataset", "demo"]) == 0
    out, err = capsys.readouterr()
    assert all(re.fullmatch(r"clip-tca: .* left", line) for line in err.splitlines())  # progress, on a slow machine
    printed = [line.split() for line in out.splitlines()]
    shown = [line.split() for line in blocks("")[0].splitlines()]
    assert [row[:1] for row in printed] == [row[:1] for row in shown]
    rows = [(ours, theirs) for ours, theirs in zip(printed, shown, strict=True) if ours[-2:] == ["all", "images"]]
    assert [ours[0] for ours, _ in rows] == list(DEFAULT_METHODS)
    for ours, theirs in rows:  # other releases of Pillow or another processor may turn a few of 600 pictures
        assert all(abs(float(a) - float(b)) < 1.1 for a, b in zip(ours[1:-2], theirs[1:-2], strict=True))


def test_the_script_prints_what_the_readme_shows(tmp_path):
    script, embeddings = tmp_path / "adapt.py", tmp_path / "demo.safetensors"
    assert main(["embed", "--dataset", "demo", "-o", str(embeddings)]) == 0
    script.write_text(blocks("python")[0], encoding="utf-8")
    assert len(script.read_text().splitlines()) <= 10
    done = subprocess.run([sys.executable, script, embeddings], capture_output=True, text=True, check=True)
    printed = [line.split() for line in done.stdout.splitlines()]
    shown = [line.split() for line in blocks("")[1].splitlines()]
    assert [row[0] for row in printed] == [row[0] for row in shown]
    for ours, theirs in zip(printed, shown, strict=True):
        assert all(abs(float(a) - float(b)) < 1.1 for a, b in zip(ours[1:], theirs[1:], strict=True))


def test_the_pipe_prints_a_table(tmp_path):
    page = (ROOT / "docs" / "own-embeddings.md").read_text(encoding="utf-8")
    [example] = [block for block in blocks("sh", page) if "adapt - " in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", example], cwd=tmp_path, env={**os.environ, "PATH": path},
                          capture_output=True, text=True, check=True)  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["tca_label", "tca_score"]
    assert lines[-1] == "[300 rows x 2 columns]"


def test_ci_runs_the_readme_s_test_command():
    """It takes the line from the README, so they cannot drift apart; here only that the marker is where it looks."""
    assert re.search(r"<!-- tests -->\n```bash\npython3 .*pytest -n auto\n```", README)


def test_every_linked_file_exists():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_table_of_rivals_is_what_was_printed():
    page = (ROOT / "eval" / "rivals.md").read_text(encoding="utf-8").split("## By data set")[0]
    head, _, *printed = table_rows(page)
    gains = {row[0].split(" (")[0]: [cell.split(" (")[0] for cell in row] for row in printed}
    demo = dict(re.findall(r"^(\S+) .* ([+-][\d.]+)  all images$", DEMO, flags=re.MULTILINE))
    for text in (README, (ROOT / "docs" / "results.md").read_text(encoding="utf-8")):
        columns = next(row for row in table_rows(text) if row[0] == "method")
        shown = [row for row in table_rows(text) if row[0] in gains]
        assert [row[0] for row in shown] == sorted(gains, key=lambda name: -float(gains[name][head.index("mean")]))
        for name, *cells in shown:
            for column, cell in zip(columns[1:], cells, strict=True):
                if column == "demo":
                    assert cell == f"{float(demo[name.strip('*')]):+.1f}"
                else:
                    assert cell == gains[name][head.index(column)]


def table_rows(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
