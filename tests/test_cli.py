from __future__ import annotations

import subprocess
import sys

import pytest

from clip_tca import __version__
from clip_tca.cli import main


def test_help_imports_nothing_heavy():
    """Why ``clip-tca --help`` answers at once."""
    code = (
        "import sys\nfrom clip_tca.cli import parser\nparser().format_help()\n"
        "print([m for m in ('torch', 'numpy', 'open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_imports_torch_only_when_used_and_never_the_model_libraries():
    code = (
        "import sys, clip_tca\nfrom clip_tca import LinearTCA, MLPTCA, ConditionalTCA, ZeroShotClassifier\n"
        "print([m for m in ('open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_eval_prints_a_row_for_each_method(capsys):
    assert main(["eval", "--dataset", "synthetic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("made up, not a benchmark.")
    assert lines[2].split() == ["method", "clean", "shifted", "skewed", "average", "gain"]
    rows = {line.split()[0]: [float(cell) for cell in line.split()[1:]] for line in lines[3:]}
    assert list(rows) == ["zero-shot", "linear-tca", "mlp2-tca", "mlp3-tca", "conditional-tca"]
    assert rows["zero-shot"][-1] == 0
    assert all(sum(row[:3]) / 3 == pytest.approx(row[3], abs=0.01) for row in rows.values())
    assert rows["linear-tca"][-1] > 0


def test_the_same_seed_prints_the_same_table(capsys):
    for _ in range(2):
        main(["eval", "--dataset", "synthetic", "--seed", "3"])
    first, second = capsys.readouterr().out.split("Accuracy")[1:]
    assert first == second


@pytest.mark.parametrize("arguments", [[], ["eval"], ["eval", "--dataset", "imagenet"], ["fly"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: clip-tca" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exit_1(monkeypatch, capsys):
    def broken(*args):
        raise ValueError("seed: out of luck")

    monkeypatch.setattr("clip_tca.datasets.synthetic.synthetic", broken)
    assert main(["eval", "--dataset", "synthetic"]) == 1
    assert capsys.readouterr().err == "clip-tca: seed: out of luck\n"
    assert main(["--debug", "eval", "--dataset", "synthetic"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("clip_tca.datasets.synthetic.synthetic", interrupted)
    assert main(["eval", "--dataset", "synthetic"]) == 130


def test_version_and_module_form():
    done = subprocess.run([sys.executable, "-m", "clip_tca", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"clip-tca {__version__}"
