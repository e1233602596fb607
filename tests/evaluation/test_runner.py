"""The evaluation: who sees what, what is divided by what, and which numbers may stand beside which."""

from __future__ import annotations

import csv
import io
import json
import logging

import pytest
import torch

import clip_tca
from clip_tca import ZeroShotClassifier
from clip_tca.adapters.registry import ADAPTERS as REGISTERED
from clip_tca.cli.options import parse_value
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.registry import BENCHMARKS
from clip_tca.datasets.synthetic import synthetic
from clip_tca.encoding.timm import TimmEncoder
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.method_spec import MethodSpec, method_specs
from clip_tca.evaluation.protocols import divisor, order, predict
from clip_tca.evaluation.runner import _suitable
from clip_tca.methods.registry import BASES, DEFAULT_METHODS, METHODS, base_method
from clip_tca.methods.registry import ON_EMBEDDINGS as ADAPTERS
from clip_tca.results import published
from clip_tca.results.rendering import render
from clip_tca.results.schema import FORMATS
from clip_tca.results.table import accuracy_table, comparison, summary
from tests.conftest import ROOT
from tests.small_networks import saved, timm_network


@pytest.fixture(scope="module")
def record() -> dict:
    return clip_tca.evaluate("synthetic", methods=["zero-shot", "linear-tca", "linear-tca:reference"], seeds=2)


def row(record: dict, method: str, domain: str, seed: int = 0) -> dict:
    return next(r for r in record["rows"] if (r["method"], r["domain"], r["seed"]) == (method, domain, seed))


# -- protocols ---------------------------------------------------------------------------------------------------------


def test_watt_s_divisors_by_hand():
    """PACS cartoon: 2344 images are 18 whole batches of 128, that is 2304, so that 98.29 % is the ceiling."""
    assert len(order(2344, "full", 128, 0)) == 2344
    assert len(order(2344, "watt", 128, 0)) == len(order(2344, "kept", 128, 0)) == 2304
    assert divisor(2344, 2344, "full") == divisor(2344, 2304, "watt") == 2344
    assert divisor(2344, 2304, "kept") == 2304
    assert round(100 * 2304 / 2344, 2) == 98.29


def test_the_published_ceilings_and_rescaled_numbers_follow_from_the_divisors():
    for known in published.published()["datasets"].values():
        kept = [len(order(n, "kept", 128, 0)) for n in known["images"]]
        assert kept == known["kept_at_batch_128"]
        for method in known["methods"].values():
            for value, again, n, k in zip(
                method["accuracy"], method.get("rescaled_to_kept", []), known["images"], kept, strict=False
            ):
                assert again == pytest.approx(value * n / k, abs=0.006)


def test_a_shuffle_is_a_permutation_that_the_seed_decides():
    assert sorted(order(50, "full", 8, 1).tolist()) == list(range(50))
    assert torch.equal(order(50, "full", 8, 1), order(50, "full", 8, 1))
    assert not torch.equal(order(50, "full", 8, 1), order(50, "full", 8, 2))


@pytest.mark.parametrize(
    ("protocol", "images", "divided"), [("full", 1440, 1440), ("watt", 1408, 1440), ("kept", 1408, 1408)]
)
def test_rows_count_what_the_protocol_says(protocol, images, divided):
    found = row(clip_tca.evaluate("synthetic", methods=["zero-shot"], protocol=protocol), "zero-shot", "shifted")
    assert (found["images"], found["divisor"]) == (images, divided)
    assert found["accuracy"] == pytest.approx(100 * found["correct"] / divided)
    assert sum(c["images"] for c in found["per_class"].values()) == images
    assert sum(c["correct"] for c in found["per_class"].values()) == found["correct"]


def test_a_domain_smaller_than_a_batch_is_named():
    with pytest.raises(ValueError, match=r"clean: 1440 images make no batch of 5000.*--protocol full"):
        clip_tca.evaluate("synthetic", protocol="watt", batch_size=5000)


# -- settings ----------------------------------------------------------------------------------------------------------


def online(shifted, z: torch.Tensor, batch: int) -> torch.Tensor:
    return predict(MethodSpec("linear-tca"), shifted.g, z, shifted.y[: len(z)], "online", batch).classes


def test_online_never_sees_later_images(shifted):
    changed = shifted.z.clone()
    changed[120:] = changed[120:].flip(1)
    assert torch.equal(online(shifted, shifted.z, 40)[:120], online(shifted, changed, 40)[:120])


