"""Base methods in the harness, and LinearTCA+ on top of them."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import pytest
import torch

import clip_tca
from clip_tca.evaluation.base_runs import BaseRuns, Plain
from clip_tca.evaluation.cost import Cost
from clip_tca.evaluation.inputs import Inputs
from clip_tca.evaluation.memory import PeakMemory
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.mixed_domains import MIXED, mixed
from clip_tca.evaluation.protocols import Clock
from clip_tca.methods.registry import base_method
from clip_tca.results.rendering import render
from tests.demo_files import write_demo
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of the demo in two styles, as files."""
    return write_demo(tmp_path_factory.mktemp("demo"), ("clipart", "icon"), classes=3, images=12)


def evaluate(folder: Path, *methods: str, **more) -> dict:
    given = {"data_dir": folder, "model": MODEL, "cache": False, "workers": 0, "device": "cpu", "batch_size": 18}
    return clip_tca.evaluate("folder", methods=methods, **{**given, **more})


def correct(record: dict, method: str) -> list[int]:
    return [row["correct"] for row in record["rows"] if row["method"] == method]


def test_a_method_and_its_plus_form_share_one_run(folder, monkeypatch):
    runs = []
    original = BaseRuns.run
    monkeypatch.setattr(BaseRuns, "run", lambda self, name, *rest: runs.append(name) or original(self, name, *rest))
    record = evaluate(folder, "zero-shot", "tent", "tent+tca", options={"steps": 1})
    assert runs == ["tent", "tent"]  # once for each domain
    assert record["methods"][1]["base"] == {
        "name": "tent",
        "parameters": {"lr": 1e-3, "steps": 1, "continual": False, "micro_batch": None},
    }
    assert record["methods"][2]["parameters"]["solver"] == "monge"
    assert all(record["cost"]["methods"][name]["base_seconds"] > 0 for name in ("tent", "tent+tca"))


def test_tca_on_top_of_a_method_that_changes_nothing_is_linear_tca(folder):
    record = evaluate(folder, "zero-shot", "linear-tca", "tent", "tent+tca", options={"lr": 1e-12, "steps": 1})
    assert correct(record, "tent") == correct(record, "zero-shot")
    assert correct(record, "tent+tca") == correct(record, "linear-tca")


def test_the_model_is_the_same_afterwards(folder):
    embedded = Inputs("folder", data_dir=folder, model=MODEL, cache=False, workers=0, device="cpu").embed()
    before = {name: value.clone() for name, value in embedded.encoder.model.state_dict().items()}
    runs = BaseRuns(embedded, torch.device("cpu"), 18, 0, progress=False)
    moved = runs.run("tent", {"lr": 0.01}, "icon", torch.arange(36))
    after = embedded.encoder.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = torch.nn.functional.normalize(embedded.data.domains["icon"][0], dim=1)
    assert not torch.allclose(moved.z, plain, atol=1e-4)


def test_pictures_come_in_the_order_asked_for(folder):
    embedded = Inputs("folder", data_dir=folder, model=MODEL, cache=False, workers=0, device="cpu").embed()
    runs = BaseRuns(embedded, torch.device("cpu"), 7, 0, progress=False)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(1))
    plain = runs.run("plain CLIP", {}, "icon", order)
    expected = torch.nn.functional.normalize(embedded.data.domains["icon"][0][order], dim=1)
    torch.testing.assert_close(plain.z, expected, rtol=1e-4, atol=1e-5)


def test_pictures_of_mixed_domains_come_in_batches_of_the_sizes_asked_for(folder, monkeypatch):
    embedded = mixed(Inputs("folder", data_dir=folder, model=MODEL, cache=False, workers=0, device="cpu").embed())
    runs = BaseRuns(embedded, torch.device("cpu"), 7, 0, progress=False)
    order, shown = torch.randperm(72, generator=torch.Generator().manual_seed(1))[:20], []
    original = Plain.__call__
    monkeypatch.setattr(Plain, "__call__", lambda self, batch: shown.append(len(batch)) or original(self, batch))
    plain = runs.run("plain CLIP", {}, MIXED, order, [3, 9, 8])
    expected = torch.nn.functional.normalize(embedded.data.domains[MIXED][0][order], dim=1)
    torch.testing.assert_close(plain.z, expected, rtol=1e-4, atol=1e-5)
    assert shown == [3, 9, 8]


