"""The examples run as they stand, print what they promise, and a method of one's own is treated as ours are."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import clip_tca
from clip_tca import LinearTCA, Method, ZeroShotClassifier
from clip_tca.data.embeddings import synthetic
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.streams import order
from clip_tca.methods import registry as registry_module
from clip_tca.methods.registry import base_method, register
from tests.conftest import ROOT


def printed(name: str, *arguments: object) -> str:
    command = [sys.executable, ROOT / "examples" / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def registry(monkeypatch) -> dict:
    """Registered methods of this test alone."""
    monkeypatch.setattr(registry_module, "_REGISTERED", {})
    return registry_module._REGISTERED


def test_embeddings_of_one_s_own_are_adapted(tmp_path):
    made = synthetic(4, 5, 16, 30)
    (z, y), g = made.domains["shifted"], ZeroShotClassifier(made.text, made.scale)
    files = []
    for name, tensor in {"z": z, "text": made.text, "y": y}.items():
        files.append(tmp_path / f"{name}.npy")
        np.save(files[-1], tensor.numpy())
    lines = printed("adapt_your_embeddings", *files, "--scale", made.scale).splitlines()
    adapted = LinearTCA(g).fit(z).predict(z)
    changed, right = int((adapted != g.predict(z)).sum()), 100 * (adapted == y).double().mean()
    assert re.fullmatch(rf"LinearTCA +{changed} of 150 changed, accuracy {right:.1f} %", lines[1])
    assert lines[-1] == "at its end the stream has the map of the fit: True"


def test_an_adapted_index_finds_what_the_classes_are_called(tmp_path):
    """The figures again, by torch in place of FAISS."""
    made = synthetic(0, 5, 24, 40)
    made.save(tmp_path / "made.safetensors")
    lines = [
        re.split(r" {2,}", line) for line in printed("adapt_retrieval", tmp_path / "made.safetensors").splitlines()
    ]
    found = {line[0]: [float(cell) for cell in line[1:3]] for line in lines[1:]}
    g, sides = made.classifier(), ([], [])
    for z, y in made.domains.values():
        for side, rows in zip(sides, (z, clip_tca.ConditionalTCA(g).fit(z).transform(z)), strict=True):
            near = (g.text @ torch.nn.functional.normalize(rows, dim=1).T).topk(10).indices
            side.append(100 * (y[near] == torch.arange(5)[:, None]).double().mean().item())
    assert found["text: a class of g"] == pytest.approx([np.mean(side) for side in sides], abs=0.5)
    assert set(found) == {
        *("text: a class of g", "text: a class that g lacks"),
        *("image of another domain", "image of the same domain"),
    }


def test_a_folder_is_evaluated_like_a_benchmark(tmp_path):
    module = example("add_a_dataset")
    module.write_folder(tmp_path)
    text = printed("add_a_dataset", tmp_path)
    assert "icon: 24 images, by class [8, 8, 8]" in text
    assert "prompts: a photo of a airplane, a photo of a cup, a photo of a umbrella" in text
    options = {"data_dir": tmp_path, "class_names": str(tmp_path / "classes.txt"), "methods": ["zero-shot"]}
    record = clip_tca.evaluate("folder", model="demo", workers=0, **options)
    accuracies = [f"{row['accuracy']:.2f}" for row in record["rows"]]
    assert re.search(rf"zero-shot +{' +'.join(accuracies)} ", text)
    chance = 100 / 3
    assert all(row["accuracy"] > 1.2 * chance for row in record["rows"])  # with the folders' own names it would guess


def test_the_example_method_runs_with_linear_tca_on_top():
    shown = printed("add_a_method").replace(" (in batches)", "")
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    made = synthetic(0)
    z, y = made.domains["shifted"]
    seen = order(len(y), "full", 128, 0)
    total, right = np.ones(6), 0
    for part in seen.split(128):  # the method again, by hand
        logits = made.scale * z[part].double().numpy() @ made.text.double().numpy().T
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        total += (odds / odds.sum(axis=1, keepdims=True)).sum(axis=0)
        right += ((logits - np.log(total / total.sum())).argmax(axis=1) == y[part].numpy()).sum()
    assert float(rows["debias"][2]) == pytest.approx(100 * right / len(y), abs=0.1)
    assert set(rows) >= {"zero-shot", "debias", "linear-tca", "debias+tca"}
    assert rows["debias+tca"][2] != rows["debias"][2]


def test_a_registered_method_has_its_options_and_its_plus_form(registry):
    with pytest.raises(ValueError, match=r"'debias'; allowed are zero-shot"):
        method_specs(["debias"], {})
    kind = example("add_a_method").Debias
    assert base_method("debias") is kind
    plain, plus = method_specs(["debias", "debias+tca"], {"strength": 0.0, "k": 12})
    assert (plain.base_options, plus.base_options, plus.options) == ({"strength": 0.0}, {"strength": 0.0}, {"k": 12})
    record = clip_tca.evaluate("synthetic", methods=["zero-shot", "debias"], options={"strength": 0.0})
    rows = {(row["method"], row["domain"]): row["correct"] for row in record["rows"]}
    assert all(rows["debias", domain] == rows["zero-shot", domain] for domain in ("clean", "shifted", "skewed"))
    with pytest.raises(ValueError, match=r"'other'.*debias"):
        method_specs(["other"], {})


def test_what_cannot_be_registered_is_named(registry):
    kind = example("add_a_method").Debias
    for taken in ("tent", "zero-shot", "linear-tca", "all", "mine+tca"):
        with pytest.raises(ValueError, match=re.escape(f"{taken!r} is taken")):
            register(type("Other", (kind,), {"name": taken}))
    with pytest.raises(ValueError, match="Bare has no 'name'"):
        register(type("Bare", (Method,), {}))
    assert list(registry) == ["debias"]
