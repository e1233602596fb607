"""Published results of the CLIP literature stand beside the same model, images and setting, and beside nothing else."""

from __future__ import annotations

import copy

import pytest

import clip_tca
from clip_tca.datasets.registry import BENCHMARKS
from clip_tca.results.published import FILES, in_setting, published, published_rows, why_not
from clip_tca.results.rendering import render
from clip_tca.results.suite_table import suite_tables

MODEL = {
    "model": "ViT-B-16-quickgelu",
    "pretrained": "openai",
    "weights": "0" * 64,
    "precision": "fp32",
    "device": "cpu",
}
PLAIN = {"kind": "iid", "gamma": None, "classes_present": None, "long_tail": None, "mix_domains": False}
ELEVEN = published("clip_vit_b16_literature")["averages"]["datasets"]


@pytest.fixture(scope="module")
def made() -> dict:
    return clip_tca.evaluate("synthetic", methods=["zero-shot", "linear-tca"], domains=["clean"])


def of(made: dict, dataset: str, **more) -> dict:
    """The record as if it were of this data set, read from a folder."""
    record = copy.deepcopy(made)
    for row in record["rows"]:
        row["domain"] = "test"
    record["data"] |= {"domains": {"test": {"images": 1}}, "origin": {"kind": "folder"}}
    return {**record, "dataset": dataset, "model": MODEL, **more}


def test_rows_of_a_data_set_are_those_of_the_table(made):
    rows = {row.method: row for row in published_rows(of(made, "eurosat"), ["test"])}
    assert {name: row.accuracy["test"] for name, row in rows.items()} == {
        "CLIP [GTA-CLIP]": 47.69, "TransCLIP [GTA-CLIP]": 65.42, "GTA-CLIP [GTA-CLIP]": 76.35,
    }  # fmt: skip
    assert {row.divisor for row in rows.values()} == {"all images"}
    large = of(made, "eurosat", model={**MODEL, "model": "ViT-L-14-quickgelu"})
    assert published_rows(large, ["test"])[1].average == 69.64


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


def test_a_row_stands_beside_its_own_setting_alone(made):
    assert why_not(of(made, "dtd")) is None
    online = of(made, "dtd", setting="online")
    assert "none are known for this setting" in why_not(online)
    assert published_rows(online, ["test"]) == []
    drawn = of(made, "dtd", stream={**PLAIN, "classes_present": [1, 4]})
    assert "none are known for this setting" in why_not(drawn)
    assert why_not(of(made, "dtd", stream=PLAIN)) is None
    reason = why_not(of(made, "dtd", stream={**PLAIN, "kind": "sorted"}))
    assert reason.startswith("published numbers are not shown")
    assert reason.endswith("this setting and order of images, and this run has class after class")


def test_a_hub_copy_with_another_split_has_no_published_rows_beside_it(made):
    record = of(made, "caltech101")
    record["data"]["differences"] = ["the hub copy has another split (VTAB's), published results are for CoOp's"]
    assert "the counts differ" in why_not(record)
    assert published_rows(record, ["test"]) == []


def test_every_average_is_over_data_sets_of_the_registry_and_names_its_source():
    for file in map(published, FILES):
        if averages := file.get("averages"):
            assert set(averages["datasets"]) <= set(BENCHMARKS)
            assert len(averages["datasets"]) == 11
            assert averages["source"]
            assert all(each["divided_by"] and each["measured_by"] for each in averages["scenarios"])


def test_the_average_over_all_eleven_is_a_table_of_its_own_with_the_published_averages(made):
    records = [of(made, name) for name in ELEVEN]
    assert suite_tables(records[:-1]) == []
    (table,) = suite_tables(records)
    assert table.head == ["method", *ELEVEN, "average", "gain", "divided by"]
    measured = {row[0]: row for row in table.sections[0][1]}
    assert measured["zero-shot"][1:12] == [measured["zero-shot"][-3]] * 11
    reported = {row[0]: row[-3] for row in table.sections[1][1]}
    assert reported["StatA [StatA]"] == "69.9"
    assert reported["TransCLIP [StatA]"] == "70.3"
    assert "OGA [OGA]" not in reported
    shown = render(records)
    assert "Accuracy (%) on ImageNet and ten fine-grained data sets: transductive" in shown


