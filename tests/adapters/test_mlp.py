"""MLPTCA: its loss is the energy distance, never above that of its linear start, and it undoes what no line undoes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clip_tca import MLPTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.statistics import coral_distance


def energy(x: Tensor, y: Tensor, weights: Tensor, v: Tensor) -> float:
    """2 E‖(x − y)V‖ − E‖(x − x′)V‖ − E‖(y − y′)V‖, pair by pair."""
    x, y, equal = x.double() @ v, y.double() @ v, torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    pairs = ((x, equal, y, weights), (x, equal, x, equal), (y, weights, y, weights))
    between, own, theirs = (p @ (a[:, None] - b).square().sum(dim=2).sqrt() @ q for a, p, b, q in pairs)
    return float(2 * between - own - theirs)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize(("steps", "lr"), [(20, 1e-3), (3, 10.0), (5, 1e12)])
def test_it_never_ends_above_its_linear_start(layers, steps, lr, shifted):
    """Not even with learning rates that only make things worse."""
    linear = LinearTCA(shifted.g).fit(shifted.z)
    tca = MLPTCA(shifted.g, layers=layers, steps=steps, lr=lr).fit(shifted.z)
    predicted = shifted.g.predict(tca.pseudo_source_)
    weights = (tca.shares_ / tca.pseudo_source_counts_)[predicted]
    view = torch.linalg.svd(shifted.g.weight - shifted.g.weight.mean(dim=0), full_matrices=False)[2][:-1].T.double()
    assert tca.loss_ <= tca.start_loss_
    for loss, adapter in ((tca.loss_, tca), (tca.start_loss_, linear)):
        assert float(loss) == pytest.approx(
            energy(adapter.transform(shifted.z), tca.pseudo_source_, weights, view), abs=1e-4
        )
    target, z = tca.pseudo_source_covariance_, shifted.z.double()
    assert coral_distance(torch.cov(tca.transform(z).T), target) < coral_distance(torch.cov(z.T), target)


@pytest.mark.parametrize("layers", [2, 3])
def test_it_undoes_a_shift_that_no_linear_map_undoes(layers, generator):
    """Three classes in a row, of which two thirds of the middle one moved towards one neighbour."""
    y = torch.arange(3).repeat_interleave(90)
    z = torch.randn(270, 2, generator=generator, dtype=torch.float64) * 0.4
    z[:, 0] += 4.0 * (y - 1)
    z[120:180, 0] += 2.6
    g = LinearClassifier(torch.tensor([[-4.0, 0], [0, 0], [4, 0]]), torch.tensor([-8.0, 0, -8]))
    linear = LinearTCA(g, shares="uniform").fit(z)
    tca = MLPTCA(g, layers=layers, hidden=16, steps=200, lr=1e-2, shares="uniform").fit(z)
    assert tca.score(z, y) > linear.score(z, y) + 0.05


def test_without_steps_nothing_moves(shifted):
    tca = MLPTCA(shifted.g, steps=0).fit(shifted.z)
    torch.testing.assert_close(tca.transform(shifted.z), shifted.z, rtol=0, atol=1e-6)


def test_it_is_seeded_and_leaves_the_global_generator_alone(shifted):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = MLPTCA(shifted.g, seed=5).fit(shifted.z).transform(shifted.z)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, MLPTCA(shifted.g, seed=5).fit(shifted.z).transform(shifted.z))
    assert not torch.equal(first, MLPTCA(shifted.g, seed=6).fit(shifted.z).transform(shifted.z))
