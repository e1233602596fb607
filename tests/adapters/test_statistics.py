from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf as sklearn_ledoit_wolf

from clip_tca.adapters.statistics import (
    BLOCK,
    FEW,
    Moments,
    StreamMoments,
    coral_distance,
    covariance,
    ledoit_wolf_shrinkage,
    mean,
    shrink,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return (torch.randn(n, d, generator=generator, dtype=torch.float64) @ mix + 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_covariance_is_numpy_s_whatever_the_dtype(dtype):
    z = rows(50, 7, dtype=dtype)
    exact = z.double().numpy()
    assert covariance(z).dtype == torch.float64
    np.testing.assert_allclose(covariance(z).numpy(), np.cov(exact.T), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean(z).numpy(), exact.mean(axis=0), rtol=1e-12)


def test_a_large_offset_costs_no_digits():
    z = rows(200, 5)
    np.testing.assert_allclose(covariance(z + 1e6).numpy(), covariance(z).numpy(), rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 9),
)
def test_any_split_of_a_stream_gives_the_one_shot_moments(n, d, cuts, dtype, seed):
    z = rows(n, d, seed, dtype)
    bounds = sorted({0, n, *(c for c in cuts if c < n)})
    stream = Moments.empty(d)
    for a, b in itertools.pairwise(bounds):
        stream.update(z[a:b])
    whole = Moments.of(z)
    x = z.double() - z.double().mean(dim=0)
    squares = (x * x).sum(dim=1)
    assert stream.n == n
    for moments in (stream, whole):
        torch.testing.assert_close(moments.scatter, x.T @ x, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(moments.cubes, squares @ x, rtol=1e-8, atol=1e-6)
        torch.testing.assert_close(moments.quartics, squares @ squares, rtol=1e-8, atol=1e-6)


def test_moments_merge_in_any_order():
    parts = [rows(n, 6, seed) for seed, n in enumerate((1, 13, 40))]
    whole = Moments.of(torch.cat(parts))
    for order in itertools.permutations(parts):
        merged = Moments.empty(6)
        for part in order:
            merged = merged.merge(Moments.of(part))
        torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(merged.scatter, whole.scatter, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(merged.quartics, whole.quartics, rtol=1e-10, atol=1e-10)


def test_merge_leaves_its_operands_alone():
    a, b = Moments.of(rows(9, 3)), Moments.of(rows(5, 3, 1))
    before = a.scatter.clone(), a.n
    a.merge(b)
    assert a.n == before[1]
    assert torch.equal(a.scatter, before[0])


@pytest.mark.parametrize(("n", "d"), [(200, 5), (30, 40), (3, 8), (500, 64), (12, 1)])
def test_ledoit_wolf_is_scikit_learn_s(n, d):
    z = rows(n, d)
    expected, amount = sklearn_ledoit_wolf(z.numpy())
    moments = Moments.of(z)
    shrinkage = ledoit_wolf_shrinkage(moments)
    assert float(shrinkage) == pytest.approx(amount, abs=1e-8)
    ours = shrink(moments.scatter / moments.n, shrinkage)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-8 * max(1.0, abs(expected).max()))


def test_ledoit_wolf_streams():
    z = rows(77, 20)
    stream = Moments.empty(20)
    for row in z.split(1):
        stream.update(row)
    assert float(ledoit_wolf_shrinkage(stream)) == pytest.approx(sklearn_ledoit_wolf(z.numpy())[1], abs=1e-8)


def test_identical_rows_need_no_shrinkage_and_stay_finite():
    assert float(ledoit_wolf_shrinkage(Moments.of(torch.ones(10, 4)))) == 0.0


def test_shrinking_keeps_the_total_variance():
    sigma = covariance(rows(40, 6))
    shrunk = shrink(sigma, 0.4)
    assert float(shrunk.trace()) == pytest.approx(float(sigma.trace()))
    torch.testing.assert_close(shrink(sigma, 1.0), torch.eye(6, dtype=torch.float64) * sigma.trace() / 6)


def test_coral_distance_by_hand():
    a, b = torch.tensor([[1.0, 2.0], [2.0, 5.0]]), torch.eye(2)
    assert float(coral_distance(a, b)) == pytest.approx((0 + 4 + 4 + 16) / 16)


def test_no_rows_change_nothing():
    moments = Moments.of(rows(5, 3))
    before = moments.mean.clone()
    moments.update(rows(0, 3))
    assert moments.n == 5
    assert torch.equal(moments.mean, before)
    assert torch.equal(covariance(rows(0, 3)), torch.zeros(3, 3, dtype=torch.float64))


def streamed(z: torch.Tensor, cuts: list[int]) -> StreamMoments:
    stream = StreamMoments(z.shape[1], dtype=z.dtype)
    for a, b in itertools.pairwise(sorted({0, len(z), *cuts})):
        stream.update(z[a:b])
    return stream


def same_bits(a: Moments, b: Moments) -> bool:
    return a.n == b.n and all(torch.equal(vars(a)[name], vars(b)[name]) for name in vars(a) if name != "n")


@settings(deadline=None, max_examples=30)
@given(
    n=st.sampled_from([1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 300]),
    cuts=st.lists(st.integers(1, 2 * BLOCK), max_size=6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_split_of_a_stream_gives_the_same_bits(n, cuts, dtype):
    z = rows(n, 5, dtype=dtype)
    assert same_bits(streamed(z, [cut for cut in cuts if cut < n]).total(), StreamMoments.of(z))


def test_a_stream_that_was_saved_goes_on_to_the_same_bits():
    z = rows(2 * BLOCK + 100, 5, dtype=torch.float32)
    resumed = StreamMoments.restored(streamed(z[: BLOCK + 30], [3]).state())
    resumed.update(z[BLOCK + 30 :])
    assert same_bits(resumed.total(), StreamMoments.of(z))


@pytest.mark.parametrize("n", [300, FEW + 50, 3 * BLOCK + 50])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e15])
def test_blocks_in_float32_lose_less_than_rows_of_float32_have(n, offset, size):
    """Also with a large mean, with variances from 1 to 1e-8, and where float32 can't square the rows."""
    z = rows(n, 24, 3) @ torch.diag(torch.logspace(0, -4, 24, dtype=torch.float64))
    z = ((z / z.std() + offset) * size).float()
    found, exactly = StreamMoments.of(z), Moments.of(z)
    deviations = exactly.scatter.diagonal().sqrt()
    error = (found.scatter - exactly.scatter) / deviations / deviations[:, None]
    assert float(error.abs().max()) < (5e-6 if n > FEW else 1e-12)
    torch.testing.assert_close(found.mean, exactly.mean, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.quartics, exactly.quartics, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.cubes, exactly.cubes, rtol=1e-4, atol=float(exactly.cubes.abs().max()) * 1e-5)
    assert float(ledoit_wolf_shrinkage(found)) == pytest.approx(float(ledoit_wolf_shrinkage(exactly)), rel=1e-4)


def test_segments_of_several_processes_are_those_of_one():
    z = rows(3 * BLOCK, 4, dtype=torch.float32)
    parts = z.split(BLOCK + 100)
    one, other, alone = (StreamMoments(4) for _ in range(3))
    for number, part in enumerate(parts):
        for stream in (alone, (one, other)[number % 2]):
            stream.update(part)
            stream.end_segment(number)
    other.merge(one)
    assert same_bits(other.total(), alone.total())
