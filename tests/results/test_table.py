"""Tables of records, in every format: what stands in them, by hand."""

from __future__ import annotations

import copy
import csv
import io
import json

import pytest

import clip_tca
from clip_tca.cli import main
from clip_tca.results.rendering import render
from clip_tca.results.schema import FORMATS
from clip_tca.results.table import accuracy_table, comparison, metric_table, worst_tenth

ECE = {("clean", 0): 10.0, ("clean", 1): 12.0, ("skewed", 0): 20.0, ("skewed", 1): 30.0}
MODEL = {"model": "m", "pretrained": None, "weights": "0" * 64, "precision": "fp32", "device": "cpu"}


@pytest.fixture(scope="module")
def made() -> dict:
    return clip_tca.evaluate("synthetic", methods=["t3a", "zero-shot"], domains=["clean", "skewed"], seeds=2)


@pytest.fixture
def record(made) -> dict:
    """Of zero-shot, accuracy 100 − ECE, ECE 10 and 12 on clean, 20 and 30 on skewed; of t3a half the ECE."""
    told = copy.deepcopy(made)
    for row in told["rows"]:
        row["metrics"] |= {"ece": ECE[row["domain"], row["seed"]] * (0.5 if row["method"] == "t3a" else 1), "nll": None}
        row["accuracy"] = 100 - row["metrics"]["ece"]
    return told


def many(record: dict, accuracies: list[float]) -> dict:
    """The record as if zero-shot had run once for each accuracy, on one domain."""
    row = next(row for row in record["rows"] if row["method"] == "zero-shot" and row["domain"] == "clean")
    rows = [{**row, "seed": n, "accuracy": value, "metrics": {"ece": value}} for n, value in enumerate(accuracies)]
    data = {**record["data"], "domains": {"clean": record["data"]["domains"]["clean"]}}
    return {**record, "rows": rows, "seeds": list(range(len(rows))), "data": data}


def test_gains_are_over_zero_shot_wherever_it_stands_and_methods_that_saw_batches_are_marked(record):
    table = accuracy_table(record)
    assert table.title[0].startswith("Accuracy (%) on synthetic: transductive, protocol full, batch 128, mean ± std of")
    assert table.head == ["method", "clean", "skewed", "average", "gain", "divided by"]
    assert table.sections[0][1] == [
        ["t3a (in batches)", "94.50 ± 0.50", "87.50 ± 2.50", "91.00", "+9.00", "all images"],
        ["zero-shot", "89.00 ± 1.00", "75.00 ± 5.00", "82.00", "+0.00", "all images"],
    ]
    assert "in batches: the method sees 128 images at a time, not the whole domain." in table.notes


def test_intervals_stand_in_brackets_and_are_of_accuracy_alone():
    rows = {"zero-shot": (8, 0), "t3a": (10, 4)}
    record = clip_tca.evaluate("synthetic", methods=list(rows), domains=["clean"])
    for row in record["rows"]:
        row["correct"], row["changed"] = rows[row["method"]]
        row |= {"images": 10, "divisor": 10, "accuracy": 10 * row["correct"]}
    ((_, (before, after)),) = metric_table(record, "accuracy", intervals=True).sections
    assert before[1:4] == ["80.00 (49.0 to 94.3)", "80.00", "+0.00"]
    assert after[3] == "+20.00 (-29.2 to +69.2)"  # ± (1.96 √4 + 1) of 10 images
    with pytest.raises(ValueError, match="intervals: they are of accuracy, not of ece"):
        render(record, metrics=["ece"], intervals=True)
    with pytest.raises(SystemExit):
        main(["eval", "--dataset", "synthetic", "--intervals", "--metric", "ece"])


def test_one_measure_is_shown_by_domain(record):
    table = metric_table(record, "ece")
    assert table.title[0].startswith("ECE, % on synthetic: transductive")
    assert table.head == ["method", "clean", "skewed", "average", "change", "divided by"]
    assert table.sections[0][1] == [
        ["t3a (in batches)", "5.50 ± 0.50", "12.50 ± 2.50", "9.00", "-9.00", "images seen"],
        ["zero-shot", "11.00 ± 1.00", "25.00 ± 5.00", "18.00", "+0.00", "images seen"],
    ]


