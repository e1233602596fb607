"""Tables of the measures that ``--metric`` names, and of many runs: what stands in them, by hand."""

from __future__ import annotations

import copy
import csv
import io
import json

import pytest

import clip_tca
from clip_tca.cli import main
from clip_tca.results.metric_table import metric_comparison, metric_table
from clip_tca.results.metrics import METRICS, check_metrics
from clip_tca.results.rendering import render
from clip_tca.results.schema import FORMATS
from clip_tca.results.table import accuracy_table
from clip_tca.results.values import worst_tenth


@pytest.fixture(scope="module")
def made() -> dict:
    return clip_tca.evaluate("synthetic", methods=["zero-shot", "t3a"], domains=["clean", "skewed"], seeds=2)


@pytest.fixture
def record(made) -> dict:
    """ECE 10 and 12 on clean, 20 and 30 on skewed; of t3a half of that."""
    told = copy.deepcopy(made)
    for row in told["rows"]:
        ece = {("clean", 0): 10.0, ("clean", 1): 12.0, ("skewed", 0): 20.0, ("skewed", 1): 30.0}
        row["metrics"]["ece"] = ece[row["domain"], row["seed"]] * (0.5 if row["method"] == "t3a" else 1)
        row["metrics"]["nll"] = None
    return told


def many(record: dict, accuracies: list[float]) -> dict:
    """The record as if zero-shot had run once for each accuracy, on one domain."""
    row = next(row for row in record["rows"] if row["method"] == "zero-shot" and row["domain"] == "clean")
    rows = [
        {**row, "seed": seed, "accuracy": value, "metrics": {"ece": value}} for seed, value in enumerate(accuracies)
    ]
    data = {**record["data"], "domains": {"clean": record["data"]["domains"]["clean"]}}
    return {**record, "rows": rows, "seeds": list(range(len(rows))), "data": data}


def test_one_measure_is_shown_by_domain(record):
    table = metric_table(record, "ece")
    assert table.title[0].startswith("ECE, % on synthetic: transductive")
    assert table.head == ["method", "clean", "skewed", "average", "change", "divided by"]
    zero_shot, t3a = table.sections[0][1]
    assert zero_shot == ["zero-shot", "11.00 ± 1.00", "25.00 ± 5.00", "18.00", "+0.00", "images seen"]
    assert t3a == ["t3a (in batches)", "5.50 ± 0.50", "12.50 ± 2.50", "9.00", "-9.00", "images seen"]


def test_several_measures_are_averages_over_domains(record):
    """In the first run the mean is 15, in the second 21: 18 ± 3. A measure that no run has is a gap."""
    table = metric_table(record, ["ece", "nll", "accuracy"])
    assert table.head == ["method", "ECE, %", "NLL", "accuracy, %", "divided by"]
    line = table.sections[0][1][0]
    assert line[:3] == ["zero-shot", "18.00 ± 3.00", ""]
    assert line[-1] == "all images"


def test_a_run_without_a_value_of_one_domain_is_the_mean_of_the_others(record):
    """Without the value of clean in the first run, the runs are 20 and (12 + 30) / 2."""
    del record["rows"][0]["metrics"]["ece"]
    line = metric_table(record, "ece").sections[0][1][0]
    assert line[1:4] == ["12.00", "25.00 ± 5.00", "20.50"]


def test_time_and_memory_come_from_the_cost_of_the_record(record):
    record["cost"]["methods"]["t3a"] = {
        "adapting_seconds": 1.0,
        "predicting_seconds": 2.0,
        "base_seconds": 3.0,
        "base_memory_bytes": 5_000_000,
        "images": 1000,
        "embeds": False,
    }
    record["cost"]["methods"]["zero-shot"]["memory_bytes"] = None
    names = ["seconds", "peak_memory", "memory"]
    table = metric_table(record, names)
    assert table.head[1:4] == ["ms/image", "peak memory, MB", "KB/image"]
    assert table.sections[0][1][1][1:4] == ["6.000", "5", ""]
    assert table.sections[0][1][0][2] == ""
    of_all = {"memory_bytes": 7_000_000, "memory_bytes_per_image": 1500.0}  # older records have them not
    record["cost"]["methods"]["t3a"] |= of_all
    assert metric_table(record, names).sections[0][1][1][2:4] == ["7", "1.5"]
    assert metric_table(record, "seconds").head == ["method", "ms/image", "divided by"]


def test_accuracy_alone_is_the_table_it_always_was(record):
    assert metric_table(record, ["accuracy"]) == accuracy_table(record)
    assert render(record) == render(record, metrics=()) != render(record, metrics=["ece"])


