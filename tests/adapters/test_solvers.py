from __future__ import annotations

import pytest
import torch

from clip_tca.adapters.solvers import EXACT, coral, gradient, in_span, monge
from clip_tca.adapters.statistics import covariance, shrink


def pair(n: int, m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def rows(count: int) -> torch.Tensor:
        mix = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
        return torch.randn(count, d, generator=generator, dtype=torch.float64) @ mix

    return covariance(rows(n)), covariance(rows(m))


@pytest.mark.parametrize("solve", EXACT.values())
@pytest.mark.parametrize("m", [400, 12])
def test_closed_forms_solve_the_equation(solve, m):
    """With a full-rank and with a rank-deficient pseudo-source."""
    sigma_t, sigma_s = pair(300, m, 32)
    w = solve(sigma_t, sigma_s)
    torch.testing.assert_close(w.T @ sigma_t @ w, sigma_s, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solve", [*EXACT.values(), gradient])
def test_equal_covariances_need_no_map(solve):
    sigma, _ = pair(300, 2, 16)
    torch.testing.assert_close(solve(sigma, sigma), torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-6)


def test_monge_of_diagonal_covariances_by_hand():
    w = monge(torch.diag(torch.tensor([4.0, 9.0])), torch.diag(torch.tensor([1.0, 36.0])))
    torch.testing.assert_close(w, torch.diag(torch.tensor([0.5, 2.0])))


def test_monge_moves_least():
    """E‖zW − z‖² = tr(WᵀΣW − ΣW − WᵀΣ + Σ) is smallest for the optimal-transport map."""
    sigma_t, sigma_s = pair(300, 300, 12)

    def cost(w: torch.Tensor) -> float:
        return float((w.T @ sigma_t @ w - sigma_t @ w - w.T @ sigma_t + sigma_t).trace())

    assert cost(monge(sigma_t, sigma_s)) < cost(coral(sigma_t, sigma_s))


@pytest.mark.parametrize(("steps", "lr"), [(20, 1e-3), (35, 1e-2), (0, 1e-3)])
def test_gradient_equals_adam_with_autograd(steps, lr):
    sigma_t, sigma_s = pair(200, 30, 24)
    w = torch.eye(24, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (w.T @ sigma_t @ w - sigma_s).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(gradient(sigma_t, sigma_s, steps, lr), w.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("solve", EXACT.values())
@pytest.mark.parametrize("n", [2, 5, 20])
def test_fewer_rows_than_dimensions_stay_finite_and_leave_the_rest_alone(solve, n):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(n, 40, generator=generator, dtype=torch.float64)
    sigma_t, sigma_s = covariance(z), covariance(z[: max(2, n // 2)])
    w = solve(sigma_t, sigma_s)
    assert torch.isfinite(w).all()
    torch.testing.assert_close(w.T @ sigma_t @ w, sigma_s, rtol=0, atol=1e-5)
    empty = torch.linalg.svd(z - z.mean(dim=0))[2][-1]  # a direction that no row has
    torch.testing.assert_close(empty @ w, empty, rtol=0, atol=1e-6)


def test_no_variance_at_all_gives_the_identity():
    zero = torch.zeros(5, 5, dtype=torch.float64)
    for solve in (*EXACT.values(), gradient):
        torch.testing.assert_close(solve(zero, zero), torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("solve", EXACT.values())
@pytest.mark.parametrize("amounts", [(0.3, 0.1), (0.2, 0.0), (0.0, 0.0)])
def test_few_rows_are_solved_in_their_span(solve, amounts):
    x = torch.randn(9, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x - x.mean(dim=0)
    sigmas = [shrink(covariance(part), amount) for part, amount in zip((x, x[:5] * 2), amounts, strict=True)]
    torch.testing.assert_close(in_span(solve, *sigmas, x), solve(*sigmas), rtol=0, atol=1e-6)
