"""MLPTCA: its loss is the energy distance, never above that of its linear start, and it undoes what no line undoes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clip_tca import MLPTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.mlp import fit_residual, initial_parameters, residual, seen_by
from clip_tca.adapters.statistics import coral_distance


def energy(x: Tensor, y: Tensor, weights: Tensor, v: Tensor) -> float:
    """2 E‖(x − y)V‖ − E‖(x − x′)V‖ − E‖(y − y′)V‖, pair by pair."""
    x, y, equal = x.double() @ v, y.double() @ v, torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    pairs = ((x, equal, y, weights), (x, equal, x, equal), (y, weights, y, weights))
    between, own, theirs = (p @ (a[:, None] - b).square().sum(dim=2).sqrt() @ q for a, p, b, q in pairs)
    return float(2 * between - own - theirs)


def fitted(
    z: Tensor, target: tuple[Tensor, Tensor], v: Tensor | None = None, layers: int = 2, steps: int = 100
) -> tuple[Tensor, float, float]:
    """The rows of ``z`` after fitting to ``target``, its loss and the loss of the start."""
    v = torch.eye(z.shape[1], dtype=z.dtype) if v is None else v
    found = fit_residual(z, target, v, initial_parameters(z.shape[1], layers, 16, 0, z), steps, 1e-2)
    parameters = [found[f"mlp_{i}"] for i in range(2 * layers)]
    return residual(z, found["centre"], found["scale"], parameters), float(found["loss"]), float(found["start_loss"])


def equal(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows, torch.full_like(rows[:, 0], 1 / len(rows))


# -- the residual ------------------------------------------------------------------------------------------------------


def test_the_start_changes_nothing_and_its_loss_is_the_energy_distance(generator):
    z, y = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (7, 5))
    weights = torch.tensor([0.1, 0.3, 0.2, 0.0, 0.4], dtype=torch.float64)
    v = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    moved, loss, start_loss = fitted(z, (y, weights), v, steps=0)
    assert loss == start_loss == pytest.approx(energy(z, y, weights, v))
    assert torch.equal(moved, z)


def test_a_weight_counts_as_that_many_copies_of_the_row(generator):
    z, y = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (30, 4))
    copies = torch.tensor([1, 3, 2, 4])
    weighted, _, _ = fitted(z, (y, copies / copies.sum().double()))
    repeated, _, _ = fitted(z, equal(y.repeat_interleave(copies, dim=0)))
    torch.testing.assert_close(weighted, repeated, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [2, 3])
def test_it_meets_a_distribution_of_the_same_mean_and_covariance(layers, generator):
    """Two clusters for a Gaussian: a linear map has nothing left to do."""
    z = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    z = (z - z.mean()) / z.std(correction=0)
    y = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    moved, loss, start_loss = fitted(z, equal(y), layers=layers, steps=500)
    assert start_loss > 0.05
    assert loss < 0.2 * start_loss
    assert float((moved.abs() - 1).abs().mean()) < 0.5 * float((z.abs() - 1).abs().mean())


def test_what_the_classifier_does_not_see_does_not_count(generator):
    z = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    weight = torch.tensor([[1.0, 5.0], [-1.0, 5.0]], dtype=torch.float64)
    target = z + torch.tensor([0.0, 100.0])
    moved, loss, start_loss = fitted(z, equal(target), seen_by(weight))
    assert loss == start_loss == pytest.approx(0, abs=1e-12)
    assert torch.equal(moved, z)


# -- the adapter -------------------------------------------------------------------------------------------------------


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


def test_it_learns_something_beyond_the_linear_map(shifted):
    tca = MLPTCA(shifted.g, steps=100, lr=1e-3).fit(shifted.z)
    assert tca.loss_ < 0.8 * tca.start_loss_


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


def test_it_fits_the_same_in_inference_mode(shifted):
    with torch.inference_mode():
        inside = MLPTCA(shifted.g).fit(shifted.z).transform(shifted.z)
    assert torch.equal(inside, MLPTCA(shifted.g).fit(shifted.z).transform(shifted.z))


def test_it_is_fitted_on_at_most_memory_rows(shifted):
    """The same sample for any that is at least as large as the set, another one below."""
    large, whole, small = (MLPTCA(shifted.g, memory=n).fit(shifted.z).logits(shifted.z) for n in (999, 240, 100))
    assert torch.equal(large, whole)
    assert not torch.equal(small, whole)