def test_online_has_seen_the_batch_it_predicts(shifted):
    """The first batch online is the whole of a transductive fit on it."""
    alone = predict(MethodSpec("linear-tca"), shifted.g, shifted.z[:80], shifted.y[:80], "transductive", 80).classes
    assert torch.equal(online(shifted, shifted.z, 80)[:80], alone)


def test_episodic_batches_know_nothing_of_each_other(shifted):
    method = MethodSpec("linear-tca")
    whole = predict(method, shifted.g, shifted.z, shifted.y, "episodic", 60).classes
    part = predict(method, shifted.g, shifted.z[60:120], shifted.y[60:120], "episodic", 60).classes
    assert torch.equal(whole[60:120], part)


def test_batches_of_one_work_in_every_setting(shifted):
    z, y = shifted.z[:5], shifted.y[:5]
    for setting in ("online", "episodic"):
        assert len(predict(MethodSpec("linear-tca"), shifted.g, z, y, setting, 1).classes) == 5
    assert len(predict(MethodSpec("linear-tca"), shifted.g, z, y, "episodic", 2).classes) == 5


@pytest.mark.parametrize("setting", ["transductive", "online", "episodic"])
@pytest.mark.parametrize("name", [name for name in ADAPTERS if name != "linear-tca:reference"])
def test_labels_reach_no_method_but_the_oracle(name, setting, shifted):
    z = shifted.z[:120]
    wrong = torch.zeros(120, dtype=torch.long)
    found = [predict(MethodSpec(name), shifted.g, z, y, setting, 60).classes for y in (shifted.y[:120], wrong)]
    assert torch.equal(*found)


def test_the_oracle_cannot_run_online(shifted):
    with pytest.raises(ValueError, match="oracle"):
        predict(MethodSpec("linear-tca:reference"), shifted.g, shifted.z, shifted.y, "online", 64)


# -- methods -----------------------------------------------------------------------------------------------------------


def test_the_names_are_the_methods_there_are():
    assert ("zero-shot", *REGISTERED) == ADAPTERS
    assert METHODS[len(ADAPTERS) :][:2] == ("tent", "tent+tca")
    for name in BASES:
        assert base_method(name).name == name
    assert set(DEFAULT_METHODS) <= set(METHODS)


def test_all_is_every_method_that_uses_no_labels():
    chosen = method_specs(["all"], {})
    assert not any(method.uses_labels for method in chosen)
    assert {method.name for method in chosen} == set(METHODS) - {"linear-tca:reference"}
    assert [method.name for method in method_specs(["zero-shot", "all"], {})].count("zero-shot") == 1


def test_rivals_are_ours_and_what_was_published_since():
    names = [method.name for method in method_specs(["rivals"], {})]
    assert names[:3] == list(DEFAULT_METHODS)
    assert set(names[3:]) == {"tda", "dmn", "oga", "transclip", "stata", "zlap", "gmm"}
    assert all(base_method(name).sees == "embeddings" for name in names[3:])


def test_all_leaves_out_what_can_not_run_with_the_model(tmp_path, caplog):
    """A vision transformer with its own head: no text, no BatchNorm."""
    encoder = TimmEncoder("test_vit", saved(timm_network("test_vit"), tmp_path / "vit.safetensors"), "cpu")
    data = EmbeddingSet(None, 1.0, {}, head=encoder.head)
    runs = BaseRuns(Embedded(data, {}, encoder=encoder), torch.device("cpu"), 8, 0, progress=False)
    specs = method_specs(["all"], {})
    with caplog.at_level(logging.WARNING, "clip_tca"):
        left = {spec.name for spec in specs} - {spec.name for spec in _suitable(specs, runs, ["all"])}
    without = {"bn", "tpt", "clipartt", "watt-p", "watt-s"}
    assert left == without | {f"{name}+tca" for name in without}
    assert "bn is left out: method: 'bn' changes the statistics of BatchNorm layers" in caplog.text
    with pytest.raises(ValueError, match="method: 'bn' changes"):
        _suitable(specs, runs, ["bn", "all"])


def test_an_option_goes_to_the_methods_that_have_it():
    plain, linear, mlp = method_specs(["zero-shot", "linear-tca", "mlp2-tca"], {"k": 7, "solver": "coral"})
    assert (plain.options, linear.options, mlp.options) == ({}, {"k": 7, "solver": "coral"}, {"k": 7})
    with pytest.raises(ValueError, match=r"'kk'"):
        method_specs(["linear-tca"], {"kk": 7})
    with pytest.raises(ValueError, match=r"'layers'"):
        method_specs(["mlp2-tca"], {"layers": 3})
    with pytest.raises(ValueError, match=r"'tant'.*linear-tca"):
        method_specs(["tant"], {})


