"""What README, documentation and notebook promise is what a stranger gets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import nbformat
import numpy as np
import open_clip
import pandas as pd
import pytest
from nbclient import NotebookClient

import clip_tca
from clip_tca.cli import main
from clip_tca.methods.registry import DEFAULT_METHODS
from tests.conftest import ROOT
from tests.tiny_clip import MODEL

README = (ROOT / "README.md").read_text(encoding="utf-8")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    """Code blocks of a language, those in tabs included."""
    fences = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", page, flags=re.DOTALL | re.MULTILINE)
    return [dedent(text) for _, name, text in fences if name == language]


def test_the_first_command_prints_what_the_readme_shows(capsys):
    assert main(["eval", "--dataset", "demo"]) == 0
    out, err = capsys.readouterr()
    assert all(re.fullmatch(r"clip-tca: .* left", line) for line in err.splitlines())  # progress, on a slow machine
    shown = [line.split() for line in blocks("")[0].splitlines()]
    printed = [line.split() for line in out.splitlines()][: len(shown)]
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


def test_every_linked_file_exists():
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert [target for target in linked if not (ROOT / target).is_file()] == []


def test_embeddings_made_elsewhere_give_the_table_on_the_page(tmp_path, monkeypatch, capsys):
    example = r"```python\n(.*?)```\n+```sh\nclip-tca (.*?)\n```\n+```\n(.*?)```"
    code, command, table = re.search(example, page("datasets.md"), flags=re.DOTALL).groups()
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert main(command.split()) == 0
    assert table in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*SwigPy.* has no __module__:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*swigvarlink.* has no __module__:DeprecationWarning")
def test_the_page_about_labels_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python", page("label.md")):
        exec(compile(block, "label.md", "exec"), {})  # noqa: S102
    demo = [line for block in blocks("sh", page("label.md")) for line in block.splitlines() if " demo " in line]
    assert demo
    for line in demo:
        assert main(shlex.split(line)[1:]) == 0
    assert "1843 pictures, 11 classes; model demo." in capsys.readouterr().out
    assert len(pd.read_csv("labels.csv")) == 1843


def test_the_page_about_python_runs_block_after_block(shifted, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    z, classes = shifted.z.numpy(), ["cat", "dog", "horse", "house"]
    names = {"z": z, "y": shifted.y.numpy(), "text": shifted.g.text, "names": classes, "queries": z[:7]}
    names |= {"table": pd.DataFrame({"embedding": list(z)}), "rows": z[:, :8]}
    for block in blocks("python", page("python.md")):
        if "from_prompts" in block:  # a model has embeddings of its own size
            apart = {**names, "model": open_clip.create_model(MODEL), "tokenizer": open_clip.get_tokenizer(MODEL)}
            exec(block, apart)  # noqa: S102 (our own page)
            assert apart["g"].classes == ("cat", "dog", "house")
        else:
            exec(block, names)  # noqa: S102 (our own page)
    assert set(names["table"]["label"]) <= set(classes)
    np.testing.assert_array_equal(names["tca"].predict(z), clip_tca.ConditionalTCA(names["g"]).fit(z).predict(z))
    assert names["same"].n_seen_ == len(z) + 32
    assert capsys.readouterr().out.strip() == str(names["pipeline"].score(z, names["y"]))
    assert set(names["search"].best_params_) == {"shares", "k"}
    assert names["found"].shape == (7, 10)
    moved = names["tca"].transform(z[:7], unit=True) @ names["tca"].transform(z, unit=True).T
    np.testing.assert_allclose(names["scores"], np.sort(moved, axis=1)[:, :-11:-1], rtol=1e-4)


def test_the_notebook_prints_what_is_stored_in_it_and_every_style_gains(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    stored = printed_by(notebook)
    assert any("image/png" in part.get("data", {}) for cell in notebook.cells for part in cell.get("outputs", []))
    assert "site-packages" not in stored
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    rows = [
        re.findall(r"^(clipart|icon|sketch) +([\d.]+) +([\d.]+) +([\d.]+)$", text, flags=re.MULTILINE)
        for text in (stored, printed_by(notebook))
    ]
    for (name, *before), (again, *now) in zip(*rows, strict=True):
        assert name == again
        assert all(abs(float(a) - float(b)) < 1.1 for a, b in zip(before, now, strict=True))
    assert [name for name, *_ in rows[1]] == ["clipart", "icon", "sketch"]
    assert all(float(zero) <= float(linear) and float(zero) < float(ours) for _, zero, linear, ours in rows[1])
    assert "Can it be trusted?" in printed_by(notebook)


def printed_by(notebook: nbformat.NotebookNode) -> str:
    return "".join(part.get("text", "") for cell in notebook.cells for part in cell.get("outputs", []))
