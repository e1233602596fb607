"""Records of ``clip-tca eval``: reading checks the types of the schema and that the parts agree, or says why not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from safetensors.torch import save_file

import clip_tca
from clip_tca.cli import main
from clip_tca.data.embeddings import synthetic
from clip_tca.results.record import check, read, read_all
from clip_tca.results.rendering import render


@pytest.fixture(scope="module")
def whole() -> dict:
    """A record with everything that can be requested of stored embeddings."""
    methods = ["zero-shot", "linear-tca", "conditional-tca", "t3a+tca"]
    record = clip_tca.evaluate("synthetic", methods=methods, examples=1)
    return json.loads(json.dumps(record))


@pytest.fixture
def record(whole) -> dict:
    return copy.deepcopy(whole)


def refusal(record: dict, folder) -> str:
    """What reading the record says."""
    (folder / "r.json").write_text(json.dumps(record))
    frame = r"r\.json: not a whole record of clip-tca eval \(.*\); evaluate again"
    with pytest.raises(ValueError, match=frame) as error:
        read(folder / "r.json")
    assert "\n" not in str(error.value)
    return str(error.value).split("clip-tca eval (", 1)[1].removesuffix("); evaluate again")


REMOVED = object()


def edit(record: Any, path: str, value: Any) -> None:
    """Set ``rows.0.correct`` to ``value``, or remove it."""
    *parents, name = path.split(".")
    for part in parents:
        record = record[int(part) if isinstance(record, list) else part]
    key = int(name) if isinstance(record, list) else name
    if value is REMOVED:
        del record[key]
    else:
        record[key] = value


@pytest.mark.parametrize("setting", ["transductive", "online", "episodic"])
@pytest.mark.parametrize("protocol", ["full", "watt", "kept"])
def test_what_evaluate_returns_is_a_whole_record_already(setting, protocol):
    methods = ["zero-shot", "linear-tca", "conditional-tca", "t3a"]
    options = {"seeds": 2, "examples": 2, "domains": ["clean", "skewed"]}
    made = clip_tca.evaluate("synthetic", methods=methods, setting=setting, protocol=protocol, **options)
    check(made)
    assert json.loads(json.dumps(made)) == made


def test_reading_gives_back_what_was_written_and_names_the_records_of_a_recipe(whole, tmp_path):
    (tmp_path / "one.json").write_text(render(whole, "json"))
    (tmp_path / "two.json").write_text(render([whole, whole], "json"))
    assert read(tmp_path / "one.json") == [whole]
    assert list(read_all([tmp_path / "one.json", tmp_path / "two.json"])) == ["one", "two#1", "two#2"]


def test_a_matrix_is_one_line_a_row_in_json(whole):
    assert f'"confusion": [\n    {whole["rows"][0]["confusion"][0]},\n' in render(whole, "json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("batch_size", REMOVED, "Object missing required field `batch_size`"),
        ("rows.1.diagnosis.movement", REMOVED, "rows[1].diagnosis: Object missing required field `movement`"),
        ("model", {"model": "m"}, "model: Object missing required field `pretrained`"),
        ("protocol", "half", "protocol: Invalid enum value 'half'"),
        ("rows.0.confusion.2.1", "3", "rows[0].confusion[2][1]: Expected `int`, got `str`"),
        ("rows.1.accuracy", None, "rows[1].accuracy: Expected `float`, got `null`"),
        ("rows.1.accuracy", float("nan"), "rows[1].accuracy: Expected `float`"),
        ("rows.0.confusion.2.1", -3, "rows[0].confusion[2][1]: Expected `int` >= 0"),
        ("rows.0.correct", 10**400, "rows[0].correct: Expected `int` <= "),
        ("examples.groups.0.counts.broken", REMOVED, "examples.groups[0].counts: Object missing required field"),
        ("rows", [], "rows: not one for each method, domain and seed"),
        ("rows.3", REMOVED, "rows: not one for each method, domain and seed"),
        ("methods.3", REMOVED, "rows: not one for each method, domain and seed"),
    ],
)
def test_a_damaged_record_is_refused_with_the_field_that_is_wrong(path, value, message, record, tmp_path):
    edit(record, path, value)
    assert refusal(record, tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("command", "path", "value"),
    [
        (["compare", "--metric", "seconds"], "cost.methods.zero-shot.images", 0),
        (["report", "-o", "r.html"], "rows.0.confusion.3", [1]),
        (["report", "-o", "r.html"], "rows.0.calibration.count", [1]),
        (["explain"], "rows.1.diagnosis.predicted", [1]),
    ],
)
def test_a_record_that_contradicts_itself_is_one_line(command, path, value, record, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    edit(record, path, value)
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert main([*command, "r.json"]) == 1
    assert "r.json: a record contradicts itself (" in capsys.readouterr().err.strip().splitlines()[0]
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; clip-tca eval --output"),
        ("[" * 100_000, "not a record of clip-tca eval"),
        ("[1]", "not a record of clip-tca eval"),
        ('{"records": [3]}', "not a record of clip-tca eval"),
        ('{"records": 3}', "not a record of clip-tca eval"),
        ('{"records": []}', "not a record of clip-tca eval"),
        ('{"schema_version": 0}', "schema 0, this version of clip-tca reads 1; evaluate again"),
        ('{"schema_version": 1}', "not a whole record of clip-tca eval"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=rf"r\.json: {message}"):
        read(tmp_path / "r.json")


def test_embeddings_whose_metadata_is_damaged_are_refused_before_the_work(tmp_path):
    about = {"prompts": {"name": "p", "templates": "{}", "class_names": "raw"}}
    made = synthetic(0, classes=3, dim=8, images=10)
    tensors = {"text.single": made.text.contiguous()}
    for name, (z, y) in made.domains.items():
        tensors |= {f"{name}.embeddings": z, f"{name}.labels": y}
    save_file(tensors, tmp_path / "m.safetensors", {"scale": str(made.scale), "about": json.dumps(about)})
    with pytest.raises(ValueError, match=r"metadata is damaged \(prompts\.templates: Expected `array`"):
        clip_tca.evaluate(str(tmp_path / "m.safetensors"), methods=["zero-shot"])
