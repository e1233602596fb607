"""The evaluation: who sees what, what is divided by what, and which numbers may stand beside which."""

from __future__ import annotations

import csv
import io
import logging

import pytest
import torch

import clip_tca
from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.data.embeddings import EmbeddingSet, synthetic
from clip_tca.data.registry import BENCHMARKS
from clip_tca.encoding.backbone import TimmEncoder
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.method_spec import MethodSpec, method_specs, predict
from clip_tca.evaluation.runner import _suitable
from clip_tca.evaluation.streams import divisor, order
from clip_tca.methods.base import Task
from clip_tca.methods.registry import DEFAULT_METHODS, METHODS, ON_EMBEDDINGS, base_method
from clip_tca.results import published
from clip_tca.results.rendering import render
from clip_tca.results.table import accuracy_table, comparison, summary
from tests.conftest import ROOT
from tests.small_networks import saved, timm_network

ORACLE = "linear-tca:reference"


@pytest.fixture(scope="module")
def record() -> dict:
    return clip_tca.evaluate("synthetic", methods=["zero-shot", "linear-tca", ORACLE], seeds=2)


def row(record: dict, method: str, domain: str, seed: int = 0) -> dict:
    return next(r for r in record["rows"] if (r["method"], r["domain"], r["seed"]) == (method, domain, seed))


def test_watt_s_divisors_by_hand():
    """PACS cartoon: 2344 images are 18 whole batches of 128, that is 2304, so that 98.29 % is the ceiling."""
    assert len(order(2344, "full", 128, 0)) == 2344
    assert len(order(2344, "watt", 128, 0)) == len(order(2344, "kept", 128, 0)) == 2304
    assert divisor(2344, 2344, "full") == divisor(2344, 2304, "watt") == 2344
    assert divisor(2344, 2304, "kept") == 2304


@pytest.mark.parametrize(
    ("protocol", "images", "divided"), [("full", 1440, 1440), ("watt", 1408, 1440), ("kept", 1408, 1408)]
)
def test_rows_count_what_the_protocol_says(protocol, images, divided):
    found = row(clip_tca.evaluate("synthetic", methods=["zero-shot"], protocol=protocol), "zero-shot", "shifted")
    assert (found["images"], found["divisor"]) == (images, divided)
    assert found["accuracy"] == pytest.approx(100 * found["correct"] / divided)
    assert sum(c["images"] for c in found["per_class"].values()) == images
    assert sum(c["correct"] for c in found["per_class"].values()) == found["correct"]


def classes(shifted, z: torch.Tensor, setting: str, batch: int, name: str = "linear-tca") -> torch.Tensor:
    return predict(MethodSpec(name), shifted.g, z, shifted.y[: len(z)], setting, batch).classes


def test_online_has_seen_its_batch_and_never_later_images(shifted):
    changed = shifted.z.clone()
    changed[120:] = changed[120:].flip(1)
    assert torch.equal(classes(shifted, shifted.z, "online", 40)[:120], classes(shifted, changed, "online", 40)[:120])
    alone = classes(shifted, shifted.z[:80], "transductive", 80)
    assert torch.equal(classes(shifted, shifted.z, "online", 80)[:80], alone)


@pytest.mark.parametrize("name", ["linear-tca", "mlp2-tca", "conditional-tca"])
@pytest.mark.parametrize("batch", [1, 60])
def test_an_episodic_adapter_forgets_every_batch(name, batch, shifted):
    """By hand: a new adapter for each batch, also for a batch of one, which joins what was there before it."""
    z = shifted.z[:120]
    found = predict(MethodSpec(name), shifted.g, z, shifted.y[:120], "episodic", batch).logits
    alone = []
    for rows in z.split(batch):
        adapter = MethodSpec(name).adapter(shifted.g)
        alone.append((adapter.partial_fit(rows) if batch == 1 else adapter.fit(rows)).logits(rows))
    torch.testing.assert_close(found, torch.cat(alone))
    online = predict(MethodSpec(name), shifted.g, z, shifted.y[:120], "online", batch).logits
    assert not torch.allclose(found, online)


