"""Records of ``clip-tca eval``: reading checks the types of the schema and that the parts agree, or says why not."""

from __future__ import annotations

import copy
import json
import time
from typing import Any, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import torch
from safetensors.torch import save_file
from typing_extensions import NotRequired

import clip_tca
from clip_tca.datasets.synthetic import synthetic
from clip_tca.explanation import Diagnosis
from clip_tca.results.record import check, read
from clip_tca.results.rendering import render
from clip_tca.results.schema import FORMATS, EvaluationRecord, ResultRow
from clip_tca.results.table import accuracy_table
from clip_tca.results.validation import validate


@pytest.fixture(scope="module")
def whole() -> dict:
    """A record with everything that can be requested of stored embeddings."""
    methods = ["zero-shot", "linear-tca", "conditional-tca", "t3a+tca"]
    record = clip_tca.evaluate("synthetic", methods=methods, examples=1, forgetting="clean")
    return json.loads(json.dumps(record))


@pytest.fixture
def record(whole) -> dict:
    return copy.deepcopy(whole)


def refusal(record: dict, folder) -> str:
    """What reading the record says."""
    (folder / "r.json").write_text(json.dumps(record))
    with pytest.raises(
        ValueError, match=r"r\.json: not a whole record of clip-tca eval \(.*\); evaluate again"
    ) as error:
        read(folder / "r.json")
    assert "\n" not in str(error.value)
    return str(error.value).split("clip-tca eval (", 1)[1].removesuffix("); evaluate again")


# -- what evaluate returns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["transductive", "online", "episodic"])
@pytest.mark.parametrize("protocol", ["full", "watt", "kept"])
def test_what_evaluate_returns_is_a_whole_record_already(setting, protocol):
    made = clip_tca.evaluate(
        "synthetic",
        methods=["zero-shot", "linear-tca", "conditional-tca", "t3a"],
        setting=setting,
        protocol=protocol,
        seeds=2,
        examples=2,
        forgetting="clean",
        domains=["clean", "skewed"],
    )
    check(made)
    assert json.loads(json.dumps(made)) == made


def test_reading_gives_back_what_was_written(whole, tmp_path):
    (tmp_path / "r.json").write_text(render(whole, "json"))
    assert read(tmp_path / "r.json") == [whole]


# -- types -------------------------------------------------------------------------------------------------------------


def holes(value: Any, kind: Any, path: tuple = ()) -> list[tuple]:
    """The path of every required field, in the first entry of each list and dictionary."""
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        names = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
        required = [(*path, name) for name in names if name in kind.__required_keys__]
        inner = [hole for name in hints if name in value for hole in holes(value[name], hints[name], (*path, name))]
        return [*required, *inner]
    if get_origin(kind) is NotRequired:
        return holes(value, get_args(kind)[0], path)
    if get_origin(kind) is list and value:
        return holes(value[-1], get_args(kind)[0], (*path, len(value) - 1))
    if get_origin(kind) is dict and value:
        return holes(value[next(iter(value))], get_args(kind)[1], (*path, next(iter(value))))
    return []


