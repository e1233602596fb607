"""The residual MLP and its loss: a weighted energy distance in the classifier's view."""

from __future__ import annotations

import pytest
import torch

from clip_tca.adapters import residual_mlp


def fitted(z, target, v=None, layers=2, steps=100, lr=1e-2):
    """The rows of ``z`` after fitting to ``target``, its loss and the loss of the start."""
    block = residual_mlp.start(z.shape[1], layers, 16, 0, z.device, z.dtype)
    v = torch.eye(z.shape[1], dtype=z.dtype) if v is None else v
    frame, parameters, loss, start_loss = residual_mlp.fit(z, target, v, block, steps, lr)
    return residual_mlp.apply(z, frame, parameters), float(loss), float(start_loss)


def equal(rows):
    return rows, torch.full_like(rows[:, 0], 1 / len(rows))


def test_the_start_loss_is_the_energy_distance(generator):
    z, y = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (7, 5))
    weights = torch.tensor([0.1, 0.3, 0.2, 0.0, 0.4], dtype=torch.float64)
    v = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    between = sum(float(w * ((a - b) @ v).norm()) for a in z for b, w in zip(y, weights, strict=True)) / 7
    own = sum(float(((a - b) @ v).norm()) for a in z for b in z) / 49
    pairs = [(b, w, c, u) for b, w in zip(y, weights, strict=True) for c, u in zip(y, weights, strict=True)]
    theirs = sum(float(w * u * ((b - c) @ v).norm()) for b, w, c, u in pairs)
    moved, loss, start_loss = fitted(z, (y, weights), v, steps=0)
    assert loss == start_loss == pytest.approx(2 * between - own - theirs)
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
    moved, loss, start_loss = fitted(z, equal(target), residual_mlp.view(weight))
    assert loss == start_loss == pytest.approx(0, abs=1e-12)
    assert torch.equal(moved, z)