@pytest.mark.parametrize("name", ["t3a", "tda"])
def test_an_episodic_run_of_a_base_method_forgets_every_batch(name):
    """By hand: a new method for each batch."""
    made = synthetic(0)
    (z, y), g = made.domains["shifted"], made.classifier()
    shown = order(len(y), "full", 300, 0)
    alone = torch.cat([base_method(name)(Task(g))(g.prepared(z[part]))[1] for part in shown.split(300)])
    options = {"methods": [name], "batch_size": 300, "domains": ["shifted"]}
    found = {s: clip_tca.evaluate("synthetic", setting=s, **options)["rows"][0] for s in ("episodic", "online")}
    nll = float(torch.nn.functional.cross_entropy(alone.double(), y[shown]))
    assert found["episodic"]["correct"] == int((alone.argmax(dim=1) == y[shown]).sum())
    assert found["episodic"]["metrics"]["nll"] == pytest.approx(nll, rel=1e-5)
    assert found["online"]["metrics"]["nll"] != pytest.approx(nll, rel=1e-3)


@pytest.mark.parametrize("setting", ["transductive", "online", "episodic"])
def test_tca_on_top_adds_to_the_base_method_what_the_classifier_s_own_scores_change(setting):
    """LinearTCA⁺ by hand: base logits + g(Wz) − g(z); certainty is that of the base method."""
    made = synthetic(0)
    (z, y), g = made.domains["shifted"], made.classifier()
    shown, method = order(len(y), "full", 300, 0), base_method("tda")(Task(g))
    adapter, logits, expected = LinearTCA(g, refresh=1), [], []
    for part in shown.split(300):
        if setting == "episodic":
            method.reset()
        logits.append(method(g.prepared(z[part]))[1])
    batches = [(shown, torch.cat(logits))] if setting == "transductive" else zip(shown.split(300), logits, strict=True)
    for part, base in batches:
        if setting == "online":
            adapter.partial_fit(z[part], logits=base)
        else:
            adapter.fit(z[part], logits=base)
        expected.append(base + adapter.logits(z[part]) - g.logits(g.prepared(z[part])))
    options = {"methods": ["tda+tca"], "setting": setting, "batch_size": 300, "domains": ["shifted"]}
    (found,) = clip_tca.evaluate("synthetic", **options)["rows"]
    scores = torch.cat(expected).double()
    assert found["correct"] == int((scores.argmax(dim=1) == y[shown]).sum())
    nll = float(torch.nn.functional.cross_entropy(scores, y[shown]))
    assert found["metrics"]["nll"] == pytest.approx(nll, rel=1e-4)


@pytest.mark.parametrize("setting", ["transductive", "online", "episodic"])
@pytest.mark.parametrize("name", [name for name in ON_EMBEDDINGS if name != ORACLE])
def test_labels_reach_no_method_but_the_oracle(name, setting, shifted):
    z, wrong = shifted.z[:120], torch.zeros(120, dtype=torch.long)
    found = [predict(MethodSpec(name), shifted.g, z, y, setting, 60).classes for y in (shifted.y[:120], wrong)]
    assert torch.equal(*found)


def test_other_labels_give_the_same_predictions_in_a_whole_run(tmp_path):
    """Right answers differ; how often each class was predicted does not."""
    made = synthetic(0)
    z, y = made.domains["shifted"]
    found = []
    for name, labels in {"true": y, "wrong": (y + 1) % 6}.items():
        EmbeddingSet(made.text, made.scale, {"d": (z, labels)}).save(tmp_path / f"{name}.safetensors")
        methods = ["zero-shot", "linear-tca", "conditional-tca", "t3a", "t3a+tca"]
        run = clip_tca.evaluate(str(tmp_path / f"{name}.safetensors"), methods=methods, setting="online")
        found.append([torch.tensor(r["confusion"]).sum(dim=0).tolist() for r in run["rows"]])
    assert found[0] == found[1]


def test_names_that_stand_for_several_methods():
    everything = method_specs(["zero-shot", "all"], {})
    assert sorted(method.name for method in everything) == sorted(set(METHODS) - {ORACLE})
    rivals = [method.name for method in method_specs(["rivals"], {})]
    assert rivals[:3] == list(DEFAULT_METHODS)
    older, newer = {"tda", "dmn", "oga", "transclip", "stata", "zlap", "gmm"}, {"dota", "bca", "ecalp", "dpe"}
    assert set(rivals[3:]) == older | newer


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