def test_values_of_the_command_line():
    words = ["3", "0.5", "1e-3", "true", "None", "auto"]
    assert [parse_value(word) for word in words] == [3, 0.5, 0.001, True, None, "auto"]


def test_bad_values_are_refused_before_any_work():
    for wrong in ({"setting": "offline"}, {"protocol": "half"}, {"batch_size": 0}, {"seeds": 0}, {"methods": ["x"]}):
        with pytest.raises(ValueError, match=r"allowed|at least"):
            clip_tca.evaluate("no such data set", **wrong)


# -- the record --------------------------------------------------------------------------------------------------------


def test_the_record_is_json_and_holds_what_a_reader_needs(record):
    again = json.loads(json.dumps(record))
    assert again == record
    assert again["schema_version"] == 1
    assert (again["dataset"], again["protocol"], again["setting"], again["seeds"]) == (
        "synthetic",
        "full",
        "transductive",
        [0, 1],
    )
    assert {"method", "domain", "correct", "images", "divisor", "accuracy", "uses_labels"} <= set(again["rows"][0])
    assert len(again["rows"]) == 3 * 3 * 2
    linear = next(m for m in again["methods"] if m["name"] == "linear-tca")
    assert linear["parameters"]["solver"] == "monge"
    assert set(again["cost"]["methods"]) == {"zero-shot", "linear-tca", "linear-tca:reference"}
    assert {"torch", "clip-tca", "open_clip_torch"} <= set(again["versions"])


def test_accuracy_is_that_of_the_library(record):
    data = synthetic(0)
    g = ZeroShotClassifier(data.text, data.scale)
    z, y = data.domains["shifted"]
    expected = 100 * (g.predict(z) == y).double().mean().item()
    assert row(record, "zero-shot", "shifted")["accuracy"] == pytest.approx(expected)


def test_only_the_oracle_says_that_it_uses_labels(record):
    assert {r["method"] for r in record["rows"] if r["uses_labels"]} == {"linear-tca:reference"}
    shown = render([record], "table")
    assert "linear-tca:reference (oracle: uses true labels)" in shown
    assert shown.count("oracle") == 1


def test_shares_oracle_is_marked_whatever_the_method_is_called():
    record = clip_tca.evaluate("synthetic", methods=["linear-tca"], options={"shares": "oracle"})
    assert all(r["uses_labels"] for r in record["rows"])
    assert "oracle: uses true labels" in render([record], "table")


def test_an_evaluation_repeats_itself(record):
    again = clip_tca.evaluate("synthetic", methods=["zero-shot", "linear-tca", "linear-tca:reference"], seeds=2)
    assert [r["correct"] for r in again["rows"]] == [r["correct"] for r in record["rows"]]


def test_seeds_give_mean_and_population_standard_deviation(record):
    means = summary({"rows": [{**r, "accuracy": 10.0 + 2 * r["seed"]} for r in record["rows"]]})
    assert means["zero-shot"]["clean"] == (11.0, 1.0)
    assert "±" in render([record], "table")


# -- tables ------------------------------------------------------------------------------------------------------------


def as_if(record: dict, dataset: str, file: str = "clip_vit_b16", **model) -> dict:
    """The record with the data set and model of a benchmark run."""
    domains = published.published(file)["datasets"][dataset]["domains"] if dataset != "own" else ["a"]
    rows = [
        {**record["rows"][0], "method": m, "domain": d, "seed": 0} for m in ("zero-shot", "linear-tca") for d in domains
    ]
    about = {
        "model": "ViT-B-16-quickgelu",
        "pretrained": "openai",
        "weights": "0" * 64,
        "precision": "fp32",
        "device": "cpu",
    }
    data = {**record["data"], "domains": {d: {"images": 1} for d in domains}, "origin": {"kind": "folder"}}
    changed = {"dataset": dataset, "rows": rows, "model": {**about, **model}, "seeds": [0], "data": data}
    return {**record, **changed, "methods": [m for m in record["methods"] if not m["uses_labels"]]}


def test_published_numbers_stand_beside_the_same_model_and_data_only(record):
    assert published.why_not(as_if(record, "pacs")) is None
    assert "ViT-L-14" in published.why_not(as_if(record, "pacs", model="ViT-L-14"))
    assert "laion" in published.why_not(as_if(record, "pacs", pretrained="laion2b"))
    assert "none are known" in published.why_not(as_if(record, "own"))
    subset = as_if(record, "pacs")
    subset["data"] = {**subset["data"], "differences": ["photo 3 images of 1670"]}
    assert "counts differ" in published.why_not(subset)
    shown = render([subset], "table")
    assert "WARNING: counts differ" in shown
    assert "Published numbers are not shown" in shown
    assert "WATT-S" not in shown


