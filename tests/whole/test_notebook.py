"""The notebook runs from the first cell to the last, and shows a gain."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def test_the_notebook_is_kept_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert not cell.get("execution_count")


def test_the_notebook_runs_and_every_style_gains(tmp_path, monkeypatch):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    copy = Path(shutil.copy(NOTEBOOK, tmp_path))
    notebook = nbformat.read(copy, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = "".join(part.get("text", "") for cell in notebook.cells for part in cell.get("outputs", []))
    rows = re.findall(r"^(clipart|icon|sketch) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == ["clipart", "icon", "sketch"]
    for _, zero_shot, linear, conditional in rows:
        assert float(zero_shot) <= float(linear)
        assert float(zero_shot) < float(conditional)
    assert "Can it be trusted?" in printed
