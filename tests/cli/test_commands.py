from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from clip_tca import __version__
from clip_tca.cli import main, parser
from clip_tca.methods.registry import BASES
from clip_tca.methods.registry import ON_EMBEDDINGS as ADAPTERS
from tests.conftest import PACS


def test_help_imports_nothing_heavy():
    """Why ``clip-tca --help`` answers at once."""
    code = (
        "import sys\nfrom clip_tca.cli import parser\nparser().format_help()\n"
        "print([m for m in ('torch', 'numpy', 'PIL', 'open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_imports_its_own_module_alone():
    code = (
        "import sys\nfrom clip_tca.cli import main\nmain(['methods'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('clip_tca.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['clip_tca.cli.methods']"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("eval", "--dataset or --recipe is needed"),
        ("eval --dataset none.safetensors", "dataset: none.safetensors is not a file"),
        ("eval --dataset folder --data-dir none", "none: no such folder"),
        ("eval --dataset pacs --k x", "k: 'x'"),
        ("adapt none.npy --head pyproject.toml -o out", "none.npy: no such file, folder or pattern"),
        ("adapt *.none --head pyproject.toml -o out", "*.none: no such file, folder or pattern"),
        ("adapt pyproject.toml --text none.npy -o out", "text: none.npy is not a file"),
        ("adapt pyproject.toml --text none.npy -o out --write all", "allowed are embeddings, labels, scores"),
        ("study k --dataset none.safetensors", "dataset: none.safetensors is not a file"),
    ],
)
def test_a_missing_file_or_a_wrong_word_is_noticed_before_torch_is_imported(words, reason):
    code = (
        "import sys; from clip_tca.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
    assert reason in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_package_imports_torch_only_when_used_and_never_the_model_libraries():
    code = (
        "import sys, clip_tca\nfrom clip_tca import LinearTCA, MLPTCA, ConditionalTCA, ZeroShotClassifier\n"
        "print([m for m in ('open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_eval_prints_a_row_for_each_method(capsys):
    assert main(["eval", "--dataset", "synthetic"]) == 0
    lead, empty, *lines = capsys.readouterr().out.splitlines()
    assert lead.startswith("conditional-tca gains ")
    assert (empty, lines[-1]) == ("", "These are made-up embeddings, not a benchmark.")
    assert lines[2].split() == ["method", "clean", "shifted", "skewed", "average", "gain", "divided", "by"]
    assert all(line.endswith("all images") for line in lines[3:6])
    rows = {line.split()[0]: [float(cell) for cell in line.split()[1:-2]] for line in lines[3:6]}
    assert list(rows) == ["zero-shot", "linear-tca", "conditional-tca"]
    assert rows["zero-shot"][-1] == 0
    assert all(sum(row[:3]) / 3 == pytest.approx(row[3], abs=0.01) for row in rows.values())
    assert rows["linear-tca"][-1] > 0


def test_the_same_seed_prints_the_same_table(capsys):
    printed = []
    for _ in range(2):
        main(["eval", "--dataset", "synthetic", "--seed", "3"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize("arguments", [[], ["eval"], ["eval", "--dataset", "imagenette"], ["fly"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: clip-tca" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exit_1(monkeypatch, capsys):
    def broken(*args):
        raise ValueError("seed: out of luck")

    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", broken)
    assert main(["eval", "--dataset", "synthetic"]) == 1
    assert capsys.readouterr().err == "clip-tca: seed: out of luck\n"
    assert main(["--debug", "eval", "--dataset", "synthetic"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", interrupted)
    assert main(["eval", "--dataset", "synthetic"]) == 130


def test_version_and_module_form():
    done = subprocess.run([sys.executable, "-m", "clip_tca", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"clip-tca {__version__}"


def test_the_words_of_the_command_line_are_those_of_the_library():
    """They are written twice, so that ``--help`` needs no torch."""
    from clip_tca.cli.options import DATASETS
    from clip_tca.datasets.image_source import NAMES

    assert set(DATASETS) == {*NAMES, "synthetic"}


def test_output_goes_to_the_file_whole_and_the_table_to_the_screen(tmp_path, capsys):
    arguments = ["eval", "--dataset", "synthetic", "--method", "zero-shot"]
    for name, begins in {"a.json": "{", "a.csv": "section,method", "a.md": "Accuracy", "a.tex": "% Accuracy"}.items():
        assert main([*arguments, "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begins)
        assert capsys.readouterr().out.startswith("Accuracy (%) on synthetic")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md", "a.tex"]


def test_a_place_that_cannot_be_written_is_noticed_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    for place in (tmp_path, tmp_path / "nowhere" / "a.json"):
        assert main(["eval", "--dataset", "synthetic", "--output", str(place)]) == 1
        assert capsys.readouterr().err.startswith("clip-tca: output: ")


def test_options_reach_the_methods_and_the_record(capsys):
    options = ["--k", "7", "--shares", "uniform", "--solver", "gradient", "--set", "steps=3", "--set", "lr=0.01"]
    assert main(["eval", "--dataset", "synthetic", "--method", "linear-tca", "--format", "json", *options]) == 0
    parameters = json.loads(capsys.readouterr().out)["methods"][0]["parameters"]
    wanted = {"k": 7, "shares": "uniform", "solver": "gradient", "steps": 3, "lr": 0.01}
    assert {name: parameters[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--k", "many"], "k: 'many'"),
        (["--solver", "magic"], "solver: 'magic'"),
        (["--set", "speed=9"], "'speed'"),
        (["--domain", "moon"], "'moon'"),
        (["--method", "linear-tca:reference", "--setting", "online"], "oracle"),
    ],
)
def test_a_bad_value_is_one_line(options, reason, capsys):
    assert main(["eval", "--dataset", "synthetic", "--method", "linear-tca", *options]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert reason in errors[0]


@pytest.mark.parametrize("options", [["--batch-size", "0"], ["--seeds", "x"], ["--set", "k"], ["--method", "tenet"]])
def test_a_bad_option_is_wrong_usage(options, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["eval", "--dataset", "synthetic", *options])
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--debu", "methods"],
        ["explain", "r.json", "--form", "json"],
        ["compare", "r.json", "--out", "t"],
        ["export", "s", "-o", "h.onnx", "--outpu", "h"],
        ["embed", "--dataset", "demo", "--hub", "x"],
        ["data", "check", "--dataset", "demo", "--rev", "x"],
        ["data", "show", "demo", "--out", "x.png"],
    ],
)
def test_no_command_takes_the_beginning_of_an_option_for_the_option(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "unrecognized arguments: --" in capsys.readouterr().err


def test_compare_reads_records_and_refuses_what_is_none(tmp_path, capsys):
    for name, protocol in {"one": "full", "two": "kept"}.items():
        options = ["--method", "zero-shot", "--protocol", protocol, "--output", str(tmp_path / f"{name}.json")]
        assert main(["eval", "--dataset", "synthetic", *options]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "one.json"), str(tmp_path / "two.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.index("[one]") < shown.index("all images") < shown.index("[two]") < shown.rindex("images seen")
    (tmp_path / "bad.json").write_text('{"rows": 3}')
    for wrong in ("bad.json", "none.json"):
        assert main(["compare", str(tmp_path / wrong)]) == 1
        assert wrong in capsys.readouterr().err


def test_a_recipe_runs_and_what_is_given_goes_before_it(tmp_path, capsys):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'title = "mine"\n[all]\nmethod = ["zero-shot", "linear-tca"]\nset = {steps = 5}\nprotocol = "kept"\n'
        '[[run]]\ndataset = "synthetic"\nseed = 1\n[[run]]\ndataset = "synthetic"\nbatch-size = 64\n'
    )
    assert main(["eval", "--recipe", str(recipe), "--format", "json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["records"]
    assert (one["protocol"], one["batch_size"], two["batch_size"]) == ("kept", 128, 64)
    assert one["data"]["origin"]["seed"] == 1
    assert one["methods"][1]["parameters"]["steps"] == 5
    assert main(["eval", "--recipe", str(recipe), "--protocol=full", "--method", "zero-shot", "--format", "json"]) == 1
    assert "'steps'" in capsys.readouterr().err
    assert main(["eval", "--recipe", str(recipe), "--protocol=full", "--set", "k=9", "--format", "json"]) == 0
    one, _ = json.loads(capsys.readouterr().out)["records"]
    assert (one["protocol"], one["methods"][1]["parameters"]["k"]) == ("full", 9)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[[run]\n", "not TOML"),
        ("title = 'x'\n", "no runs"),
        ("[[run]]\ndataset = 'synthetic'\nspeed = 3\n", "'speed' is not an option"),
        ("[[run]]\noutput = 'x'\n", "'output' is not an option"),
        ("[[run]]\nprotocol = 'full'\n", "a run has no dataset; add it there, or give --dataset"),
        ("[other]\n[[run]]\ndataset = 'synthetic'\n", "'other'"),
    ],
)
def test_a_bad_recipe_says_what_is_wrong(content, reason, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(content)
    assert main(["eval", "--recipe", str(tmp_path / "bad.toml")]) == 1
    assert reason in capsys.readouterr().err


def test_our_recipes_are_understood_to_the_last_option():
    from clip_tca.cli.recipe import arguments, find

    command = parser()._subparsers._group_actions[0].choices["eval"]
    for name, runs in {"clip": 3, "mlp": 2, "batch_size": 11}.items():
        lines = arguments(find(name), command, [])
        assert len(lines) == runs
        for line in lines:
            options = command.parse_args(line)
            assert options.dataset in ("pacs", "officehome", "vlcs")
            assert options.model == "ViT-B-16-quickgelu"


def test_data_list_names_every_data_set(capsys):
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    for word in ("pacs", "9991 images", "officehome", "15588", "65 classes", "vlcs", "10729", "folder", "demo"):
        assert word in shown


def test_data_check_lists_what_differs_and_fails(mini, capsys):
    assert main(["data", "check", "--dataset", "vlcs", "--data-dir", str(mini)]) == 1
    shown = capsys.readouterr().out
    assert "SUN09: 55 images, 3282 published" in shown
    assert "4 differences" in shown


def test_data_check_of_a_complete_copy_succeeds(tmp_path, capsys, monkeypatch):
    from dataclasses import replace

    from clip_tca.datasets.registry import BENCHMARKS

    small = replace(BENCHMARKS["vlcs"], images=dict.fromkeys(BENCHMARKS["vlcs"].images, 5), class_images={})
    monkeypatch.setitem(BENCHMARKS, "vlcs", small)
    for domain in small.domains:
        for name in small.classes:
            (tmp_path / domain / name).mkdir(parents=True)
            (tmp_path / domain / name / "1.jpg").write_bytes(b"x")
    assert main(["data", "check", "--dataset", "vlcs", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "complete"


def test_cache_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "store")
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith("0 entries")
    assert main(["cache", "clear"]) == 0
    assert main(["cache", "clear", "abc"]) == 1


def test_stored_embeddings_are_evaluated_as_they_are(pacs, capsys):
    assert main(["eval", "--dataset", str(PACS), "--prompts", "watt", "--method", "zero-shot", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [round(row["accuracy"], 1) for row in record["rows"]] == [91.5, 77.0, 100.0, 74.1]
    assert record["model"] is None
    assert set(record["rows"][0]["per_class"]) == {"dog", "elephant", "giraffe", "guitar", "horse", "house", "person"}


@pytest.mark.parametrize("change", ["accuracy", "rows", "domain", "prompts", "batch_size"])
def test_compare_refuses_a_record_that_was_edited(change, tmp_path, capsys):
    file = tmp_path / "one.json"
    main(["eval", "--dataset", "synthetic", "--method", "zero-shot", "--output", str(file)])
    record = json.loads(file.read_text())
    if change == "accuracy":
        record["rows"][0]["accuracy"] = 99.9
    elif change == "rows":
        record["rows"] = []
    elif change == "domain":
        record["rows"][0]["domain"] = "moon"
    else:
        del record[change]
    file.write_text(json.dumps(record))
    capsys.readouterr()
    assert main(["compare", str(file)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"clip-tca: {file}: not a whole record")
    assert len(errors.splitlines()) == 1


def test_an_ascii_terminal_gets_the_table(capsys):
    command = [
        sys.executable,
        "-m",
        "clip_tca",
        "eval",
        "--dataset",
        "synthetic",
        "--method",
        "zero-shot",
        "--seeds",
        "2",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert r"100.00 \xb1 0.00" in done.stdout


def test_stored_embeddings_take_no_model(capsys):
    assert main(["eval", "--dataset", "synthetic", "--model", "demo"]) == 1
    assert "holds embeddings" in capsys.readouterr().err


def test_methods_are_listed_with_what_they_update(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for name in (*ADAPTERS, *BASES):
        assert f"\n  {name} " in shown
    assert "Fisher" in shown


@pytest.mark.parametrize("package", ["onnx", "triton"])
def test_nothing_is_said_when_python_ends(package):
    """Some packages count what was not collected at the end, and tell the user."""
    pytest.importorskip(package)
    code = f"import {package}, sys; sys.argv = ['clip-tca', 'methods']\nfrom clip_tca.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_quiet_shows_no_progress_and_the_same_result(monkeypatch, capsys):
    for name in ("DELAY", "REDRAW", "LINE"):
        monkeypatch.setattr(f"clip_tca.core.progress.{name}", 0.001)
    shown = []
    for options in ([], ["--quiet"]):
        assert main(["eval", "--dataset", "synthetic", "--method", "t3a", "--method", "mlp2-tca", *options]) == 0
        shown.append(capsys.readouterr())
    assert "clip-tca: adapting" in shown[0].err
    assert shown[1].err == ""
    assert shown[0].out == shown[1].out


@pytest.mark.parametrize(
    "command",
    [
        ["eval"],
        ["embed", "--dataset", "demo"],
        ["study"],
        ["adapt", "-", "-o", "-", "--text", "t.npy"],
        ["data", "get", "vlcs"],
    ],
)
def test_every_long_command_can_be_quiet(command):
    assert parser().parse_args([*command, "--quiet"]).quiet
    assert not parser().parse_args(command).quiet