def test_an_option_goes_to_the_methods_that_have_it_and_to_a_base_method_before_tca():
    plain, linear, mlp = method_specs(["zero-shot", "linear-tca", "mlp2-tca"], {"k": 7, "solver": "coral"})
    assert (plain.options, linear.options, mlp.options) == ({}, {"k": 7, "solver": "coral"}, {"k": 7})
    (plus,) = method_specs(["tent+tca"], {"lr": 0.5, "k": 9, "steps": 3})
    assert (plus.base_options, plus.options) == ({"lr": 0.5, "steps": 3}, {"k": 9})


@pytest.mark.parametrize(
    ("dataset", "wrong", "says"),
    [
        ("none", {"methods": ["linear-tca"], "options": {"kk": 7}}, "'kk'"),
        ("none", {"methods": ["mlp2-tca"], "options": {"layers": 3}}, "'layers'"),
        ("none", {"methods": ["tant"]}, "'tant'; did you mean tent"),
        ("none", {"setting": "offline"}, "setting: 'offline'.*; allowed are"),
        ("none", {"protocol": "half"}, "protocol: 'half'; allowed are"),
        ("none", {"batch_size": 0}, "batch_size: 0; allowed are"),
        ("none", {"seeds": 0}, "seeds: 0; allowed are"),
        ("none", {}, r"dataset: 'none'; allowed are pacs.*synthetic, FILE\.safetensors"),
        ("pcas", {}, r"^dataset: 'pcas'; did you mean pacs\?$"),
        ("folder", {}, "'folder' needs --data-dir"),
        ("demo", {"data_dir": "mine"}, "'demo' has its own pictures; for those of mine use folder"),
        ("synthetic", {"hub_id": "a/b"}, "holds embeddings"),
        ("synthetic", {"protocol": "watt", "batch_size": 5000}, "clean: 1440 images make no batch of 5000.*--protocol"),
    ],
)
def test_what_is_wrong_is_named_before_a_model_is_loaded(dataset, wrong, says, monkeypatch):
    unloaded = property(lambda _: pytest.fail("loaded"))
    monkeypatch.setattr("clip_tca.encoding.open_clip.OpenClipEncoder.identity", unloaded)
    with pytest.raises(ValueError, match=says):
        clip_tca.evaluate(dataset, **wrong)


def test_accuracy_is_that_of_the_library_and_repeats_itself(record):
    data = synthetic(0)
    z, y = data.domains["shifted"]
    expected = 100 * (ZeroShotClassifier(data.text, data.scale).predict(z) == y).double().mean().item()
    assert row(record, "zero-shot", "shifted")["accuracy"] == pytest.approx(expected)
    again = clip_tca.evaluate("synthetic", methods=["zero-shot", "linear-tca", ORACLE], seeds=2)
    assert [r["correct"] for r in again["rows"]] == [r["correct"] for r in record["rows"]]


def test_seeds_give_mean_and_population_standard_deviation(record):
    means = summary({"rows": [{**r, "accuracy": 10.0 + 2 * r["seed"]} for r in record["rows"]]})
    assert means["zero-shot"]["clean"] == (11.0, 1.0)


def test_an_oracle_says_so_whatever_it_is_called(record):
    assert {r["method"] for r in record["rows"] if r["uses_labels"]} == {ORACLE}
    assert render([record], "table").count(f"{ORACLE} (oracle: uses true labels)") == 1
    renamed = clip_tca.evaluate("synthetic", methods=["linear-tca"], options={"shares": "oracle"})
    assert all(r["uses_labels"] for r in renamed["rows"])
    assert "oracle: uses true labels" in render([renamed], "table")
    assert not method_specs([ORACLE], {"shares": "estimated"})[0].uses_labels


@pytest.mark.parametrize("setting", ["online", "episodic"])
def test_the_oracle_counts_the_whole_test_set_or_nothing(setting):
    with pytest.raises(ValueError, match=f"an oracle.*can't run {setting}"):
        clip_tca.evaluate("synthetic", methods=[ORACLE], setting=setting)


def test_the_record_says_how_often_an_online_map_was_solved():
    for batch, refresh in ((8, "auto"), (64, 1)):
        options = {"methods": ["linear-tca"], "setting": "online", "domains": ["clean"], "batch_size": batch}
        assert clip_tca.evaluate("synthetic", **options)["methods"][0]["parameters"]["refresh"] == refresh


