"""Base methods in the harness: what they see, what they leave behind, what they cost."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import pytest
import torch

import clip_tca
from clip_tca.encoding.embedder import Embedder
from clip_tca.evaluation.base_runs import BaseRuns, Plain
from clip_tca.evaluation.cost import Cost, PeakMemory, method_cost
from clip_tca.evaluation.inputs import MIXED, Inputs
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.results.rendering import render
from tests.demo_files import write_demo
from tests.tiny_clip import MODEL

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of the demo in two styles, as files."""
    return write_demo(tmp_path_factory.mktemp("demo"), ("clipart", "icon"), classes=3, images=12)


@pytest.fixture(scope="module")
def embedded(folder):
    return Inputs("folder", data_dir=folder, model=MODEL, cache=False, workers=0, device="cpu").embed()


def evaluate(folder: Path, *methods: str, **more) -> dict:
    given = {"data_dir": folder, "model": MODEL, "cache": False, "workers": 0, "device": "cpu", "batch_size": 18}
    return clip_tca.evaluate("folder", methods=methods, **{**given, **more})


def correct(record: dict, method: str) -> list[int]:
    return [row["correct"] for row in record["rows"] if row["method"] == method]


def test_tca_on_top_of_a_method_that_changes_nothing_is_linear_tca(folder):
    record = evaluate(folder, "zero-shot", "linear-tca", "tent", "tent+tca", options={"lr": 1e-12, "steps": 1})
    assert correct(record, "tent") == correct(record, "zero-shot")
    assert correct(record, "tent+tca") == correct(record, "linear-tca")


def test_the_model_is_the_same_afterwards(embedded):
    before = {name: value.clone() for name, value in embedded.encoder.model.state_dict().items()}
    moved = BaseRuns(embedded, CPU, 18, 0, progress=False).run("tent", {"lr": 0.01}, "icon", torch.arange(36))
    after = embedded.encoder.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = torch.nn.functional.normalize(embedded.data.domains["icon"][0], dim=1)
    assert not torch.allclose(moved.z, plain, atol=1e-4)


@pytest.mark.parametrize("mixed", [False, True])
def test_pictures_come_in_the_order_and_the_batches_asked_for(embedded, mixed, monkeypatch):
    data, domain = (embedded.mixed(), MIXED) if mixed else (embedded, "icon")
    rows, shown = data.data.domains[domain][0], []
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))[:20]
    original = Plain.__call__
    monkeypatch.setattr(Plain, "__call__", lambda self, batch: shown.append(len(batch)) or original(self, batch))
    plain = BaseRuns(data, CPU, 7, 0, progress=False).run("plain CLIP", {}, domain, order, [3, 9, 8] if mixed else None)
    expected = torch.nn.functional.normalize(rows[order], dim=1)
    torch.testing.assert_close(plain.z, expected, rtol=1e-4, atol=1e-5)
    assert shown == ([3, 9, 8] if mixed else [7, 7, 6])


def test_a_method_on_images_can_run_with_mixed_domains_and_is_compared_with_plain_clip(folder):
    methods = ("zero-shot", "linear-tca", "tent", "tent+tca")
    record = evaluate(folder, *methods, options={"steps": 1}, mix_domains=True, profile=True)
    assert [row["images"] for row in record["rows"]] == [36] * 8
    assert record["cost"]["methods"]["plain CLIP"]["images"] == 72
    assert all(record["cost"]["methods"][name]["base_seconds"] > 0 for name in ("tent", "plain CLIP"))
    line = next(line for line in render([record], "table").splitlines() if line.startswith("plain CLIP"))
    assert line.split()[3] == "1.00"


def test_what_needs_pictures_says_so_before_the_work():
    with pytest.raises(ValueError, match="'tent' works on images"):
        clip_tca.evaluate("synthetic", methods=["tent"])
    with pytest.raises(ValueError, match="profile: synthetic holds embeddings only"):
        clip_tca.evaluate("synthetic", profile=True)


def test_half_precision_and_gradients_do_not_go_together(folder):
    with pytest.raises(ValueError, match=r"'tent' needs gradients.*--precision fp32"):
        evaluate(folder, "tent", precision="fp16")


def test_a_transductive_method_is_given_the_whole_domain_in_the_transductive_setting_alone():
    """By hand: one call, or one for each batch of 30."""
    embedded = Inputs("synthetic").embed()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    method = BaseRuns(embedded, CPU, 30, 0, False).make("transclip", {})
    z = embedded.data.domains["shifted"][0][order]
    whole, parts = method(z)[1], torch.cat([method(part)[1] for part in z.split(30)])
    assert not torch.allclose(whole, parts)
    for setting, expected in (("transductive", whole), ("online", parts), ("episodic", parts)):
        found = BaseRuns(embedded, CPU, 30, 0, False, setting).run("transclip", {}, "shifted", order)
        torch.testing.assert_close(found.logits, expected)


