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
    FEW_ROWS,
    EvenSample,
    RunningMoments,
    ledoit_wolf,
    moments,
    shrink,
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


def test_weighted_rows_are_worth_one_over_the_sum_of_squared_weights(generator):
    """Kish's effective size: 9² / (1 + 4 + 1 + 9 + 1 + 1) rows, and n equal weights are n rows."""
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    weighted = weighted_moments(z, torch.tensor([1, 2, 1, 3, 1, 1], dtype=torch.float64) / 9)
    assert weighted.n == pytest.approx(81 / 17)
    equal, plain = weighted_moments(z, torch.full((6,), 1 / 6, dtype=torch.float64)), moments(z)
    torch.testing.assert_close(equal.covariance, plain.covariance)
    torch.testing.assert_close(ledoit_wolf(equal), ledoit_wolf(plain))


@pytest.mark.parametrize(("n", "d"), [(200, 5), (30, 40), (3, 8), (500, 64), (12, 1)])
def test_ledoit_wolf_is_scikit_learn_s(n, d):
    z = rows(n, d)
    expected, amount = sklearn_ledoit_wolf(z.numpy())
    for m in (moments(z), streamed(z, list(range(n))).total()):
        assert float(ledoit_wolf(m)) == pytest.approx(amount, abs=1e-8)
        ours = shrink(m.covariance * (n - 1) / n, ledoit_wolf(m))
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-8 * max(1.0, abs(expected).max()))


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