def as_if(record: dict, dataset: str, **model) -> dict:
    """The record with the data set and model of a benchmark run."""
    domains = published.published()["datasets"][dataset]["domains"]
    rows = [{**record["rows"][0], "method": m, "domain": d} for m in ("zero-shot", "linear-tca") for d in domains]
    about = {"model": "ViT-B-16-quickgelu", "pretrained": "openai", "weights": "0" * 64, "precision": "fp32"}
    data = {**record["data"], "domains": {d: {"images": 1} for d in domains}, "origin": {"kind": "folder"}}
    model = {**about, "device": "cpu", **model}
    changed = {"dataset": dataset, "rows": rows, "model": model, "seeds": [0], "data": data}
    return {**record, **changed, "methods": [m for m in record["methods"] if not m["uses_labels"]]}


def test_published_numbers_stand_beside_the_same_model_and_data_only(record):
    openai = published.published()["weights"][0]
    assert published.why_not(as_if(record, "pacs", pretrained="ViT-B-16.pt", weights=openai)) is None
    assert "laion" in published.why_not(as_if(record, "pacs", pretrained="laion2b"))
    subset = as_if(record, "pacs")
    subset["data"] = {**subset["data"], "differences": ["photo 3 images of 1670"]}
    shown = render([subset], "table")
    assert "WARNING: counts differ" in shown
    assert "Published numbers are not shown" in shown
    assert "WATT-S" not in shown


def test_every_file_of_published_numbers_adds_up_and_names_its_source():
    assert {path.stem for path in (ROOT / "eval" / "reported").glob("*.json")} == set(published.FILES)
    for file in map(published.published, published.FILES):
        assert file["source"]
        for name, known in file["datasets"].items():
            images = [BENCHMARKS[name].images[domain] for domain in known["domains"]]
            assert known.get("images", images) == images
            kept = [len(order(n, "kept", 128, 0)) for n in images]
            assert known.get("kept_at_batch_128", kept) == kept
            for line in known["methods"].values():
                if accuracy := line.get("accuracy"):
                    assert line["average"] == pytest.approx(sum(accuracy) / len(known["domains"]), abs=0.011)
                rescaled = [value * n / k for value, n, k in zip(accuracy or [], images, kept, strict=False)]
                if "rescaled_to_kept" in line:
                    assert line["rescaled_to_kept"] == pytest.approx(rescaled, abs=0.006)


def test_no_two_divisors_stand_side_by_side_unsaid(record):
    """The README's finding: on one divisor, LinearTCA's gain over WATT-S on PACS is 0.25, not 1.28."""
    shown = accuracy_table(as_if(record, "pacs"))
    lines = {line[0]: line for line in shown.sections[1][1]}
    assert lines["WATT-S [WATT]"][-1] == "all images, last batch unseen"
    assert lines["WATT-S [WATT, rescaled]"][-1] == lines["LinearTCA [TCA]"][-1] == "images seen"
    assert all(line[-1] for _, section in shown.sections for line in section)
    names = ("LinearTCA [TCA]", "WATT-S [WATT, rescaled]", "WATT-S [WATT]")
    linear, fair, unfair = (float(lines[name][-3]) for name in names)
    assert (round(linear - unfair, 2), round(linear - fair, 2)) == (1.28, 0.25)


def test_csv_has_one_width_and_latex_is_escaped(record):
    lines = list(csv.reader(io.StringIO(render([as_if(record, "pacs")], "csv"))))
    assert {len(line) for line in lines} == {9}
    latex = render([as_if(record, "pacs")], "latex")
    body = latex.split(r"\toprule")[1]
    assert "_" not in body.replace(r"\_", "")
    assert {line.count("&") for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line} == {7}


def test_compare_puts_records_of_a_data_set_into_one_table(record):
    mine = {**record, "dataset": "folder", "data": {**record["data"], "name": "cats"}}
    records = {"a": as_if(record, "pacs"), "b": {**as_if(record, "pacs"), "protocol": "watt"}, "c": record, "d": mine}
    one, two, three, average = comparison(records)
    assert average.head[1:3] == ["synthetic", "folder cats"]  # the two that were made alike
    assert [name for name, _ in one.sections][:2] == ["a", "b"]
    assert one.sections[0][1][0][-1] == "all images"
    assert one.sections[1][1][0][-1] == "all images, last batch unseen"
    assert one.sections[2][0].startswith("reported")
    assert [name for name, _ in two.sections] == ["c"]
    assert "Accuracy (%) on folder cats" in three.title[0]


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