def test_rows_say_what_their_method_saw_less_of_than_the_others():
    record = clip_tca.evaluate("synthetic", methods=["zero-shot", "tda", "tda+tca", "stata", "dmn"], batch_size=40)
    natures = [method.get("nature") for method in record["methods"]]
    assert natures == [None, "online", "online", "transductive", "online"]
    shown = render([record], "table")
    assert "dmn (in batches, authors tuned on test data)" in shown
    assert "in batches: the method sees 40 images at a time, not the whole domain." in shown
    online = clip_tca.evaluate("synthetic", methods=["zero-shot", "tda", "stata"], setting="online", batch_size=40)
    assert "stata (each batch alone)" in render([online], "table")


@pytest.mark.parametrize(("continual", "nature"), [(True, "online"), (False, "batch")])
def test_the_nature_follows_the_option_continual(continual, nature):
    (spec,) = method_specs(["plc"], {"continual": continual})
    assert spec.describe(Inputs("synthetic").embed().data.classifier())["nature"] == nature


def test_methods_on_embeddings_get_rows_of_unit_length():
    embedded = Inputs("synthetic").embed()
    z, y = embedded.data.domains["shifted"]
    plain = BaseRuns(embedded, CPU, 30, 0, False).run("t3a", {}, "shifted", torch.arange(60))
    embedded.data.domains["shifted"] = (3 * z, y)
    longer = BaseRuns(embedded, CPU, 30, 0, False).run("t3a", {}, "shifted", torch.arange(60))
    torch.testing.assert_close(longer.logits, plain.logits)


def test_what_was_learned_on_one_domain_predicts_another(embedded):
    """A step that changes nothing gives the scores of g; a large one on the clip art changes those of the icons."""
    runs = BaseRuns(embedded, CPU, 18, 0, progress=False)
    z, seen = embedded.data.domains["icon"][0], torch.arange(36)
    plain, moved = (runs.carry("tent", {"lr": lr}, ("clipart", seen), ("icon", seen))[1][1] for lr in (1e-12, 0.05))
    torch.testing.assert_close(plain, runs.classifier.logits(runs.classifier.prepared(z)), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(moved, plain, atol=1e-2)


def test_with_descriptions_methods_on_templates_refuse_in_one_line_and_the_others_run(folder, tmp_path):
    names = sorted(path.name for path in (folder / "icon").iterdir())
    sentences = {name: [f"a drawing of a {name}", f"the sign for {name}"][: 1 + i % 2] for i, name in enumerate(names)}
    (tmp_path / "d.json").write_text(json.dumps(sentences))
    given = {"prompts": str(tmp_path / "d.json"), "options": {"steps": 1}}
    record = evaluate(folder, "zero-shot", "linear-tca", "tent", **given)
    assert (record["prompts"]["descriptions"], record["prompts"]["templates"]) == (4, [])
    assert "Prompts d.json: 4 descriptions of the classes, clean class names." in render([record])
    for method in ("watt-s", "clipartt", "tpt"):
        with pytest.raises(ValueError, match=rf"^method: '{method}' puts class names into templates, and these.*$"):
            evaluate(folder, method, **given)


def test_peak_memory_sees_what_was_there_for_a_while():
    if sys.platform == "linux":  # what earlier tests have freed is resident still, and would be used again
        ctypes.CDLL(None).malloc_trim(0)
    with PeakMemory(CPU) as memory:
        torch.ones(30_000_000).sum()
    assert memory.peak is None or memory.peak > 100_000_000


def test_memory_for_an_image_is_that_of_the_domain_where_it_is_highest():
    total = method_cost([Cost(1000, memory=5000), Cost(10, memory=100, base_memory=400), Cost(7)])
    assert (total["images"], total["memory_bytes"], total["memory_bytes_per_image"]) == (1017, 5000, 40.0)
    assert method_cost([Cost(7)])["memory_bytes_per_image"] is None


@pytest.mark.parametrize(("method", "encoded"), [("linear-tca", [36, 72]), ("tent", [72, 72])])
def test_a_domain_is_told_as_soon_as_it_is_known_but_a_method_that_changes_the_model_runs_last(
    method, encoded, folder, monkeypatch
):
    told, images = {}, [0]
    encode = Embedder.pictures

    def on_domain(name: str, accuracy: dict[str, float]) -> None:
        told[name] = (accuracy, images[0])

    def counting(self, data):
        finished = self.finished

        def count(name, rows):
            images[0] += len(rows)
            finished(name, rows)

        self.finished = count
        return encode(self, data)

    monkeypatch.setattr(Embedder, "pictures", counting)
    record = evaluate(folder, "zero-shot", method, on_domain=on_domain)
    assert [seen for _, seen in told.values()] == encoded
    for row in record["rows"]:
        assert told[row["domain"]][0][row["method"]] == row["accuracy"]
    assert record["cost"]["encoded_images"] == 72
