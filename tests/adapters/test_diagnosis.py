"""The figures of an adapter are what the rows give, with and without the classifier at hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.diagnosis import diagnose, diagnose_state, recovered_classifier
from clip_tca.adapters.state import read_state

ADAPTERS = {
    "monge": LinearTCA,
    "coral": lambda g: LinearTCA(g, solver="coral"),
    "gradient": lambda g: LinearTCA(g, solver="gradient"),
    "mean": lambda g: LinearTCA(g, solver="mean"),
    "paper": LinearTCA.paper,
    "mlp": MLPTCA,
    "mlp without steps": lambda g: MLPTCA(g, steps=0),
    "conditional": ConditionalTCA,
}


def from_file(adapter, path):
    adapter.save(path)
    return diagnose_state(read_state(path))


@pytest.mark.parametrize("name", ADAPTERS)
def test_movement_is_the_mean_over_the_rows(shifted, name):
    z = shifted.z.double()
    adapter = ADAPTERS[name](shifted.g).fit(z)
    move = (adapter.transform(z) - z).numpy()
    centred = (z - z.mean(dim=0)).numpy()
    wanted = np.sqrt((move**2).sum(axis=1).mean() / (centred**2).sum(axis=1).mean())
    assert diagnose(adapter)["movement"] == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_the_shift_is_that_of_the_two_sides(shifted):
    adapter = LinearTCA(shifted.g, shares="uniform", k=8, shrinkage=0.0).fit(shifted.z)
    p = shifted.g.probabilities(shifted.z.double()).numpy()
    predicted = p.argmax(axis=1)
    omega = ((np.eye(p.shape[1])[predicted] - p) ** 2).sum(axis=1)
    chosen = np.concatenate([np.flatnonzero(predicted == c)[omega[predicted == c].argsort()[:8]] for c in range(4)])
    z = shifted.z.double().numpy()
    found = diagnose(adapter)
    spread = np.sqrt(((z - z.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert found["mean_shift"] == pytest.approx(np.linalg.norm(z[chosen].mean(0) - z.mean(0)) / spread, rel=1e-5)
    ours, theirs = np.cov(z.T), np.cov(z[chosen].T)
    distance = np.linalg.norm(ours - theirs)
    assert found["covariance_shift"] == pytest.approx(distance / np.linalg.norm(ours), rel=1e-5)
    assert found["correlation_distance"] == pytest.approx(distance**2 / (4 * z.shape[1] ** 2), rel=1e-5)
    assert found["chosen"] == np.bincount(predicted[chosen], minlength=4).tolist()
    assert found["predicted"] == np.bincount(predicted, minlength=4).tolist()
    assert found["uncertainty_mean"] == pytest.approx(omega[chosen].mean() / 0.75, rel=1e-4)
    assert found["uncertainty_max"] == pytest.approx(omega[chosen].max() / 0.75, rel=1e-4)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_state_file_says_the_same_without_a_classifier(shifted, name, tmp_path):
    adapter = ADAPTERS[name](shifted.g).fit(shifted.z)
    before, after = shifted.g.predict(shifted.z), adapter.predict(shifted.z)
    fitted, stored = diagnose(adapter, before, after), from_file(adapter, tmp_path / "s.safetensors")
    assert fitted["changed"] == pytest.approx(float((before != after).double().mean()))
    if name in ("paper", "mlp", "mlp without steps"):  # no rows, or no class texts, in these states
        assert stored.pop("changed") is None
        fitted.pop("changed")
    assert stored == fitted


def test_a_state_that_followed_another_method_does_not_pretend(shifted, tmp_path):
    """The zero-shot predictions of the texts are not those that were made."""
    other = shifted.g.logits(shifted.z).roll(1, dims=1)
    stored = from_file(LinearTCA(shifted.g).fit(shifted.z, logits=other), tmp_path / "s.safetensors")
    assert stored["changed"] is None


def test_entropy_is_a_share_of_a_guess(shifted):
    guess = ZeroShotClassifier(shifted.g.text, scale=1e-6)
    assert diagnose(LinearTCA(guess, uncertainty="entropy").fit(shifted.z))["uncertainty_mean"] == pytest.approx(1)
    assert diagnose(LinearTCA(guess).fit(shifted.z))["uncertainty_mean"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_is_small_json_for_any_rows(shifted, name):
    same = shifted.z[:1].repeat(40, 1)
    for rows in (shifted.z, same, shifted.z[:3]):
        found = diagnose(ADAPTERS[name](shifted.g).fit(rows))
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert len(json.dumps(found)) < 1000
    assert diagnose(ADAPTERS[name](shifted.g).fit(same))["mean_shift"] is None


def test_texts_of_a_map_that_loses_them_are_not_made_up():
    texts = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = torch.eye(5, dtype=torch.float64)
    offset, bias = torch.arange(5.0).double(), torch.arange(3.0).double()
    solution = {"weight": 2 * texts, "bias": offset @ texts + bias}
    recovered = recovered_classifier(2 * matrix, offset, solution)
    torch.testing.assert_close(recovered.weight, texts.T)
    torch.testing.assert_close(recovered.bias, bias)
    matrix[0, 0] = 0
    assert recovered_classifier(matrix, offset, solution) is None


def test_a_missing_part_is_one_line(shifted, tmp_path):
    adapter = LinearTCA(shifted.g).fit(shifted.z)
    adapter.save(tmp_path / "s.safetensors")
    saved = read_state(tmp_path / "s.safetensors")
    del saved.tensors["solution.W"]
    with pytest.raises(ValueError, match=r"missing or wrong \('W'\); save it again"):
        diagnose_state(saved)


def test_reading_a_state_needs_no_classifier(shifted, tmp_path):
    ConditionalTCA(shifted.g).fit(shifted.z).save(tmp_path / "s.safetensors")
    saved = read_state(tmp_path / "s.safetensors")
    assert saved.kind == "ConditionalTCA"
    assert saved.shape == (24, 4)
    assert saved.counters["seen"] == len(shifted.z)
    assert saved.tensors["solution.means"].shape == (4, 24)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_state(tmp_path / "none")
    (tmp_path / "text").write_text("nothing")
    with pytest.raises(ValueError, match="not a saved clip-tca state"):
        read_state(tmp_path / "text")