def test_several_measures_are_averages_over_domains_and_what_no_run_has_is_a_gap(record):
    """In the first run the mean is 15, in the second 21: 18 ± 3."""
    table = metric_table(record, ["ece", "nll", "accuracy"])
    assert table.head == ["method", "ECE, %", "NLL", "accuracy, %", "divided by"]
    assert table.sections[0][1][1] == ["zero-shot", "18.00 ± 3.00", "", "82.00 ± 3.00", "all images"]
    key = ("zero-shot", "clean", 0)  # without it, the runs are 20 and (12 + 30) / 2
    del next(row for row in record["rows"] if (row["method"], row["domain"], row["seed"]) == key)["metrics"]["ece"]
    assert metric_table(record, "ece").sections[0][1][1][1:4] == ["12.00", "25.00 ± 5.00", "20.50"]


def test_time_and_memory_come_from_the_cost_of_the_record(record):
    seconds = {"adapting_seconds": 1.0, "predicting_seconds": 2.0, "base_seconds": 3.0, "images": 1000}
    record["cost"]["methods"]["t3a"] |= {**seconds, "memory_bytes": 7_000_000, "memory_bytes_per_image": 1500.0}
    record["cost"]["methods"]["zero-shot"] |= {"memory_bytes": None, "memory_bytes_per_image": None}
    table = metric_table(record, ["seconds", "peak_memory", "memory"])
    assert table.head == ["method", "ms/image", "peak memory, MB", "KB/image", "divided by"]
    t3a, zero_shot = table.sections[0][1]
    assert t3a[1:4] == ["6.000", "7", "1.5"]
    assert zero_shot[2:4] == ["", ""]
    assert table.notes[0].startswith("Time and memory of the method alone")


def test_cost_is_shown_against_plain_clip_which_an_adapter_needs_first(record):
    """100 images: plain CLIP 1 s; t3a embeds them itself in 3 s and adapts in 1 s; zero-shot adds nothing."""
    spent = {"adapting_seconds": 0.0, "predicting_seconds": 0.0, "base_seconds": 0.0, "base_memory_bytes": None}
    spent |= {"images": 100, "embeds": False, "memory_bytes": None, "memory_bytes_per_image": None}
    plain, t3a = {**spent, "base_seconds": 1.0}, {**spent, "base_seconds": 3.0, "adapting_seconds": 1.0}
    record["cost"]["methods"] = {"plain CLIP": {**plain, "embeds": True}, "t3a": {**t3a, "embeds": True}}
    record["cost"]["methods"]["zero-shot"] = spent
    lines = list(csv.reader(io.StringIO(render(record, "csv").split("\n\n")[1])))
    shown = [["plain CLIP", "10.00", "1.00", ""], ["t3a", "40.00", "4.00", ""], ["zero-shot", "10.00", "1.00", ""]]
    assert [line[1:5] for line in lines[1:]] == shown


def test_the_worst_tenth_is_of_runs_and_is_shown_from_ten_on(record):
    assert worst_tenth([float(n) for n in range(100)]) == sum(range(10)) / 10
    assert worst_tenth([float(n) for n in range(100)], higher=False) == sum(range(90, 100)) / 10
    assert "worst tenth" not in accuracy_table(many(record, [50.0] * 9)).head
    ten = many(record, [50.0, 40.0, *[60.0] * 8])
    table = accuracy_table(ten)
    assert table.head == ["method", "clean", "average", "worst tenth", "gain", "divided by"]
    assert table.sections[0][1] == [["zero-shot", "57.00 ± 6.40", "57.00", "40.00", "+0.00", "all images"]]
    assert metric_table(ten, "ece").sections[0][1][0][2:4] == ["57.00", "60.00"]  # less is better
    both = comparison({"few": many(record, [50.0] * 2), "ten": ten})[0]
    assert [lines[0][3] for _, lines in both.sections] == ["", "40.00"]
    rows = []
    for seed in range(10):  # each run is bad on another domain, so that no run is bad on average
        for domain, value in (("clean", 20.0 + 60 * (seed % 2)), ("skewed", 80.0 - 60 * (seed % 2))):
            rows.append({**record["rows"][0], "domain": domain, "seed": seed, "accuracy": value})
    line = accuracy_table({**record, "rows": rows, "seeds": list(range(10))}).sections[0][1][0]
    assert line[1:5] == ["50.00 ± 30.00", "50.00 ± 30.00", "50.00", "50.00"]