def test_a_method_on_images_can_run_with_mixed_domains_and_unknown_classes(folder):
    record = evaluate(
        folder, "zero-shot", "tent", "tent+tca", options={"steps": 1}, mix_domains=True, unknown_classes=1, profile=True
    )
    assert [row["images"] for row in record["rows"]] == [24] * 6
    assert all(0 <= row["metrics"]["unknown_auroc"] <= 100 for row in record["rows"])
    assert record["cost"]["methods"]["plain CLIP"]["images"] == 72
    assert len(record["prompts"]["classes"]) == len(record["data"]["classes"]) == 2


@pytest.mark.parametrize("name", ["t3a", "tda", "adanpc", "plc"])
def test_methods_on_embeddings_need_no_pictures(name):
    record = clip_tca.evaluate("synthetic", methods=["zero-shot", name, f"{name}+tca"])
    assert len(record["rows"]) == 9
    assert all(0 <= row["accuracy"] <= 100 for row in record["rows"])


def test_methods_on_images_say_that_they_need_some():
    with pytest.raises(ValueError, match="'tent' works on images"):
        clip_tca.evaluate("synthetic", methods=["tent"])


def test_options_go_to_the_base_method_before_tca():
    (plus,) = method_specs(["tent+tca"], {"lr": 0.5, "k": 9, "steps": 3})
    assert (plus.base_options, plus.options) == ({"lr": 0.5, "steps": 3}, {"k": 9})


def test_without_its_state_every_method_is_zero_shot_again(folder):
    record = evaluate(folder, "zero-shot", "linear-tca", "t3a", forgetting="icon")
    zero_shot = correct(record, "zero-shot")[1]
    assert {row["correct_without_state"] for row in record["forgetting"]} == {zero_shot}
    assert {(row["method"], row["adapted_to"]) for row in record["forgetting"]} == {
        ("linear-tca", "clipart"),
        ("t3a", "clipart"),
    }
    assert "Forgetting: accuracy (%) on icon" in render([record], "table")
    with pytest.raises(ValueError, match="forgetting: 'moon'; allowed are"):
        evaluate(folder, "linear-tca", forgetting="moon")


@pytest.mark.parametrize(
    ("methods", "more", "says"),
    [
        (["linear-tca"], {"domains": ["icon"]}, "'icon' is the only domain"),
        (["zero-shot"], {}, "zero-shot adapts to nothing"),
        (["linear-tca:reference"], {}, "linear-tca:reference is an oracle"),
    ],
)
def test_forgetting_that_cannot_be_measured_is_refused_before_the_work(folder, methods, more, says, monkeypatch):
    monkeypatch.setattr("clip_tca.evaluation.runner.Measurement.of", lambda *_: pytest.fail("worked first"))
    with pytest.raises(ValueError, match=says):
        evaluate(folder, *methods, forgetting="Icon", **more)


def test_a_profile_of_stored_embeddings_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr("clip_tca.evaluation.runner.Measurement.of", lambda *_: pytest.fail("worked first"))
    with pytest.raises(ValueError, match="profile: synthetic holds embeddings only"):
        clip_tca.evaluate("synthetic", profile=True)


@pytest.mark.parametrize("name", ["t3a", "tda"])
def test_in_the_episodic_setting_a_method_forgets_every_batch(name):
    """By hand: a new method for each batch."""
    embedded = Inputs("synthetic").embed()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    found = BaseRuns(embedded, torch.device("cpu"), 30, 0, False, episodic=True).run(name, {}, "shifted", order)
    once = BaseRuns(embedded, torch.device("cpu"), 30, 0, False)
    alone = torch.cat([once.run(name, {}, "shifted", part).logits for part in order.split(30)])
    torch.testing.assert_close(found.logits, alone)
    assert not torch.allclose(once.run(name, {}, "shifted", order).logits, alone)


def test_forgetting_is_of_the_carried_state_in_every_setting():
    """It adapts to a whole domain and is not told to forget before it is tested, even where batches stand alone."""
    found = [
        clip_tca.evaluate("synthetic", methods=["t3a"], setting=setting, forgetting="clean", batch_size=64)[
            "forgetting"
        ]
        for setting in ("transductive", "episodic")
    ]
    assert found[0] == found[1]
    assert any(row["correct_with_state"] != row["correct_without_state"] for row in found[0])


