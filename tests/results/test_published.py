"""Published results of the CLIP literature stand beside the same model, images and setting, and beside nothing else."""

from __future__ import annotations

import copy

import pytest

import clip_tca
from clip_tca.data.registry import BENCHMARKS
from clip_tca.results.published import FILES, published, published_rows, why_not
from clip_tca.results.rendering import render
from clip_tca.results.table import suite_tables

PLAIN = {"kind": "iid", "gamma": None, "classes_present": None, "long_tail": None, "mix_domains": False}
FEW = {"setting": "episodic", "batch_size": 64, "stream": {**PLAIN, "classes_present": [1, 4]}}
MODEL = {"model": "ViT-B-16-quickgelu", "pretrained": "openai", "weights": "0" * 64, "precision": "fp32"}
ELEVEN = published("clip_vit_b16_literature")["averages"]["datasets"]


@pytest.fixture(scope="module")
def made() -> dict:
    return clip_tca.evaluate("synthetic", methods=["linear-tca", "zero-shot"], domains=["clean"])


def of(made: dict, dataset: str, model: dict | None = None, **more) -> dict:
    """The record as if it were of this data set and model, read from a folder."""
    record = copy.deepcopy(made)
    for row in record["rows"]:
        row["domain"] = "test"
    record["data"] |= {"domains": {"test": {"images": 1}}, "origin": {"kind": "folder"}}
    return {**record, "dataset": dataset, "model": {**MODEL, "device": "cpu", **(model or {})}, **more}


def test_rows_of_a_data_set_are_those_of_the_table(made):
    rows = published_rows(of(made, "eurosat"), ["test"])
    expected = {"CLIP [GTA-CLIP]": 47.69, "TransCLIP [GTA-CLIP]": 65.42, "GTA-CLIP [GTA-CLIP]": 76.35}
    expected |= {"Frolic [ADAPT]": 58.5, "ADAPT, transductive [ADAPT]": 65.93}
    assert {row.method: row.accuracy["test"] for row in rows} == expected
    assert published_rows(of(made, "eurosat", {"model": "ViT-L-14-quickgelu"}), ["test"])[1].average == 69.64


@pytest.mark.parametrize("file", ["clip_vit_b16_literature", "clip_vit_b32_literature", "clip_vit_l14_literature"])
def test_the_rows_average_to_what_the_authors_print(file):
    """They print the mean of these eleven and CUB; its numbers are in the same table."""
    cub = {"b16": (55.20, 62.23, 66.76), "b32": (52.33, 56.70, 60.48), "l14": (62.03, 70.18, 76.56)}
    printed = {"b16": (64.35, 69.80, 73.81), "b32": (60.97, 65.59, 69.55), "l14": (71.44, 76.00, 79.22)}
    key = file.split("_")[2]
    datasets = [published(file)["datasets"][name] for name in ELEVEN]
    for method, other, average in zip(("CLIP", "TransCLIP", "GTA-CLIP"), cub[key], printed[key], strict=True):
        values = [known["methods"][method]["average"] for known in datasets]
        assert (sum(values) + other) / 12 == pytest.approx(average, abs=0.0051)


@pytest.mark.parametrize(("method", "average"), [("FreeTTA", 68.42), ("DOTA", 69.71), ("MTA", 64.63)])
def test_rows_of_one_image_at_a_time_average_to_what_is_printed(method, average, made):
    """Over the ten sets without ImageNet."""
    online = {"setting": "online", "batch_size": 1}
    found = [
        {row.method.split(" [")[0]: row for row in published_rows(of(made, name, **online), ["test"])}
        for name in ELEVEN
    ]
    values = [rows[method].average for rows, name in zip(found, ELEVEN, strict=True) if name != "imagenet"]
    assert sum(values) / 10 == pytest.approx(average, abs=0.01)
    assert all("arXiv" in rows[method].source for rows in found)


@pytest.mark.parametrize(
    ("method", "fine", "imagenets"),
    [
        ("TDA", 67.53, 65.01),
        ("ZERO", 64.21, 63.74),
        ("BCA", 68.58, 65.57),
        ("DOTA, in ADAPT's tables", 69.01, 65.76),
        ("DPE", 69.40, 65.93),
        ("ADAPT", 70.76, 66.53),
        ("Frolic", 71.10, 66.00),
        ("ADAPT, transductive", 72.43, 67.09),
    ],
)
def test_rows_of_adapt_s_tables_average_to_what_they_print(method, fine, imagenets, made):
    transductive = method in ("Frolic", "ADAPT, transductive")
    setting = {"setting": "transductive"} if transductive else {"setting": "online", "batch_size": 1}
    variants = [name for name in BENCHMARKS if name.startswith("imagenet") and name != "imagenet-c"]
    assert len(variants) == 5
    for names, average in (([name for name in ELEVEN if name != "imagenet"], fine), (variants, imagenets)):
        found = [published_rows(of(made, name, **setting), ["test"]) for name in names]
        values = [row.average for rows in found for row in rows if row.method.split(" [")[0] == method]
        assert sum(values) / len(names) == pytest.approx(average, abs=0.0051)