def test_the_worst_tenth_by_hand():
    assert worst_tenth([float(n) for n in range(100)]) == sum(range(10)) / 10
    assert worst_tenth([float(n) for n in range(100)], higher=False) == sum(range(90, 100)) / 10
    assert worst_tenth([3.0, 1.0, 2.0]) == 1.0


def test_ten_runs_have_a_column_for_the_worst_tenth(record):
    assert "worst tenth" not in accuracy_table(many(record, [50.0] * 9)).head
    ten = many(record, [50.0, 40.0, *[60.0] * 8])
    table = accuracy_table(ten)
    assert table.head == ["method", "clean", "average", "worst tenth", "gain", "divided by"]
    assert table.sections[0][1] == [["zero-shot", "57.00 ± 6.40", "57.00", "40.00", "+0.00", "all images"]]
    by_metric = metric_table(ten, "ece")  # less is better: the worst is the largest
    assert by_metric.sections[0][1][0][2:4] == ["57.00", "60.00"]
    both = metric_comparison({"few": many(record, [50.0] * 2), "ten": ten}, "accuracy")[0]
    assert [lines[0][3] for _, lines in both.sections] == ["", "40.00"]


def test_several_measures_in_ten_runs_have_their_worst_tenths_under_the_means(record):
    ten = many(record, [50.0, 40.0, *[60.0] * 8])
    names = ["accuracy", "ece", "seconds"]
    assert len(metric_table(many(record, [50.0] * 9), names).sections) == 1
    means, (title, lines) = metric_table(ten, names).sections
    assert means[1][0][1:3] == ["57.00 ± 6.40", "57.00 ± 6.40"]
    assert title == "worst tenth of the runs"
    assert lines == [["zero-shot", "40.00", "60.00", "", "all images"]]  # of ECE the highest; time has no runs
    assert "worst tenth of the runs,zero-shot,40.00,60.00,,all images" in render(ten, "csv", names)
    both = metric_comparison({"few": many(record, [50.0] * 2), "ten": ten}, names)[0]
    assert [name for name, _ in both.sections] == ["few", "ten", "ten: worst tenth of the runs"]


def test_the_worst_tenth_is_of_runs_not_of_domains(record):
    """Each run is bad on another domain, so that no run is bad on average."""
    rows = []
    for seed in range(10):
        for domain, value in (("clean", 20.0 + 60 * (seed % 2)), ("skewed", 80.0 - 60 * (seed % 2))):
            rows.append({**record["rows"][0], "domain": domain, "seed": seed, "accuracy": value})
    line = accuracy_table({**record, "rows": rows, "seeds": list(range(10))}).sections[0][1][0]
    assert line[1:5] == ["50.00 ± 30.00", "50.00 ± 30.00", "50.00", "50.00"]


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "json"])
def test_every_format_has_the_columns_asked_for(form, record):
    text = render(record, form, ["macro_f1", "ece"])
    assert "macro F1" in text
    assert "18.00" in text
    assert "skewed" not in text
    if form == "csv":
        assert {len(line) for line in csv.reader(io.StringIO(text))} == {5}
    assert json.loads(render(record, "json", ["ece"])) == json.loads(render(record, "json"))


def test_names_of_measures_are_checked():
    assert check_metrics(["macro-f1", "ece", "ece"]) == ["macro_f1", "ece"]
    with pytest.raises(ValueError, match=f"metric: 'f1'; allowed are {', '.join(METRICS)}"):
        check_metrics("f1")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--metric", "ecce"], 2, "argument --metric: 'ecce'; allowed are accuracy, macro_accuracy"),
        (["--metric", "unknown_auroc"], 1, "metric: unknown_auroc needs unknown classes; add --unknown-classes"),
        (["--unknown-classes", "cow"], 1, "unknown_classes: 'cow' is not a class of this data set"),
    ],
)
def test_a_measure_that_can_not_be_shown_is_one_line(words, code, says, capsys):
    try:
        found = main(["eval", "--dataset", "synthetic", "--method", "zero-shot", *words])
    except SystemExit as stopped:
        found = stopped.code
    assert found == code
    assert says in capsys.readouterr().err


def test_compare_shows_the_measures_of_records_and_gaps_for_old_ones(record, tmp_path, capsys):
    old = copy.deepcopy(record)
    for row in old["rows"]:
        del row["metrics"]
    for name, content in (("new", record), ("old", old)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    words = [str(tmp_path / "new.json"), str(tmp_path / "old.json")]
    assert main(["compare", *words, "--metric", "ece", "--format", "csv"]) == 0
    lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert [line[4] for line in lines[1:]] == ["18.00", "9.00", "", ""]