def test_a_transductive_method_is_given_the_whole_domain_in_the_transductive_setting_alone():
    """By hand: one call, or one for each batch of 30."""
    embedded = Inputs("synthetic").embed()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    runs = BaseRuns(embedded, torch.device("cpu"), 30, 0, False)
    method, z = runs.make("transclip", {}), embedded.data.domains["shifted"][0][order]
    whole, parts = method(z)[1], torch.cat([method(part)[1] for part in z.split(30)])
    assert not torch.allclose(whole, parts)
    online = BaseRuns(embedded, torch.device("cpu"), 30, 0, False, at_once=False)
    episodic = BaseRuns(embedded, torch.device("cpu"), 30, 0, False, episodic=True)
    for found, expected in ((runs, whole), (online, parts), (episodic, parts)):
        torch.testing.assert_close(found.run("transclip", {}, "shifted", order).logits, expected)


@pytest.mark.parametrize("name", ["transclip", "oga"])
def test_the_setting_decides_what_a_method_sees(name):
    accuracy = {}
    for setting in ("transductive", "online", "episodic"):
        record = clip_tca.evaluate("synthetic", methods=[name], setting=setting, batch_size=40, domains=["skewed"])
        accuracy[setting] = record["rows"][0]["accuracy"]
    alike = {"transclip": ("online", "episodic"), "oga": ("transductive", "online")}[name]
    assert accuracy[alike[0]] == accuracy[alike[1]]
    assert len(set(accuracy.values())) == 2


def test_rows_say_what_their_method_saw_less_of_than_the_others():
    methods = ["zero-shot", "conditional-tca", "tda", "tda+tca", "stata", "dmn"]
    record = clip_tca.evaluate("synthetic", methods=methods, batch_size=40)
    by_name = {method["name"]: method for method in record["methods"]}
    assert "nature" not in by_name["conditional-tca"]
    assert [by_name[name]["nature"] for name in methods[2:]] == ["online", "online", "transductive", "online"]
    shown = render([record], "table")
    names = [line.split("  ")[0] for line in shown.splitlines()]
    rows = [name for name in names if name.split(" ")[0] in methods]
    dmn = "dmn (in batches, authors tuned on test data)"
    assert rows[-6:] == ["zero-shot", "conditional-tca", "tda (in batches)", "tda+tca (in batches)", "stata", dmn]
    assert "in batches: the method sees 40 images at a time, not the whole domain." in shown
    assert "authors tuned on test data: dmn: the weight of its memory" in shown
    online = clip_tca.evaluate("synthetic", methods=["zero-shot", "tda", "stata"], setting="online", batch_size=40)
    shown = render([online], "table")
    assert "stata (each batch alone)" in shown
    assert "tda (" not in shown


def test_a_record_from_before_says_that_its_base_methods_saw_batches():
    record = clip_tca.evaluate("synthetic", methods=["zero-shot", "t3a"], batch_size=40)
    for method in record["methods"]:
        method.pop("nature", None)
    assert "t3a (in batches)" in render([record], "table")


def test_the_nature_follows_the_option_continual():
    classifier = Inputs("synthetic").embed().data.classifier(torch.device("cpu"))
    for continual, nature in ((True, "online"), (False, "batch")):
        (spec,) = method_specs(["plc"], {"continual": continual})
        assert spec.describe(classifier)["nature"] == nature
    assert base_method("tent").nature == base_method("watt-s").nature == base_method("bn").nature == "batch"
    assert base_method("tpt").nature == "batch"
    assert base_method("eata").nature == base_method("plc").nature == base_method("t3a").nature == "online"


def test_methods_on_embeddings_get_rows_of_unit_length():
    embedded = Inputs("synthetic").embed()
    z, y = embedded.data.domains["shifted"]
    plain = BaseRuns(embedded, torch.device("cpu"), 30, 0, False).run("t3a", {}, "shifted", torch.arange(60))
    embedded.data.domains["shifted"] = (3 * z, y)
    longer = BaseRuns(embedded, torch.device("cpu"), 30, 0, False)
    torch.testing.assert_close(longer.run("t3a", {}, "shifted", torch.arange(60)).logits, plain.logits)
    assert all(
        torch.allclose(batch.norm(dim=1), torch.ones(30))
        for batch in longer._batches(longer.make("t3a", {}), "shifted", torch.arange(60))
    )


