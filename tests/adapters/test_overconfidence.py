"""Neighbours tell how much surer a classifier is than it should be."""

from __future__ import annotations

import pytest
import torch

from clip_tca import ConditionalTCA, LinearClassifier
from clip_tca.adapters.class_priors import attracted
from clip_tca.adapters.overconfidence import falls_to_zero, nearest, temperature


def test_the_nearest_rows_by_hand():
    y = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    assert nearest(y, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    assert nearest(y[:2], 3).tolist() == [[1], [0]]


def test_the_temperature_predicts_the_neighbour_best(generator):
    log_g = (2 * torch.randn(60, 4, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    neighbour = torch.randperm(60, generator=generator)
    mixed = (0.6 * log_g + 0.4 * log_g[neighbour]).log_softmax(dim=1)

    def likelihood(t: float) -> float:
        return float((mixed.exp()[neighbour] * (mixed / t).log_softmax(dim=1)).sum())

    grid = torch.linspace(1, 5, 801).tolist()
    assert float(temperature(mixed, neighbour)) == pytest.approx(max(grid, key=likelihood), abs=0.005)


def test_where_neighbours_agree_nothing_is_cooled(generator):
    log_g = torch.randn(40, 5, generator=generator).log_softmax(dim=1)
    pairs = log_g.repeat_interleave(2, dim=0)
    assert float(temperature(pairs, torch.arange(80).view(-1, 2).flip(1).flatten())) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_a_head_that_is_sure_of_everything_is_adapted_like_a_calm_one(factor, shifted):
    calm = ConditionalTCA(LinearClassifier(shifted.g.weight)).fit(shifted.z)
    sure = ConditionalTCA(LinearClassifier(factor * shifted.g.weight)).fit(shifted.z)
    assert float(sure.start_temperature_) > factor
    same = (sure.predict(shifted.z) == calm.predict(shifted.z)).double().mean()
    assert float(same) > 0.9
    right = [float((a.predict(shifted.z) == shifted.y).double().mean()) for a in (calm, sure, shifted.g)]
    assert min(right[:2]) > right[2]


def test_predictions_more_unequal_than_what_is_agreed_on_are_the_work_of_one_class():
    uneven, one_sided = torch.tensor([[40.0, 25, 20, 15], [70, 30, 0, 0]], dtype=torch.float64)

    def found(unequal: float, predicted: torch.Tensor) -> bool:
        return bool(attracted(torch.tensor(unequal, dtype=torch.float64), predicted))

    assert found(0.05, uneven)
    assert not found(0.15, uneven), "more is agreed on than predicted: the classes are unequal"
    assert found(0.15, one_sided)
    assert found(0.31, one_sided)
    assert not found(0.55, one_sided), "much may be lost, and it is not clear"


@pytest.mark.parametrize("root", [0.001, 0.7, 6.3])
@pytest.mark.parametrize("steep", [0.05, 1.0, 30.0])
def test_a_falling_function_is_followed_to_where_it_is_zero(root, steep):
    low, high = torch.tensor([0.0, 9.0], dtype=torch.float64)
    for value in (lambda x: (-steep * (x - root)).tanh(), lambda x: (-steep * (x - root)).exp() - 1):
        assert float(falls_to_zero(value, low, high)) == pytest.approx(root, abs=1e-6)


def test_a_function_without_a_zero_ends_where_it_is_nearest():
    low, high = torch.tensor([0.0, 9.0], dtype=torch.float64)
    assert float(falls_to_zero(lambda x: -1 - x, low, high)) == 0.0
    assert float(falls_to_zero(lambda x: 10 - x, low, high)) == 9.0
