"""States that version 0.1 saved load as they did, and go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.diagnosis import diagnose_state
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.adapters.state import checksum, read_state

STATES = Path(__file__).parent / "states_0_1"
EXPECTED = load_file(STATES / "expected.safetensors")
KINDS = {"linear": LinearTCA, "mlp": MLPTCA, "conditional": ConditionalTCA}


@pytest.fixture
def g():
    return ZeroShotClassifier(EXPECTED["text"], scale=20)


@pytest.mark.parametrize("name", KINDS)
def test_a_state_of_version_0_1_gives_the_logits_it_gave(name, g):
    adapter = KINDS[name].load(STATES / f"{name}.safetensors", g)
    assert adapter.n_seen_ == 55
    torch.testing.assert_close(adapter.logits(EXPECTED["z"]), EXPECTED[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_goes_on_from_a_state_of_version_0_1(name, g):
    resumed = KINDS[name].load(STATES / f"{name}.safetensors", g).partial_fit(EXPECTED["z"][55:])
    whole = type(resumed)(g, **resumed.parameters()).fit(EXPECTED["z"])
    torch.testing.assert_close(resumed.logits(EXPECTED["z"]), whole.logits(EXPECTED["z"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_saved_has_the_names_it_had_and_rows_that_wait(name, g, tmp_path):
    KINDS[name].load(STATES / f"{name}.safetensors", g).save(tmp_path / "again.safetensors")
    before, after = load_file(STATES / f"{name}.safetensors"), load_file(tmp_path / "again.safetensors")
    assert after.pop("moments.waiting", torch.zeros(0, 6)).shape == (0, 6)
    assert {key: (t.shape, t.dtype) for key, t in after.items()} == {k: (t.shape, t.dtype) for k, t in before.items()}


@pytest.mark.parametrize("name", KINDS)
def test_an_old_state_is_explained_without_the_classifier(name):
    figures = diagnose_state(read_state(STATES / f"{name}.safetensors"))
    assert figures["embeddings"] == 55
    assert figures["kind"] == KINDS[name].__name__
    assert sum(figures["predicted"] or [55]) == 55


def test_a_tensor_of_another_shape_is_one_line(g, tmp_path, monkeypatch):
    path = tmp_path / "s.safetensors"
    saved = read_state(STATES / "linear.safetensors")
    monkeypatch.setattr("clip_tca.adapters.base.read_state", lambda *_: saved)
    saved.tensors["bank.score"] = saved.tensors["bank.score"][:-1]
    save_file({}, path)
    with pytest.raises(ValueError, match=r"missing or wrong \(score has shape \(14,\), not \(m\)"):
        LinearTCA.load(path, g)


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_names_of_the_classes_are_saved_with_a_state(kind, g, tmp_path, caplog):
    path, names = tmp_path / "s.safetensors", ["ant", "bee", "big cow"]
    kind(g.named(names)).fit(EXPECTED["z"]).save(path)
    assert read_state(path).classes == tuple(names)
    loaded = kind.load(path, g)  # which has none
    assert set(loaded.predict(EXPECTED["z"], names=True)) <= set(names)
    assert g.classes is None
    assert caplog.text == ""
    other = kind.load(path, g.named(["x", "y", "z"]))
    assert other.classifier.classes == ("x", "y", "z")
    assert "names its classes otherwise (ant, …) than the classifier does" in caplog.text
    kind(g).fit(EXPECTED["z"]).save(path)
    assert read_state(path).classes is None


@pytest.mark.parametrize("names", [["ant"], ["ant", "bee", 3], "ant", {"ant": 1}])
def test_names_that_do_not_fit_a_state_are_damage(names, g, tmp_path):
    path = tmp_path / "s.safetensors"
    LinearTCA(g).fit(EXPECTED["z"]).save(path)
    with safe_open(path, "pt") as file:
        text = json.dumps({**json.loads(file.metadata()["clip_tca"]), "classes": names})
    tensors = load_file(path)
    save_file(tensors, path, metadata={"clip_tca": text, "checksum": checksum(text, tensors)})
    with pytest.raises(ValueError, match=r"damaged \(3 class names are needed\)"):
        read_state(path)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_describes_itself(name, g):
    registered = ADAPTERS[name]
    adapter = registered.build(g)
    assert adapter.uses_labels == registered.oracle
    assert set(registered.fixed) <= set(adapter.options())
    assert tuple(adapter.parameters()) == adapter.options()
    assert f"normalize={adapter.normalize}" in repr(adapter)
    adapter.fit(EXPECTED["z"], labels=torch.arange(60) % 3)
    assert ("weight" in adapter.solution) == adapter.linear
