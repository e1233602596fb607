from __future__ import annotations

import pytest
import torch

from clip_tca.adapters.symmetric import BLOCK, eigh, symmetric_product


@pytest.mark.parametrize("dim", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_a_symmetric_product_is_the_product(generator, dim):
    a = torch.randn(30, dim, generator=generator, dtype=torch.float64)
    weights = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    found = symmetric_product(a, weights * a)
    torch.testing.assert_close(found, a.T @ (weights * a))


def test_eigenvectors_leave_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        values, vectors = eigh(torch.diag(torch.tensor([3.0, 1.0])))
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError):
            eigh(torch.ones(2, 3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert values.tolist() == [1.0, 3.0]
    assert vectors.abs().tolist() == [[0.0, 1.0], [1.0, 0.0]]
