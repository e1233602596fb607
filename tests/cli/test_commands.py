"""What all commands share: quick answers, exit codes, one line for what is wrong, files that appear whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from clip_tca import __version__
from clip_tca.cli import COMMANDS, main, parser
from clip_tca.cli.eval import recipe_lines
from clip_tca.cli.options import parse_value, read_shares
from clip_tca.data.registry import BENCHMARKS
from clip_tca.methods.registry import BASES, ON_EMBEDDINGS
from tests.conftest import PACS, ROOT

SYNTHETIC = ["eval", "--dataset", "synthetic", "--method", "zero-shot"]


def printed(code: str, *words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_help_imports_nothing_heavy_and_the_package_no_model_library():
    heavy = "print([m for m in ('torch', 'numpy', 'PIL', 'open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    assert printed(f"import sys\nfrom clip_tca.cli import parser\nparser().format_help()\n{heavy}") == ["[]"]
    names = "LinearTCA, MLPTCA, ConditionalTCA, ZeroShotClassifier"
    libraries = "print([m for m in ('open_clip', 'torchvision', 'datasets') if m in sys.modules])"
    assert printed(f"import sys\nfrom clip_tca import {names}\n{libraries}") == ["[]"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["eval"],
        ["eval", "--dataset", "imagenette"],
        [*SYNTHETIC, "--batch-size", "0"],
        [*SYNTHETIC, "--runs", "x"],
        [*SYNTHETIC, "--set", "k"],
        [*SYNTHETIC, "--k", "many"],
        [*SYNTHETIC, "--method", "tenet"],
    ],
)
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clip-tca")
    assert line.endswith(" --help)")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["evla"], "clip-tca: COMMAND: 'evla'; did you mean eval?"),
        (["eval", "--dataset", "pcas"], "clip-tca eval: --dataset: 'pcas'; did you mean pacs?"),
        ([*SYNTHETIC, "--method", "condtional-tca"], "--method: 'condtional-tca'; did you mean conditional-tca?"),
        ([*SYNTHETIC, "--metod=tent"], "clip-tca eval: unknown option '--metod'; did you mean --method?"),
        ([*SYNTHETIC, "--setting", "onlin"], "'onlin' (did you mean online?); allowed are transductive, online"),
        (["explain", "a.json", "b.json"], "clip-tca explain: 'b.json' is one argument too many"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_one_that_was_meant(words, meant, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert meant in capsys.readouterr().err


def test_help_is_printed_as_it_is_meant(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert "%%" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--debu", "methods"],
        ["compare", "r.json", "--out", "t"],
        ["export", "s", "-o", "h.onnx", "--outpu", "h"],
        ["embed", "--dataset", "demo", "--hub", "x"],
        ["data", "check", "--dataset", "demo", "--rev", "x"],
    ],
)
def test_no_command_takes_the_beginning_of_an_option_for_the_option(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert f"unknown option '{words[-2] if words[0] != '--debu' else '--debu'}'" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exit_1_and_an_interrupt_130(monkeypatch, capsys):
    def fail(error: BaseException) -> None:
        def failing(*_):
            raise error

        monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", failing)

    fail(ValueError("seed: out of luck"))
    assert main(SYNTHETIC) == 1
    assert capsys.readouterr().err == "clip-tca: seed: out of luck\n"
    assert main(["--debug", *SYNTHETIC]) == 1
    assert "Traceback" in capsys.readouterr().err
    fail(KeyboardInterrupt())
    assert main(SYNTHETIC) == 130


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([*SYNTHETIC, "--method", "linear-tca", "--solver", "magic"], "solver: 'magic'"),
        ([*SYNTHETIC, "--set", "speed=9"], "'speed'"),
        ([*SYNTHETIC, "--domain", "moon"], "'moon'"),
        ([*SYNTHETIC, "--model", "demo"], "holds embeddings"),
        ([*SYNTHETIC, "--method", "linear-tca:reference", "--setting", "online"], "oracle"),
        (["eval", "--dataset", "none.safetensors"], "none.safetensors: no such file"),
        (["eval", "--dataset", "folder", "--data-dir", "none"], "none: no such folder"),
        (["eval", "--dataset", "demo", "--class-names", "none.txt"], "class names: none.txt is not a file"),
        (["adapt", "pyproject.toml", "--text", "none.npy", "-o", "out"], "pyproject.toml"),
        (["adapt", "none.npy", "--text", "pyproject.toml", "-o", "out"], "none.npy: no such file, folder or pattern"),
        (["explain", "none.json"], "none.json: no such file or folder"),
        (["study", "k", "--dataset", "none.safetensors"], "none.safetensors: no such file"),
        (["label", "none", "--classes", "a, b"], "none"),
        (["label", "demo", "--answers", "none.csv"], "none.csv: no such file; save it from the page"),
    ],
)
def test_a_bad_value_is_one_line_and_nothing_is_encoded(words, reason, capsys, monkeypatch):
    monkeypatch.setattr("clip_tca.encoding.embedder.encode_batches", lambda *_: pytest.fail("worked first"))
    assert main(words) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert reason in error


def test_version_and_module_form():
    done = subprocess.run([sys.executable, "-m", "clip_tca", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"clip-tca {__version__}"


@pytest.mark.parametrize("package", ["onnx", "triton"])
def test_nothing_is_said_when_python_ends(package):
    """Some packages count what was not collected at the end, and tell the user."""
    pytest.importorskip(package)
    code = f"import {package}, sys; sys.argv = ['clip-tca', 'methods']\nfrom clip_tca.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_values_of_the_command_line():
    words = ["3", "0.5", "1e-3", "true", "None", "auto"]
    assert [parse_value(word) for word in words] == [3, 0.5, 0.001, True, None, "auto"]


def test_shares_from_a_file(tmp_path):
    """Numbers line by line, or names with numbers as CSV or JSON."""
    texts = {"a.txt": "3\n1\n", "b.csv": "dog,3\ncat;1\n", "c.json": json.dumps({"dog": 3, "cat": 1})}
    for name, text in {**texts, "bad.csv": "dog,many\n"}.items():
        (tmp_path / name).write_text(text)
    assert read_shares(tmp_path / "a.txt") == [3.0, 1.0]
    assert read_shares(tmp_path / "b.csv") == read_shares(tmp_path / "c.json") == {"dog": 3.0, "cat": 1.0}
    for name, says in {"missing.txt": "no such file", "bad.csv": "can't be read"}.items():
        with pytest.raises(ValueError, match=rf"{name}.*{says}"):
            read_shares(tmp_path / name)


def test_eval_prints_a_row_for_each_method_and_the_same_again(capsys):
    shown = []
    for _ in range(2):
        assert main(["eval", "--dataset", "synthetic"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    lead, empty, *lines = shown[0].splitlines()
    assert lead.startswith("conditional-tca gains ")
    assert (empty, lines[7], lines[8]) == ("", "These are made-up embeddings, not a benchmark.", "")
    assert lines[9].startswith("conditional-tca changed ")
    assert lines[-1].startswith("What next: ")
    assert lines[2].split() == ["method", "clean", "shifted", "skewed", "average", "gain", "divided", "by"]
    rows = {line.split()[0]: [float(cell) for cell in line.split()[1:-2]] for line in lines[3:6]}
    assert list(rows) == ["zero-shot", "linear-tca", "conditional-tca"]
    assert all(sum(row[:3]) / 3 == pytest.approx(row[3], abs=0.01) for row in rows.values())
    assert rows["zero-shot"][-1] == 0 < rows["linear-tca"][-1]


def test_output_goes_to_the_file_whole_and_the_table_to_the_screen(tmp_path, capsys):
    for name, begins in {"a.json": "{", "a.csv": "section,method", "a.md": "Accuracy", "a.tex": "% Accuracy"}.items():
        assert main([*SYNTHETIC, "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begins)
        assert capsys.readouterr().out.startswith("Accuracy (%) on synthetic")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md", "a.tex"]


def test_a_place_that_cannot_be_written_is_noticed_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    for place in (tmp_path, tmp_path / "nowhere" / "a.json"):
        assert main([*SYNTHETIC, "--output", str(place)]) == 1
        assert capsys.readouterr().err.startswith("clip-tca: output: ")


def test_options_reach_the_methods_and_the_record(capsys):
    options = ["--k", "7", "--shares", "uniform", "--solver", "gradient", "--set", "steps=3", "--set", "lr=0.01"]
    assert main(["eval", "--dataset", "synthetic", "--method", "linear-tca", "--format", "json", *options]) == 0
    parameters = json.loads(capsys.readouterr().out)["methods"][0]["parameters"]
    wanted = {"k": 7, "shares": "uniform", "solver": "gradient", "steps": 3, "lr": 0.01}
    assert {name: parameters[name] for name in wanted} == wanted


def test_stored_embeddings_are_evaluated_as_they_are(pacs, capsys):
    assert main(["eval", "--dataset", str(PACS), "--prompts", "watt", "--method", "zero-shot", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [round(row["accuracy"], 1) for row in record["rows"]] == [91.5, 77.0, 100.0, 74.1]
    assert record["model"] is None
    assert set(record["rows"][0]["per_class"]) == {"dog", "elephant", "giraffe", "guitar", "horse", "house", "person"}


def test_an_ascii_terminal_gets_the_table():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "clip_tca", *SYNTHETIC, "--runs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert r"100.00 \xb1 0.00" in done.stdout


def test_a_result_is_not_overwritten_unless_told_and_its_name_says_what_it_is(tmp_path, capsys):
    file = tmp_path / "a.json"
    assert main([*SYNTHETIC, "-o", str(file)]) == 0
    assert f"\nwritten: {file}\n" in capsys.readouterr().out
    before = file.read_bytes()
    assert main([*SYNTHETIC, "-o", str(file)]) == 1
    assert "exists; name another file, or add --overwrite" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main([*SYNTHETIC, "--runs", "2", "-o", str(file), "--overwrite"]) == 0
    assert file.read_bytes() != before
    assert main([*SYNTHETIC, "-o", str(tmp_path / "a.xyz")]) == 1
    assert "a.xyz; its name must end with .json, .csv, .md, .tex, .txt" in capsys.readouterr().err
    assert main([*SYNTHETIC, "-o", str(tmp_path / "a.xyz"), "--format", "csv"]) == 0


def test_a_warning_about_a_fit_names_the_domain(capsys):
    words = ["eval", "--dataset", "synthetic", "--method", "conditional-tca"]
    assert main([*words, "--setting", "episodic", "--batch-size", "4"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in lines] == [" clean", " shifted", " skewed"], "once, not for each batch"


def test_quiet_shows_no_progress_and_the_same_result(monkeypatch, capsys):
    monkeypatch.setattr("clip_tca.core.progress.DELAY", 0.0)
    shown = []
    for options in ([], ["--quiet"]):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        assert main([*SYNTHETIC, "--method", "t3a", "--method", "mlp2-tca", *options]) == 0
        shown.append(capsys.readouterr())
    assert "adapting" in shown[0].err
    assert shown[1].err == ""
    assert shown[0].out == shown[1].out


def test_a_recipe_runs_and_what_is_given_goes_before_it(tmp_path, capsys):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'title = "mine"\n[all]\nmethod = ["zero-shot", "linear-tca"]\nset = {steps = 5}\nprotocol = "kept"\n'
        '[[run]]\ndataset = "synthetic"\n[[run]]\ndataset = "synthetic"\nbatch-size = 64\nruns = 2\n'
        'classes_present = "1-2"\nmix_domains = true\n'
    )
    words = ["eval", "--recipe", str(recipe), "--format", "json"]
    assert main(words) == 0
    one, two = json.loads(capsys.readouterr().out)["records"]
    assert (one["protocol"], one["batch_size"], two["batch_size"]) == ("kept", 128, 64)
    assert one["methods"][1]["parameters"]["steps"] == 5
    assert (two["seeds"], two["stream"]["classes_present"], two["stream"]["mix_domains"]) == ([0, 1], [1, 2], True)
    assert main([*words, "--protocol=full", "--set", "k=9"]) == 0
    one, _ = json.loads(capsys.readouterr().out)["records"]
    assert (one["protocol"], one["methods"][1]["parameters"]["k"]) == ("full", 9)


def test_an_interrupted_recipe_keeps_its_finished_tables_and_continues(tmp_path, capsys, monkeypatch):
    from clip_tca.evaluation import runner

    recipe, output, evaluate, seen = tmp_path / "two.toml", tmp_path / "two.json", runner.evaluate, []
    recipe.write_text('[[run]]\ndataset = "synthetic"\n[[run]]\ndataset = "synthetic"\nbatch-size = 64\n')

    def stops_at_the_second(*given, **options):
        seen.append(options["batch_size"])
        if len(seen) == 2:
            raise KeyboardInterrupt
        return evaluate(*given, **options)

    monkeypatch.setattr(runner, "evaluate", stops_at_the_second)
    words = ["eval", "--recipe", str(recipe), "--output", str(output)]
    assert main(words) != 0
    assert "zero-shot" in capsys.readouterr().out
    assert not output.exists()
    kept = tmp_path / "two.json.unfinished"
    assert len(json.loads(kept.read_text())["records"]) == 1
    assert main([*words, "--protocol", "kept"]) == 1
    assert "interrupted recipe with other options" in capsys.readouterr().err
    assert main(words) == 0
    assert seen == [128, 64, 64]  # the first was not run again
    assert [record["batch_size"] for record in json.loads(output.read_text())["records"]] == [128, 64]
    assert not kept.exists()


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


@pytest.mark.parametrize("path", sorted((ROOT / "eval" / "recipes").iterdir()), ids=lambda path: path.stem)
def test_our_recipes_are_understood_to_the_last_option(path):
    command = parser()._subparsers._group_actions[0].choices["eval"]
    lines = recipe_lines(path.stem, command, [])
    assert lines
    assert {command.parse_args(line).dataset for line in lines} <= set(BENCHMARKS)


def test_compare_reads_records_and_refuses_other_files(tmp_path, capsys):
    files = {name: str(tmp_path / f"{name}.json") for name in ("one", "two", "bad", "none")}
    assert main([*SYNTHETIC, "--output", files["one"]]) == 0
    assert main([*SYNTHETIC, "--protocol", "kept", "--output", files["two"]]) == 0
    capsys.readouterr()
    assert main(["compare", files["one"], files["two"]]) == 0
    shown = capsys.readouterr().out
    assert shown.index("[one]") < shown.index("all images") < shown.index("[two]") < shown.rindex("images seen")
    assert "data sets" not in shown
    (tmp_path / "bad.json").write_text('{"rows": 3}')
    for name in ("bad", "none"):
        assert main(["compare", files[name]]) == 1
        (error,) = capsys.readouterr().err.splitlines()
        assert files[name] in error


def test_methods_and_data_sets_are_listed(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in (*ON_EMBEDDINGS, *BASES))
    assert "Fisher" in shown
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*BENCHMARKS, "9991 images", "65 classes", "folder", "demo"))


def test_cache_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "store")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("0 entries")
