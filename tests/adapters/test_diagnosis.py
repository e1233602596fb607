"""The figures of an adapter are what its rows give, and the same after saving and loading."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA
from clip_tca.adapters.diagnosis import diagnose
from clip_tca.adapters.state import load

ADAPTERS = {
    "monge": LinearTCA,
    "coral": lambda g: LinearTCA(g, solver="coral"),
    "gradient": lambda g: LinearTCA(g, solver="gradient"),
    "mean": lambda g: LinearTCA(g, solver="mean"),
    "paper": lambda g: LinearTCA(g, k=20, shares="global", solver="gradient"),
    "mlp": MLPTCA,
    "mlp without steps": lambda g: MLPTCA(g, steps=0),
    "conditional": ConditionalTCA,
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_movement_is_the_mean_over_the_rows_and_a_saved_adapter_says_the_same_in_json(shifted, name, tmp_path):
    z = shifted.z.double()
    adapter = ADAPTERS[name](shifted.g).fit(z)
    move, centred = (adapter.transform(z) - z).square().sum(), (z - z.mean(dim=0)).square().sum()
    found = diagnose(adapter)
    assert found["movement"] == pytest.approx(float((move / centred).sqrt()), rel=1e-5, abs=1e-6)
    adapter.save(tmp_path / "s.safetensors")
    assert diagnose(load(tmp_path / "s.safetensors")) == found == json.loads(json.dumps(found, allow_nan=False))
    same = diagnose(ADAPTERS[name](shifted.g).fit(shifted.z[:1].repeat(40, 1)))
    assert json.dumps(same, allow_nan=False)
    assert same["mean_shift"] is None


def test_the_shift_is_that_of_the_two_sides(shifted):
    adapter = LinearTCA(shifted.g, shares="uniform", k=8, shrinkage=0.0).fit(shifted.z)
    p = shifted.g.predict_proba(shifted.z.double()).numpy()
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


@pytest.mark.parametrize("name", ADAPTERS)
def test_changed_predictions_are_counted_on_the_kept_sample_or_on_what_is_given(shifted, name):
    adapter = ADAPTERS[name](shifted.g).fit(shifted.z)
    before, after = shifted.g.predict(shifted.z), adapter.predict(shifted.z)
    changed = int((before != after).sum()) / len(after)
    assert diagnose(adapter)["changed"] == (None if name == "paper" else changed)  # which keeps no sample
    assert diagnose(adapter, before, after)["changed"] == changed
    assert diagnose(adapter, before, before)["changed"] == 0


@pytest.mark.parametrize("adapter", [LinearTCA, MLPTCA])
def test_predictions_of_another_method_are_not_compared_with_those_of_the_classifier(shifted, adapter):
    other = shifted.g.logits(shifted.z).roll(1, dims=1)
    assert diagnose(adapter(shifted.g).fit(shifted.z, logits=other))["changed"] is None


def test_records_are_read_without_torch():
    """Their types and verdicts come from these modules."""
    code = "import sys, clip_tca.results.record, clip_tca.explanation; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