def test_a_missing_field_is_named_wherever_it_is(whole, tmp_path):
    paths = holes(whole, EvaluationRecord)
    assert len(paths) > 60
    assert {"batch_size", "per_class", "origin", "limit", "adapted_to", "embeds", "movement"} <= {p[-1] for p in paths}
    for *path, name in paths:
        damaged = copy.deepcopy(whole)
        holder = damaged
        for part in path:
            holder = holder[part]
        del holder[name]
        if name == "schema_version":
            continue
        assert refusal(damaged, tmp_path).endswith(f"'{name}' is missing")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("protocol",), "half", "protocol is 'half', not one of full, watt, kept"),
        (("setting",), ["online"], "setting is a list, not one of transductive, online, episodic"),
        (("batch_size",), True, "batch_size is True, not a whole number of at least 0"),
        (("batch_size",), 1.5, "batch_size is 1.5, not a whole number of at least 0"),
        (("seeds", 0), -1, "seeds[0] is -1, not a whole number of at least 0"),
        (("model",), "ViT", "model is 'ViT', not an object"),
        (("model",), {"model": "m"}, "model: 'pretrained' is missing"),
        (("rows",), {}, "rows is an object, not a list"),
        (("rows", 1, "accuracy"), float("nan"), "rows[1].accuracy is nan, not a finite number"),
        (("rows", 1, "accuracy"), None, "rows[1].accuracy is None, not a finite number"),
        (("rows", 0, "uses_labels"), 0, "rows[0].uses_labels is 0, not true or false"),
        (("rows", 0, "confusion", 2, 1), "3", "rows[0].confusion[2][1] is '3', not a whole number of at least 0"),
        (("rows", 0, "confusion", 2, 1), 10**400, "rows[0].confusion[2][1] is 1"),
        (("rows", 1, "diagnosis", "spread"), float("inf"), "rows[1].diagnosis.spread is inf, not a finite number"),
        (("rows", 1, "diagnosis", "chosen"), None, "rows[1].diagnosis.chosen is None, not a list"),
        (("rows", 1, "diagnosis", "agreement"), {"zero-shot": 1}, "rows[1].diagnosis.agreement: 'adapted' is missing"),
        (("stream", "kind"), "zipf", "stream.kind is 'zipf', not one of iid, sorted, dirichlet"),
        (("rows", 0, "metrics", "ece"), "3", "rows[0].metrics.ece is '3', not a finite number"),
        (("data", "domains", "clean", "images"), "9", "data.domains.clean.images is '9', not a whole number"),
        (("cost", "methods", "zero-shot"), 3, "cost.methods.zero-shot is 3, not an object"),
        (("versions",), {"torch": 2}, "versions.torch is 2, not a string"),
        (("examples", "groups", 0, "counts", "fixed"), -2, "examples.groups[0].counts.fixed is -2"),
        (("examples", "groups", 0, "counts"), {"fixed": 1}, "examples.groups[0].counts: 'broken' is missing"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_needed(path, value, message, record, tmp_path):
    holder = record
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    assert refusal(record, tmp_path).startswith(message)


def test_unknown_fields_are_left_alone(record):
    record["note"] = record["rows"][0]["note"] = object()
    check(record)


def test_records_from_before_confusion_and_diagnoses_still_load(record, tmp_path):
    for name in ("examples", "forgetting"):
        del record[name]
    del record["data"]["ignored"]
    del record["stream"]
    for row in record["rows"]:
        del row["confusion"], row["metrics"], row["calibration"]
        row.pop("diagnosis", None)
    (tmp_path / "old.json").write_text(json.dumps(record))
    assert len(read(tmp_path / "old.json")) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "not a record of clip-tca eval"),
        ("{}", "not a record of clip-tca eval"),
        ('{"records": 3}', "not a record of clip-tca eval"),
        ('{"records": []}', "holds no record"),
        ('{"schema_version": 0}', "schema 0, this version of clip-tca reads 1; evaluate again"),
        ('{"schema_version": 1}', "not a whole record of clip-tca eval"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "r.json")


def test_optional_fields_can_be_declared_in_either_way():
    class Base(TypedDict, total=False):
        often: int

    fields = {"always": list[dict[str, float | None]], "seldom": NotRequired[str]}
    kind = TypedDict("kind", fields)
    validate({"always": [{"x": None, "y": 1}]}, kind)
    validate({"always": [], "seldom": "s"}, kind)
    validate({}, Base)
    for value, expected, message in [
        ((), kind, r"it is \(\), not an object"),
        ({"seldom": "s"}, kind, "'always' is missing"),
        ({"always": [], "seldom": 1}, kind, "seldom is 1, not a string"),
        ({"always": [{"x": "1"}]}, kind, r"always\[0\]\.x is '1', not a finite number"),
        ({"often": "x"}, Base, "often is 'x', not a whole number"),
    ]:
        with pytest.raises(ValueError, match=message):
            validate(value, expected)


# -- parts that must agree ---------------------------------------------------------------------------------------------