def test_a_corruption_set_has_the_rows_of_its_model_at_severity_5(record):
    vit = {"file": "clip_vit_b32", "model": "ViT-B-32-quickgelu"}
    rows = {row.method: row for row in published.published_rows(as_if(record, "cifar100-c", **vit), ["fog:5"])}
    assert rows["WATT-S [WATT]"].accuracy["fog:5"] == rows["WATT-S [WATT]"].average == 51.49
    assert rows["WATT-S [WATT]"].divisor == "all images"
    assert "WATT, NeurIPS 2024" in render([as_if(record, "cifar100-c", **vit)], "table")
    milder = as_if(record, "cifar100-c", **vit)
    milder["data"] = {**milder["data"], "domains": {"fog:3": {"images": 1}}}
    assert "none are known for fog:3 of cifar100-c" in published.why_not(milder)


def test_numbers_of_models_that_nobody_else_has_are_in_no_table(record):
    for dataset in ("cifar10-c", "domainnet"):
        own = as_if(record, dataset, "resnet18", model="torchvision:resnet18", pretrained="mine.pth")
        assert "they are for models that their authors trained, this is torchvision:resnet18" in published.why_not(own)
    theirs = as_if(record, "imagenet-c", "resnet18", model="torchvision:resnet18", pretrained="IMAGENET1K_V1")
    assert published.why_not(theirs) is None
    rows = {row.method: row for row in published.published_rows(theirs, list(theirs["data"]["domains"]))}
    assert rows["LinearTCA [TCA]"] == published.PublishedRow("LinearTCA [TCA]", {}, {}, 16.07, "not stated")
    assert published.published_rows(theirs, ["fog:5"]) == []
    assert "LinearTCA [TCA]" in render([theirs], "table")


def test_every_file_of_published_numbers_is_read_and_names_its_source():
    assert {path.stem for path in (ROOT / "eval" / "reported").glob("*.json")} == set(published.FILES)
    for file in map(published.published, published.FILES):
        assert file["source"]
        for name, known in file["datasets"].items():
            assert set(known["domains"]) <= set(BENCHMARKS[name].domains)
            images = [BENCHMARKS[name].images[domain] for domain in known["domains"]]
            assert known.get("images", images) == images
            for row in known["methods"].values():
                assert len(row.get("accuracy", known["domains"])) == len(known["domains"])
                if "accuracy" in row:
                    assert row["average"] == pytest.approx(sum(row["accuracy"]) / len(row["accuracy"]), abs=0.011)


def test_openai_s_own_file_counts_as_openai_s_weights(record):
    openai = published.published()["weights"][0]
    assert published.why_not(as_if(record, "pacs", pretrained="ViT-B-16.pt", weights=openai)) is None


def test_no_two_divisors_stand_side_by_side_unsaid(record):
    """The README's finding: on one divisor, LinearTCA's gain over WATT-S on PACS is 0.25, not 1.28."""
    shown = accuracy_table(as_if(record, "pacs"))
    published = {line[0]: line for line in shown.sections[1][1]}
    assert published["WATT-S [WATT]"][-1] == "all images, last batch unseen"
    assert published["WATT-S [WATT, rescaled]"][-1] == published["LinearTCA [TCA]"][-1] == "images seen"
    assert all(line[-1] for _, lines in shown.sections for line in lines)
    linear, fair, unfair = (
        float(published[name][-3]) for name in ("LinearTCA [TCA]", "WATT-S [WATT, rescaled]", "WATT-S [WATT]")
    )
    assert round(linear - unfair, 2) == 1.28
    assert round(linear - fair, 2) == 0.25


def test_published_averages_are_those_of_the_file(record):
    for dataset, known in published.published()["datasets"].items():
        rows = {r.method: r for r in published.published_rows(as_if(record, dataset), list(known["domains"]))}
        for method, values in known["methods"].items():
            assert rows[f"{method} [{values['measured_by']}]"].average == pytest.approx(values["average"], abs=0.011)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_every_row(form, record):
    text = render([as_if(record, "officehome")], form)
    for word in ("zero-shot", "linear-tca"):
        assert word in text
    if form != "json":
        assert "WATT-S" in text
        assert "Real World" in text
    assert text.endswith("\n")


def test_csv_has_one_width_and_latex_is_escaped(record):
    lines = list(csv.reader(io.StringIO(render([as_if(record, "pacs")], "csv"))))
    assert {len(line) for line in lines} == {9}
    latex = render([as_if(record, "pacs")], "latex")
    assert r"art\_painting" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    body = latex.split(r"\toprule")[1]
    assert "_" not in body.replace(r"\_", "")
    assert {line.count("&") for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line} == {7}


