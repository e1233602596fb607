"""docs/datasets.md: its table is that of the registry, and its example prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys

from clip_tca.cli import main
from clip_tca.datasets.literature import LITERATURE
from clip_tca.datasets.prompts import BY_DATASET, NAMED
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")


def test_the_table_has_the_names_counts_lists_and_copies_of_the_registry():
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines()]
    rows = [row for row in rows if len(row) == 6 and row[1].isdecimal()]
    expected = []
    for benchmark in LITERATURE:
        other = benchmark.hub_split
        split = f"{other.whose}: {other.images}" if other else "the same" if benchmark.hub_id else ""
        counts = (str(len(benchmark.classes)), str(benchmark.images["test"]))
        expected.append([benchmark.name, *counts, benchmark.listed or "all", benchmark.hub_id or "none", split])
    assert [[*row[:3], "all" if row[3].startswith("all") else row[3], *row[4:]] for row in rows] == expected


def test_every_name_of_prompts_is_on_the_page():
    assert [name for name in (*NAMED, *BY_DATASET) if f"\n| `{name}` |" not in PAGE] == []


def test_the_example_prints_the_table_on_the_page(tmp_path, monkeypatch, capsys):
    code, command, table = re.search(
        r"```python\n(.*?)```\n+```sh\nclip-tca (.*?)\n```\n+```\n(.*?)```", PAGE, flags=re.DOTALL
    ).groups()
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert main(command.split()) == 0
    assert table in capsys.readouterr().out