def edit(path: str, value: Any):
    """An edit of a record: ``rows.0.correct`` to ``value``."""

    def apply(record: dict) -> None:
        *parents, name = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in parents:
            record = record[part]
        record[name] = value

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["rows"].clear(), "it has no rows"),
        (lambda r: r["rows"].pop(), "rows: there is none for t3a+tca, skewed, 0"),
        (lambda r: r["rows"].append(r["rows"][0]), "rows: zero-shot, clean, 0 is unknown or a duplicate"),
        (lambda r: r["methods"].pop(), "rows: t3a+tca, clean, 0 is unknown or a duplicate"),
        (edit("rows.0.domain", "moon"), "rows: there is none for zero-shot, clean, 0"),
        (edit("seeds", [0, 1]), "rows: there is none for "),
        (edit("rows.0.correct", 10**6), "rows[0]: 1000000 correct of 1440 images, divided by 1440"),
        (edit("rows.0.divisor", 0), "rows[0]: "),
        (edit("rows.0.accuracy", 99.9), "rows[0]: accuracy 99.9 of zero-shot is not "),
        (lambda r: r["rows"][0]["per_class"].popitem(), "rows[0]: per_class: its classes are not those of the data"),
        (lambda r: r["data"]["classes"].append("new"), "rows[0]: per_class: its classes are not those of the data"),
        (lambda r: r["rows"][0]["confusion"].pop(), "rows[0]: confusion: not a matrix of 6 × 6"),
        (lambda r: r["rows"][0]["confusion"][3].pop(), "rows[0]: confusion: not a matrix of 6 × 6"),
        (edit("rows.1.diagnosis.dim", 0), "rows[1]: diagnosis: of no embeddings"),
        (edit("rows.1.diagnosis.classes", 3), "rows[1]: diagnosis: not of 6 classes"),
        (edit("rows.1.diagnosis.predicted", [1]), "rows[1]: diagnosis: not of 6 classes"),
        (edit("rows.0.calibration.count", [1]), "rows[0]: calibration: its lists are not of one length"),
        (edit("rows.0.calibration.accuracy.14", 101), "rows[0]: calibration: ("),
        (edit("rows.1.diagnosis.changed", -0.5), "rows[1]: diagnosis: -0.5 of the predictions change"),
        (
            lambda r: r["rows"][1]["diagnosis"].pop("uncertainty_mean"),
            "rows[1]: diagnosis: 'uncertainty_mean' is missing",
        ),
        (lambda r: r["rows"][1]["diagnosis"].pop("shares"), "rows[1]: diagnosis: 'shares' is missing"),
        (edit("rows.1.diagnosis.shares", [1.0]), "rows[1]: diagnosis: not of 6 classes"),
        (lambda r: r["rows"][2]["diagnosis"].pop("counts"), "rows[2]: diagnosis: 'counts' is missing"),
        (edit("cost.methods.zero-shot.images", 0), "cost.methods: a method has seen no images"),
        (edit("forgetting", []), "forgetting: 0 source-like domains, not 1"),
        (lambda r: r["forgetting"].pop(), "forgetting: there is none for t3a+tca, skewed"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(change, message, record, tmp_path):
    change(record)
    assert refusal(record, tmp_path).startswith(message)


def test_a_class_has_an_accuracy_if_it_has_images_and_the_sum_is_that_of_the_row(record, tmp_path):
    name, score = next(iter(record["rows"][0]["per_class"].items()))
    before = dict(score)
    score["accuracy"] = None
    assert refusal(record, tmp_path) == f"rows[0]: per_class.{name}: its figures contradict each other"
    score.update(before, correct=before["correct"] - 1)
    assert refusal(record, tmp_path).startswith("rows[0]: per_class: the correct predictions are not ")


def test_a_large_confusion_matrix_is_checked_in_little_time():
    matrix = [[0] * 1000 for _ in range(1000)]
    began = time.process_time()
    validate(matrix, get_type_hints(ResultRow)["confusion"], "confusion")
    assert time.process_time() - began < 2


# -- metadata of stored embeddings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"model": {"model": "ViT"}}, r"its metadata is damaged \(model: 'pretrained' is missing\)"),
        (
            {"prompts": {"name": "p", "templates": "{}", "class_names": "raw"}},
            r"prompts\.templates is '{}', not a list",
        ),
    ],
)
def test_embeddings_whose_metadata_is_damaged_are_refused_before_the_work(about, message, tmp_path):
    made = synthetic(0, classes=3, dim=8, images=10)
    tensors = {"text.single": made.text}
    for name, (z, y) in made.domains.items():
        tensors |= {f"{name}.embeddings": z, f"{name}.labels": y}
    metadata = {"scale": str(made.scale), "about": json.dumps(about)}
    save_file(
        {name: torch.as_tensor(value).contiguous() for name, value in tensors.items()},
        tmp_path / "m.safetensors",
        metadata,
    )
    with pytest.raises(ValueError, match=message):
        clip_tca.evaluate(str(tmp_path / "m.safetensors"), methods=["zero-shot"])