def test_the_average_is_that_of_the_data_sets(made):
    records = [of(made, name) for name in ELEVEN]
    for number, record in enumerate(records):
        for row in record["rows"]:
            row["accuracy"] = 50.0 + number + (11.0 if row["method"] == "linear-tca" else 0.0)
    (table,) = suite_tables(records)
    assert [row[-3:-1] for row in table.sections[0][1]] == [["55.00", "+0.00"], ["66.00", "+11.00"]]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"setting": "episodic", "batch_size": 64, "stream": {"classes_present": [1, 4]}},
            {"StatA": "70.4", "ZLaP": "27.5"},
        ),
        ({"setting": "online", "batch_size": 128, "stream": {"kind": "dirichlet", "gamma": 0.01}}, {"StatA": "68.9"}),
        ({"setting": "online", "batch_size": 128, "stream": {"kind": "sorted", "gamma": None}}, {"TDA": "66.6"}),
        ({"setting": "online", "batch_size": 32}, {"OGA": "68.5"}),
        ({"setting": "online", "batch_size": 64}, {}),
        ({"setting": "episodic", "batch_size": 64, "stream": {"classes_present": [1, 5]}}, {}),
    ],
)
def test_averages_stand_beside_their_own_setting_batch_size_and_stream(more, expected, made):
    (table,) = suite_tables([of(made, name, **more) for name in ELEVEN])
    reported = {row[0].split(" [")[0]: row[-3] for _, rows in table.sections[1:] for row in rows}
    assert expected.items() <= reported.items()
    assert bool(reported) == bool(expected)


def test_numbers_by_data_set_average_to_what_is_printed_for_each_setting():
    """To within what one digit leaves open: half a tenth in each number, and in the average."""
    found = [each for each in published("clip_vit_b16_literature")["averages"]["scenarios"] if "accuracy" in each]
    assert len(found) == 20
    for each in found:
        assert each["accuracy"].keys() == each["averages"].keys()
        for method, values in each["accuracy"].items():
            assert len(values) == len(ELEVEN)
            assert sum(values) / len(values) == pytest.approx(each["averages"][method], abs=0.1)


def test_a_data_set_alone_has_its_column_of_the_tables_over_all(made):
    few = of(made, "eurosat", setting="episodic", batch_size=64, stream={**PLAIN, "classes_present": [1, 4]})
    rows = {row.method: row for row in published_rows(few, ["test"])}
    assert rows["StatA [StatA]"].accuracy == {"test": 56.8}
    assert rows["MOON [MOON]"].average == 53.7
    assert {row.divisor for row in rows.values()} == {"images of 1,000 drawn batches"}
    assert "2607.15851" in render(few)
    assert published_rows({**few, "batch_size": 65}, ["test"]) == []
    (table,) = suite_tables([{**few, "dataset": name} for name in ELEVEN])
    reported = {row[0]: row[1:13] for row in table.sections[1][1]}
    assert reported["StatA [StatA]"][3] == "56.8"
    assert reported["MOON [MOON]"][-1] == "74.6"


def test_image_by_image_has_numbers_of_its_own(made):
    rows = {
        row.method: row.average
        for row in published_rows(of(made, "imagenet", setting="online", batch_size=1), ["test"])
    }
    assert rows["DMN-ZS [DMN]"] == 72.25
    assert "tuned on test data" in render(of(made, "imagenet-a", setting="online", batch_size=1))


def test_averages_are_not_shown_beside_other_images_or_another_model(made):
    records = [of(made, name) for name in ELEVEN]
    records[3]["data"]["differences"] = ["test 5400 images of 8100"]
    (table,) = suite_tables(records)
    assert len(table.sections) == 1
    assert table.notes == ["Published averages are not shown: eurosat: test 5400 images of 8100."]
    other = [of(made, name, model={**MODEL, "pretrained": "laion2b"}) for name in ELEVEN]
    assert len(suite_tables(other)[0].sections) == 1


def test_a_record_without_a_when_is_shown_for_every_setting_but_not_for_a_drawn_stream(made):
    assert in_setting(of(made, "pacs", setting="online"), None)
    assert not in_setting(of(made, "pacs", stream={"long_tail": 50.0}), None)