def test_compare_puts_records_of_a_data_set_into_one_table(record):
    other = {**as_if(record, "pacs"), "protocol": "watt"}
    one, two = comparison({"a": as_if(record, "pacs"), "b": other, "c": record})
    assert [name for name, _ in one.sections][:2] == ["a", "b"]
    assert one.sections[0][1][0][-1] == "all images"
    assert one.sections[1][1][0][-1] == "all images, last batch unseen"
    assert one.sections[2][0].startswith("reported")
    assert [name for name, _ in two.sections] == ["c"]


def test_compare_keeps_published_numbers_under_their_domains(record):
    """Also where records have some of the domains, or have them in another order."""
    whole = as_if(record, "pacs")
    names = list(whole["data"]["domains"])
    one = {**whole, "data": {**whole["data"], "domains": {names[2]: whole["data"]["domains"][names[2]]}}}
    one["rows"] = [row for row in whole["rows"] if row["domain"] == names[2]]
    expected = {line[0]: line[1:5] for line in accuracy_table(whole).sections[1][1]}
    for records in ({"one": one, "whole": whole}, {"whole": whole, "one": one}):
        (both,) = comparison(records)
        domains = both.head[1:5]
        assert {len(line) for _, lines in both.sections for line in lines} == {len(both.head)}
        for line in both.sections[-1][1]:
            assert dict(zip(domains, line[1:5], strict=True)) == dict(zip(names, expected[line[0]], strict=True))


def test_compare_keeps_folders_apart(record):
    mine = {
        name: {**record, "dataset": "folder", "data": {**record["data"], "name": name}} for name in ("cats", "dogs")
    }
    assert [shown.title[0].split(":")[1].strip() for shown in comparison(mine)] == [
        "Accuracy (%) on folder cats",
        "Accuracy (%) on folder dogs",
    ]


def test_the_record_says_how_often_an_online_map_was_solved():
    for batch, refresh in ((8, "auto"), (64, 1)):
        record = clip_tca.evaluate("synthetic", methods=["linear-tca"], setting="online", batch_size=batch)
        assert record["methods"][0]["parameters"]["refresh"] == refresh


def test_the_reference_with_another_balance_is_no_oracle():
    (method,) = method_specs(["linear-tca:reference"], {"shares": "estimated"})
    assert not method.uses_labels
    assert method_specs(["linear-tca:reference"], {})[0].uses_labels


@pytest.mark.parametrize("setting", ["online", "episodic"])
def test_the_oracle_counts_the_whole_test_set_or_nothing(setting):
    with pytest.raises(ValueError, match=f"an oracle.*can't run {setting}"):
        clip_tca.evaluate("synthetic", methods=["linear-tca:reference"], setting=setting)


@pytest.mark.parametrize(
    ("dataset", "more", "says"),
    [
        ("typo", {}, r"dataset: 'typo'; allowed are pacs.*synthetic and FILE\.safetensors"),
        ("folder", {}, "'folder' needs --data-dir"),
        ("demo", {"data_dir": "mine"}, "'demo' has its own pictures; for those of mine use folder"),
        ("synthetic", {"hub_id": "a/b"}, "holds embeddings"),
    ],
)
def test_wrong_data_is_seen_before_a_model_is_loaded(dataset, more, says, monkeypatch):
    monkeypatch.setattr(
        "clip_tca.encoding.open_clip.OpenClipEncoder.identity", property(lambda _: pytest.fail("loaded"))
    )
    with pytest.raises(ValueError, match=says):
        clip_tca.evaluate(dataset, **more)


def test_domains_of_stored_sets_can_be_named_in_any_spelling():
    record = clip_tca.evaluate("synthetic", methods=["zero-shot"], domains=["Shifted"])
    assert list(record["data"]["domains"]) == ["shifted"]


def test_averages_as_published_are_those_published_to_the_digit(record):
    for dataset, known in published.published()["datasets"].items():
        rows = {r.method: r.average for r in published.published_rows(as_if(record, dataset), list(known["domains"]))}
        assert all(rows[f"{m} [{v['measured_by']}]"] == v["average"] for m, v in known["methods"].items())


def test_a_line_end_in_a_name_does_not_break_the_table(record):
    odd = as_if(record, "own")
    odd["data"] = {**odd["data"], "domains": {"a\nb": {}}}
    odd["rows"] = [{**r, "domain": "a\nb"} for r in odd["rows"]]
    assert r"a\nb" in render([odd], "table")