def test_compare_ends_with_the_average_over_data_sets_of_records_made_alike(record):
    methods = [method for method in record["methods"] if method["name"] == "zero-shot"]
    one, other = ({**many(record, [value]), "methods": methods} for value in (50.0, 80.0))
    other["dataset"] = "other"
    *tables, average = comparison({"a": one, "b": other})
    assert len(tables) == 2
    assert average.title[0].startswith("Accuracy (%) on 2 data sets: ")
    assert average.head == ["method", "synthetic", "other", "average", "gain", "divided by"]
    assert average.sections[0][1] == [["zero-shot", "50.00", "80.00", "65.00", "+0.00", "all images"]]
    assert len(comparison({"a": one, "b": {**other, "protocol": "kept"}})) == 2  # not made alike
    assert len(comparison({"a": one, "b": other}, "ece")) == 2
    twice = comparison({"a": one, "b": other, "c": one, "d": other})
    assert [table.title[0].split(":")[0] for table in twice[2:]] == ["Accuracy (%) on 2 data sets"] * 2


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_columns_asked_for_and_json_has_all(form, record):
    text = render(record, form, ["macro_f1", "ece"])
    if form == "json":
        assert json.loads(text) == record
        assert json.loads(render([record, record], form)) == {"records": [record, record]}
        return
    assert "macro F1" in text
    assert "18.00" in text
    assert "skewed" not in text
    assert render([record, record], form) == f"{render(record, form)}\n{render(record, form)}"


@pytest.mark.parametrize(
    ("methods", "accuracies", "lead"),
    [
        (["linear-tca", "zero-shot", "conditional-tca"], [90, 50, 60],
         "conditional-tca gains 10.00 points over zero-shot on average, without labels: 50.00 → 60.00."),
        (["zero-shot", "linear-tca", "conditional-tca"], [50, 90, 45],
         "conditional-tca loses 5.00 points compared with zero-shot on average: 50.00 → 45.00."),
        (["zero-shot", "linear-tca"], [50, 50],
         "linear-tca neither gains nor loses compared with zero-shot on average: 50.00."),
        (["zero-shot", "linear-tca:reference"], [50, 90], None),
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


def test_notes_say_what_the_numbers_are_of(record):
    demo = {**record, "dataset": "demo", "data": {**record["data"], "origin": {"kind": "demo"}}}
    assert accuracy_table(demo).notes[1].endswith("clip-tca eval --dataset folder --data-dir DIR")
    note = "zero-shot: the model's own head, not adapted."
    assert note in accuracy_table({**record, "model": {**MODEL, "head": 1000}}).notes


@pytest.mark.parametrize(("model", "head"), [("demo", "photo (seen)"), ("ViT-B-32", "photo")])
def test_a_domain_that_the_bundled_model_was_trained_on_is_marked(model, head, record):
    record["data"]["domains"] = {"photo": {"images": 1}}
    table = accuracy_table({**record, "dataset": "pacs", "model": {**MODEL, "model": model}})
    assert head in table.head
    assert any("seen these pictures in training" in note for note in table.notes) == (model == "demo")
    other = {**record, "dataset": "pacs", "model": {**MODEL, "model": "other"}}
    (both, *_) = comparison({"a": {**record, "dataset": "pacs", "model": {**MODEL, "model": model}}, "b": other})
    assert head in both.head


def test_a_table_says_where_class_shares_were_given():
    methods = ["zero-shot", "linear-tca"]
    given = clip_tca.evaluate("synthetic", methods=methods, options={"shares": [1.0] * 6})
    for record, told in ((given, True), (clip_tca.evaluate("synthetic", methods=methods), False)):
        text = render(record)
        assert ("with the class shares that were given" in text) == told
        assert ("Class shares were given (--shares): linear-tca." in text) == told
        assert ("without labels" in text) != told
