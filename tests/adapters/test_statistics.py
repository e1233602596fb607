"""Means, covariances and samples of a stream are those of all rows at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf as sklearn_ledoit_wolf

from clip_tca.adapters.statistics import (
    COLUMNS_AT_ONCE,
    FEW_ROWS,
    EvenSample,
    RunningMoments,
    coral_distance,
    evenly,
    ledoit_wolf,
    moments,
    shrink,
    symmetric_product,
    weighted_moments,
)


def rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ mix + 3


def streamed(z: torch.Tensor, cuts: list[int]) -> RunningMoments:
    running = RunningMoments()
    for a, b in itertools.pairwise(sorted({0, len(z), *(cut for cut in cuts if cut < len(z))})):
        running.add(z[a:b])
    return running


# -- moments -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 9),
    cuts=st.lists(st.integers(1, 39), max_size=6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9),
)
def test_any_split_of_a_stream_gives_the_moments_of_all_rows(n, d, cuts, dtype, seed):
    z = rows(n, d, seed).to(dtype)
    found, exact = streamed(z, cuts).total(), z.double()
    lengths = (exact - exact.mean(dim=0)).norm(dim=1)
    assert found.n == n
    torch.testing.assert_close(found.mean, exact.mean(dim=0))
    torch.testing.assert_close(found.covariance, torch.cov(exact.T).reshape(d, d), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.fourth, lengths.pow(4).mean(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 7, FEW_ROWS, 5000])
@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e15])
def test_rows_of_float32_lose_little(n, offset, size, batch):
    """Also with a large mean, with variances from 1 to 1e-8, and where float32 can't square the rows."""
    z = rows(n, 24, 3) @ torch.diag(torch.logspace(0, -4, 24, dtype=torch.float64))
    z = ((z / z.std() + offset) * size).float()
    found, exact = streamed(z, list(range(batch, n, batch))).total(), z.double()
    covariance = torch.cov(exact.T)
    error = (found.covariance - covariance).abs().max() / covariance.abs().max()
    assert float(error) < 1e-6
    torch.testing.assert_close(found.mean, exact.mean(dim=0), rtol=1e-7, atol=1e-7 * size)
    lengths = (exact - exact.mean(dim=0)).norm(dim=1)
    torch.testing.assert_close(found.fourth, lengths.pow(4).mean(), rtol=1e-5, atol=0)


def test_one_row_has_no_covariance():
    found = moments(torch.ones(1, 3))
    assert torch.equal(found.covariance, torch.zeros(3, 3, dtype=torch.float64))
    assert float(ledoit_wolf(found)) == 0.0


def test_weights_count_as_repeated_rows(generator):
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    times = torch.tensor([1, 2, 1, 3, 1, 1])
    weighted, repeated = weighted_moments(z, times.double() / 9), moments(z.repeat_interleave(times, dim=0))
    torch.testing.assert_close(weighted.mean, repeated.mean)
    biased = [m.covariance * (m.n - 1) / m.n for m in (weighted, repeated)]
    torch.testing.assert_close(*biased)
    torch.testing.assert_close(weighted.fourth, repeated.fourth)


def test_weighted_rows_are_worth_one_over_the_sum_of_squared_weights(generator):
    """Kish's effective size: 9² / (1 + 4 + 1 + 9 + 1 + 1) rows, and n equal weights are n rows."""
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    weighted = weighted_moments(z, torch.tensor([1, 2, 1, 3, 1, 1], dtype=torch.float64) / 9)
    assert weighted.n == pytest.approx(81 / 17)
    equal, plain = weighted_moments(z, torch.full((6,), 1 / 6, dtype=torch.float64)), moments(z)
    torch.testing.assert_close(equal.covariance, plain.covariance)
    torch.testing.assert_close(ledoit_wolf(equal), ledoit_wolf(plain))


# -- shrinkage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(200, 5), (30, 40), (3, 8), (500, 64), (12, 1)])
def test_ledoit_wolf_is_scikit_learn_s(n, d):
    z = rows(n, d)
    expected, amount = sklearn_ledoit_wolf(z.numpy())
    for m in (moments(z), streamed(z, list(range(n))).total()):
        assert float(ledoit_wolf(m)) == pytest.approx(amount, abs=1e-8)
        ours = shrink(m.covariance * (n - 1) / n, ledoit_wolf(m))
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-8 * max(1.0, abs(expected).max()))


def test_identical_rows_need_no_shrinkage():
    assert float(ledoit_wolf(moments(torch.ones(10, 4)))) == 0.0


def test_shrinking_keeps_the_total_variance():
    sigma = torch.cov(rows(40, 6).T)
    assert float(shrink(sigma, 0.4).trace()) == pytest.approx(float(sigma.trace()))
    torch.testing.assert_close(shrink(sigma, 0.0), sigma)
    torch.testing.assert_close(shrink(sigma, 1.0), torch.eye(6, dtype=torch.float64) * sigma.trace() / 6)


def test_the_correlation_distance_by_hand():
    a, b = torch.tensor([[1.0, 2.0], [2.0, 5.0]]), torch.eye(2)
    assert float(coral_distance(a, b)) == pytest.approx((0 + 4 + 4 + 16) / 16)


@pytest.mark.parametrize("dim", [1, COLUMNS_AT_ONCE - 1, COLUMNS_AT_ONCE, 2 * COLUMNS_AT_ONCE + 5])
def test_a_symmetric_product_is_the_product(generator, dim):
    a = torch.randn(30, dim, generator=generator, dtype=torch.float64)
    weights = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(a, weights * a), a.T @ (weights * a))


# -- samples -----------------------------------------------------------------------------------------------------------


def passed(n: int, size: int, cuts: list[int]) -> list[int]:
    """The numbers of the rows that are kept of n."""
    sample, z = EvenSample(size), torch.arange(n, dtype=torch.float64)[:, None]
    for a, b in itertools.pairwise(sorted({0, n, *(cut for cut in cuts if cut < n)})):
        sample.add(z[a:b])
        if a % 3 == 0:
            sample.rows()  # reading changes nothing
    assert sample.full == (n > size)
    return sample.rows()[:, 0].long().tolist()


@settings(deadline=None, max_examples=80)
@given(n=st.integers(1, 200), size=st.integers(1, 50), cuts=st.lists(st.integers(1, 199), max_size=10))
def test_the_sample_depends_on_the_rows_alone_and_not_on_the_batches(n, size, cuts):
    kept = passed(n, size, cuts)
    assert kept == passed(n, size, [])
    assert len(kept) == min(n, size)
    assert kept == sorted(set(kept))


@pytest.mark.parametrize("n", [1000, 10_000, 12_345])
def test_the_sample_is_spread_evenly_over_everything_seen(n):
    kept = np.array(passed(n, 100, list(range(500, n, 500))))
    assert np.diff(kept).max() < 3 * n / 100
    assert kept[0] < 2 * n / 100
    assert kept[-1] > n - 2 * n / 100
    assert np.bincount(kept * 10 // n).tolist() == pytest.approx([10] * 10, abs=2)


@pytest.mark.parametrize(("n", "most", "taken"), [(10, 10, 10), (10, 20, 10), (11, 10, 6), (100, 10, 10)])
def test_evenly_takes_at_most_so_many(n, most, taken):
    kept = list(range(n))[evenly(n, most)]
    assert len(kept) == taken
    assert len(set(np.diff(kept))) == 1