def test_the_types_name_every_field_that_is_written(whole):
    """So that a field that someone adds is added to the schema too."""

    def unnamed(value: Any, kind: Any, path: str = "") -> list[str]:
        if is_typeddict(kind):
            hints = get_type_hints(kind)
            extra = [f"{path}.{name}" for name in value if name not in hints]
            return extra + [e for n in value if n in hints for e in unnamed(value[n], hints[n], f"{path}.{n}")]
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        inner = get_args(kind)[-1] if get_origin(kind) in (dict, list) else None
        return [e for item in items for e in unnamed(item, inner, path)] if inner else []

    assert unnamed(whole, EvaluationRecord) == []
    assert set(whole["rows"][1]["diagnosis"]) <= set(get_type_hints(Diagnosis))


# -- render ------------------------------------------------------------------------------------------------------------


def test_render_takes_one_record_or_several_and_prints_a_table_by_default(whole):
    assert render(whole) == render([whole]) == render((whole,), format="table")
    assert render([whole, whole]) == f"{render(whole)}\n{render(whole)}"
    assert json.loads(render(whole, "json")) == whole
    assert json.loads(render([whole, whole], "json")) == {"records": [whole, whole]}


def test_an_unknown_format_is_named_with_those_allowed(whole):
    with pytest.raises(ValueError, match="format: 'html'; allowed are table, json, csv, markdown, latex"):
        render(whole, "html")
    assert all(render(whole, name) for name in FORMATS)


@pytest.mark.parametrize(
    ("methods", "accuracies", "lead"),
    [
        (["zero-shot", "linear-tca", "conditional-tca"], [50, 90, 60],
         "conditional-tca gains 10.00 points over zero-shot on average, without labels: 50.00 → 60.00."),
        (["zero-shot", "linear-tca", "conditional-tca"], [50, 90, 45],
         "conditional-tca loses 5.00 points against zero-shot on average: 50.00 → 45.00."),
        (["zero-shot", "linear-tca"], [50, 50],
         "linear-tca neither gains nor loses against zero-shot on average: 50.00."),
        (["zero-shot", "t3a"], [50, 51],
         "t3a gains 1.00 points over zero-shot on average, without labels: 50.00 → 51.00."),
        (["zero-shot", "linear-tca:reference"], [50, 90], None),
        (["zero-shot"], [50], None),
        (["conditional-tca"], [50], None),
    ],
)  # fmt: skip
def test_the_table_begins_with_what_was_gained_or_lost_by_the_method_that_leads(methods, accuracies, lead):
    """It is named beforehand, not the best of the record, and never an oracle."""
    record = clip_tca.evaluate("synthetic", methods=methods)
    for row in record["rows"]:
        row["accuracy"] = accuracies[methods.index(row["method"])]
    shown = render(record).splitlines()
    assert shown[: 2 if lead else 0] == ([lead, ""] if lead else [])
    assert shown[2 if lead else 0].startswith("Accuracy (%) on synthetic")
    assert render(record, "markdown").startswith("Accuracy (%)")


def test_the_demo_s_table_says_what_it_is_and_what_to_type_next(record):
    record["dataset"], record["data"]["origin"] = "demo", {"kind": "demo"}
    notes = accuracy_table(record).notes
    assert "the demo's numbers" in notes[0]
    assert notes[1].endswith("clip-tca eval --dataset folder --data-dir DIR")
    assert notes[2].endswith("clip-tca eval --dataset pacs")


def test_a_table_of_a_model_with_its_own_head_says_what_zero_shot_is_there(record):
    note = "zero-shot: the model's own head, unadapted."
    assert note not in accuracy_table(record).notes
    record["model"] = {"model": "timm:x", "pretrained": None, "weights": "0" * 64, "precision": "fp32", "device": "cpu"}
    record["model"]["head"] = 1000
    assert note in accuracy_table(record).notes


@pytest.mark.parametrize(("model", "head"), [("demo", "photo (seen)"), ("ViT-B-32", "photo")])
def test_a_domain_that_the_bundled_model_was_trained_on_is_marked(model, head, record):
    record["dataset"], record["model"] = "pacs", {"model": model, "pretrained": "", "weights": "0" * 64}
    record["model"] |= {"precision": "fp32", "device": "cpu"}
    old = next(iter(record["data"]["domains"]))
    record["data"]["domains"] = {"photo" if name == old else name: n for name, n in record["data"]["domains"].items()}
    for row in record["rows"]:
        row["domain"] = "photo" if row["domain"] == old else row["domain"]
    table = accuracy_table(record)
    assert head in table.head
    assert any("seen these pictures in training" in note for note in table.notes) == (model == "demo")
