"""MLPTCA: never worse than its linear start by its own loss, and better where the shift is not linear."""

from __future__ import annotations

import pytest
import torch

from clip_tca import MLPTCA, LinearClassifier, LinearTCA
from clip_tca.adapters import mlp, residual_mlp
from clip_tca.adapters.shares import row_weights
from clip_tca.adapters.statistics import coral_distance, covariance


def energy(tca: MLPTCA, x: torch.Tensor) -> float:
    """Energy distance of ``x`` from the pseudo-source as the classifier sees them, pair by pair."""
    x, y = (rows.double() @ residual_mlp.view(tca.classifier.weight.double()) for rows in (x, tca.pseudo_source_))
    u, w = torch.ones(len(x)).double() / len(x), row_weights(tca.shares_, tca.classifier.predict(tca.pseudo_source_))
    pairs = ((x, u, y, w), (x, u, x, u), (y, w, y, w))
    distance = [p @ (a[:, None] - b).square().sum(dim=2).sqrt() @ q for a, p, b, q in pairs]
    return float(2 * distance[0] - distance[1] - distance[2])


@pytest.mark.parametrize("layers", [2, 3])
def test_mlp_never_ends_above_its_linear_start(layers, shifted):
    linear = LinearTCA(shifted.g).fit(shifted.z).transform(shifted.z)
    for steps, lr in ((20, 1e-3), (3, 10.0), (5, 1e12)):  # learning rates that only make things worse
        tca = MLPTCA(shifted.g, layers=layers, steps=steps, lr=lr).fit(shifted.z)
        assert tca.loss_ <= tca.start_loss_
        assert tca.loss_ == pytest.approx(energy(tca, tca.transform(shifted.z)), abs=1e-4)
        assert tca.start_loss_ == pytest.approx(energy(tca, linear), abs=1e-4)
        adapted, target = tca.transform(shifted.z.double()), tca.pseudo_source_covariance_
        assert coral_distance(covariance(adapted), target) < coral_distance(covariance(shifted.z), target)


def test_mlp_learns_something_beyond_the_linear_map(shifted):
    tca = MLPTCA(shifted.g, steps=100, lr=1e-3).fit(shifted.z)
    assert tca.loss_ < 0.8 * tca.start_loss_


@pytest.mark.parametrize("layers", [2, 3])
def test_mlp_solves_a_shift_that_no_linear_map_undoes(layers, generator):
    """Three classes in a row, of which two thirds of the middle one moved towards one neighbour."""
    y = torch.arange(3).repeat_interleave(90)
    z = torch.randn(270, 2, generator=generator, dtype=torch.float64) * 0.4
    z[:, 0] += 4.0 * (y - 1)
    z[120:180, 0] += 2.6
    g = LinearClassifier(torch.tensor([[-4.0, 0], [0, 0], [4, 0]]), torch.tensor([-8.0, 0, -8]))
    options = {"normalize": False, "shares": "uniform"}
    linear = LinearTCA(g, **options).fit(z)
    tca = MLPTCA(g, layers=layers, hidden=16, steps=200, lr=1e-2, **options).fit(z)
    before, after = ((fitted.predict(z) == y).double().mean() for fitted in (linear, tca))
    assert after > before + 0.05


def test_mlp_starts_at_the_identity(shifted):
    tca = MLPTCA(shifted.g, steps=0).fit(shifted.z)
    torch.testing.assert_close(tca.transform(shifted.z), shifted.z, rtol=0, atol=1e-6)


def test_mlp_is_seeded_and_leaves_the_global_generator_alone(shifted):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = MLPTCA(shifted.g, seed=5).fit(shifted.z).transform(shifted.z)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, MLPTCA(shifted.g, seed=5).fit(shifted.z).transform(shifted.z))
    assert not torch.equal(first, MLPTCA(shifted.g, seed=6).fit(shifted.z).transform(shifted.z))


def test_mlp_fits_the_same_in_inference_mode(shifted):
    with torch.inference_mode():
        inside = MLPTCA(shifted.g).fit(shifted.z).transform(shifted.z)
    assert torch.equal(inside, MLPTCA(shifted.g).fit(shifted.z).transform(shifted.z))


def test_a_large_pseudo_source_is_thinned(shifted, monkeypatch):
    monkeypatch.setattr(mlp, "TARGET_ROWS", 16)
    tca = MLPTCA(shifted.g).fit(shifted.z)
    rows, weights = tca._target(shifted.z, tca.shares_)
    every = -(-len(tca.pseudo_source_) // 16)
    assert every > 1
    assert torch.equal(rows, tca.pseudo_source_[::every])
    assert float(weights.sum()) == pytest.approx(1)
    assert tca.loss_ <= tca.start_loss_