def test_a_base_method_s_table_says_its_batch_size():
    record = clip_tca.evaluate("synthetic", methods=["zero-shot", "t3a"], batch_size=50)
    assert "batch 50" in render([record], "table")
    for methods in (["zero-shot"], ["zero-shot", "zlap"]):
        assert "batch" not in render([clip_tca.evaluate("synthetic", methods=methods, batch_size=50)], "table")


def test_linear_tca_forgets_by_its_own_map(folder):
    """By hand: W of the clip art, applied to the icons."""
    record = evaluate(folder, "linear-tca", forgetting="icon")
    embedded = Inputs("folder", data_dir=folder, model=MODEL, cache=False, workers=0, device="cpu").embed()
    g = clip_tca.ZeroShotClassifier(embedded.data.text, embedded.data.scale)
    z, y = embedded.data.domains["icon"]
    predicted = clip_tca.LinearTCA(g).fit(embedded.data.domains["clipart"][0]).predict(z)
    assert record["forgetting"][0]["correct_with_state"] == int((predicted == y).sum())


def test_a_method_that_goes_on_carries_its_state(folder):
    record = evaluate(folder, "tent", "tent+tca", forgetting="icon", options={"lr": 0.05})
    assert all(0 <= row["accuracy_with_state"] <= 100 for row in record["forgetting"])
    assert record["forgetting"][0]["correct_with_state"] != record["forgetting"][0]["correct_without_state"]


def test_the_profile_compares_with_plain_clip(folder):
    record = evaluate(folder, "zero-shot", "linear-tca", "tent", profile=True, options={"steps": 1})
    shown = render([record], "table")
    line = next(line for line in shown.splitlines() if line.startswith("plain CLIP"))
    assert line.split()[3] == "1.00"
    assert record["cost"]["methods"]["plain CLIP"]["images"] == 72
    assert all(record["cost"]["methods"][name]["base_seconds"] > 0 for name in ("tent", "plain CLIP"))


def test_peak_memory_sees_what_was_there_for_a_while():
    if sys.platform == "linux":  # what earlier tests have freed is resident still, and would be used again
        ctypes.CDLL(None).malloc_trim(0)
    with PeakMemory(torch.device("cpu")) as memory:
        held = torch.ones(30_000_000)
        held.sum()
    assert memory.peak is None or memory.peak > 100_000_000


def test_half_precision_and_gradients_do_not_go_together(folder):
    with pytest.raises(ValueError, match=r"'tent' needs gradients.*--precision fp32"):
        evaluate(folder, "tent", precision="fp16")


def test_with_descriptions_methods_on_templates_refuse_in_one_line_and_the_others_run(folder, tmp_path):
    classes = sorted(path.name for path in (folder / "icon").iterdir())
    sentences = {
        name: [f"a drawing of a {name}", f"the sign for {name}"][: 1 + i % 2] for i, name in enumerate(classes)
    }
    (tmp_path / "d.json").write_text(json.dumps(sentences))
    given = {"prompts": str(tmp_path / "d.json"), "options": {"steps": 1}}
    record = evaluate(folder, "zero-shot", "linear-tca", "tent", **given)
    assert record["prompts"]["descriptions"] == 4
    assert record["prompts"]["templates"] == []
    assert "Prompts d.json: 4 descriptions of the classes, clean class names." in render([record])
    for method in ("watt-s", "clipartt", "tpt"):
        with pytest.raises(
            ValueError, match=rf"method: '{method}' puts class names into templates, and these"
        ) as error:
            evaluate(folder, method, **given)
        assert "\n" not in str(error.value)


def test_memory_for_an_image_is_that_of_the_domain_where_it_is_highest():
    large, small, unknown = (Cost.of(Clock(), None, n, peak) for n, peak in ((1000, 5000), (10, 400), (7, None)))
    total = large + small + unknown
    assert (total.images, total.memory_bytes, total.memory_bytes_per_image) == (1017, 5000, 40.0)
    assert unknown.memory_bytes_per_image is None