def test_rows_on_corrupted_images_average_to_what_is_printed_and_stand_beside_online_runs(made):
    rows = [
        row
        for file in map(published, FILES)
        for known in file["datasets"].values()
        for row in known["methods"].values()
        if row["measured_by"] == "SubTTA"
    ]
    assert len(rows) == 4 * 7
    assert all(sum(row["accuracy"]) / 15 == pytest.approx(row["average"], abs=0.0101) for row in rows)
    record = of(made, "cifar10-c", setting="online", batch_size=200)
    record["data"]["domains"] = {"fog:5": {"images": 10000}}
    shown = {row.method: row.accuracy["fog:5"] for row in published_rows(record, ["fog:5"])}
    assert shown["ZERO [SubTTA]"] == 72.44
    assert shown["ECALP [SubTTA]"] == 71.24


def test_averages_over_data_sets_are_those_of_their_numbers_and_name_their_source():
    """To within what one digit leaves open: half a tenth in each number, and in the average."""
    for averages in [file["averages"] for file in map(published, FILES) if "averages" in file]:
        assert averages["source"]
        assert len(set(averages["datasets"]) & set(BENCHMARKS)) == 11
        for each in averages["scenarios"]:
            assert each["divided_by"]
            for method, values in each.get("accuracy", {}).items():
                assert sum(values) / 11 == pytest.approx(each["averages"][method], abs=0.1)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"setting": "online"}, "none are known for this setting and order of images"),
        ({"stream": {**PLAIN, "kind": "sorted"}}, "none are known for this setting and order of images"),
        ({"stream": {**PLAIN, "long_tail": 50.0}}, "none are known for this setting and order of images"),
        ({"model": {"pretrained": "laion2b"}}, "this is ViT-B-16-quickgelu / laion2b"),
    ],
)
def test_a_row_stands_beside_its_own_model_and_setting_alone(more, reason, made):
    record = of(made, "dtd", **more)
    assert (reason or "") in (why_not(record) or "")
    assert bool(published_rows(record, ["test"])) == (reason is None)
    assert ("Published numbers are not shown" in render(record)) == (reason is not None)


def test_the_average_over_all_eleven_is_a_table_of_its_own(made):
    records = [of(made, name) for name in ELEVEN]
    for number, record in enumerate(records):
        for row in record["rows"]:
            row["accuracy"] = 50.0 + number + (11.0 if row["method"] == "linear-tca" else 0.0)
    assert suite_tables(records[:-1]) == []
    (table,) = suite_tables(records)
    assert table.head == ["method", *ELEVEN, "average", "gain", "divided by"]
    assert [[row[0], row[1], *row[-3:-1]] for row in table.sections[0][1]] == [
        ["linear-tca", "61.00", "66.00", "+11.00"],
        ["zero-shot", "50.00", "55.00", "+0.00"],
    ]
    assert "Accuracy (%) on ImageNet and ten fine-grained data sets: transductive" in render(records)
    records[3]["data"]["differences"] = ["test 5400 images of 8100"]
    (table,) = suite_tables(records)
    assert [name for name, _ in table.sections] == ["measured"]
    assert table.notes[0] == "WARNING: counts differ from the published ones: eurosat: test 5400 images of 8100."


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"StatA": "69.9", "TransCLIP": "70.3"}),
        (FEW, {"StatA": "70.4", "ZLaP": "27.5", "MOON": "74.6"}),
        ({"setting": "online", "batch_size": 128, "stream": {"kind": "dirichlet", "gamma": 0.01}}, {"StatA": "68.9"}),
        ({"setting": "online", "batch_size": 32}, {"OGA": "68.5"}),
        ({"setting": "online", "batch_size": 64}, {}),
        ({**FEW, "stream": {"classes_present": [1, 5]}}, {}),
        ({"model": {"pretrained": "laion2b"}}, {}),
    ],
)
def test_averages_stand_beside_their_own_model_setting_batch_size_and_stream(more, expected, made):
    more = {**more, "stream": {**PLAIN, **more.get("stream", {})}}
    (table,) = suite_tables([of(made, name, **more) for name in ELEVEN])
    reported = {row[0].split(" [")[0]: row[-3] for _, rows in table.sections[1:] for row in rows}
    assert expected.items() <= reported.items()
    assert bool(reported) == bool(expected)


def test_a_data_set_alone_has_its_column_of_the_tables_over_all(made):
    few = of(made, "eurosat", **FEW)
    rows = {row.method: row for row in published_rows(few, ["test"])}
    assert rows["StatA [StatA]"].accuracy == {"test": 56.8}
    assert rows["MOON [MOON]"].average == 53.7
    assert {row.divisor for row in rows.values()} == {"images of 1,000 drawn batches"}
    assert "2607.15851" in render(few)
    assert "tuned on test data" in render(of(made, "imagenet-a", setting="online", batch_size=1))
