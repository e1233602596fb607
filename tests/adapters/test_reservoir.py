from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_tca.adapters.reservoir import Reservoir


def passed(n: int, size: int, bounds: list[int]) -> Reservoir:
    sample = Reservoir(size, 2, torch.device("cpu"), torch.float32)
    rows = torch.arange(2 * n, dtype=torch.float32).reshape(n, 2)
    for a, b in itertools.pairwise(bounds):
        sample.update(rows[a:b])
    return sample


@settings(deadline=None, max_examples=80)
@given(n=st.integers(1, 200), size=st.integers(1, 50), cuts=st.lists(st.integers(1, 199), max_size=10))
def test_the_sample_depends_on_the_rows_alone_not_on_the_batches(n, size, cuts):
    whole = passed(n, size, [0, n])
    stream = passed(n, size, sorted({0, n, *(c for c in cuts if c < n)}))
    assert whole.seen == stream.seen == n
    assert len(whole.rows()) == min(n, size)
    assert torch.equal(whole.rows(), stream.rows())
    np.testing.assert_array_equal(np.sort(whole.order) * 2.0, whole.rows()[:, 0].numpy())


def test_the_sample_is_spread_evenly_over_everything_seen():
    order = np.sort(passed(10_000, 100, [0, 10_000]).order)
    assert np.diff(order).max() < 3 * 100
    assert order[0] < 200
    assert order[-1] > 9_800


def test_a_larger_sample_of_an_earlier_version_becomes_the_smaller_one():
    earlier, sample = passed(300, 100, [0, 300]), passed(0, 40, [0, 0])
    sample.restore(earlier.state(), {"d": 2})
    assert torch.equal(sample.rows(), passed(300, 40, [0, 300]).rows())
    more = torch.arange(600, 1000, dtype=torch.float32).reshape(200, 2)
    sample.update(more)
    assert torch.equal(sample.rows(), passed(500, 40, [0, 500]).rows())
