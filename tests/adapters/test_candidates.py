"""Classes left out by a bound: what is kept is what counts, and the answer is that of all classes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from clip_tca import ZeroShotClassifier
from clip_tca.adapters import assignment, rounds
from clip_tca.adapters.candidates import Sight
from clip_tca.adapters.gaussian_fit import GaussianFit, fit_gaussians
from tests.conftest import Shifted


@pytest.fixture(scope="module")
def many() -> tuple[torch.Tensor, ZeroShotClassifier]:
    """40 classes, whose images lie apart, but not all of them, and not where the texts are."""
    generator = torch.Generator().manual_seed(0)
    g = ZeroShotClassifier(torch.randn(40, 24, generator=generator), scale=20)
    centres = functional.normalize(g.text + 0.15 * torch.randn(40, 24, generator=generator), dim=1)
    return centres.repeat(40, 1) + 0.1 * torch.randn(1600, 24, generator=generator), g


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "CELLS", 1)
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 32)


def fits(z: torch.Tensor, g: ZeroShotClassifier, monkeypatch: pytest.MonkeyPatch) -> tuple[GaussianFit, GaussianFit]:
    """With all classes in every round, and with those that the bound leaves."""
    whole = fit_gaussians(z, g)
    monkeypatch.setattr(assignment, "FEW_CLASSES", 2)
    return whole, fit_gaussians(z, g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_out_changes_nothing(many, dtype, monkeypatch):
    left = []
    score = rounds.Round._score
    monkeypatch.setattr(
        rounds.Round,
        "_score",
        lambda self, *args: left.append(0 if args[2] is None else len(args[2])) or score(self, *args),
    )
    z = many[0].to(dtype)
    whole, some = fits(z, many[1], monkeypatch)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(some.counts, whole.counts, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(some.classifier.weight, whole.classifier.weight, rtol=tolerance, atol=tolerance)
    assert any(0 < number < 20 for number in left), "no round has left out classes"


def test_where_the_rows_are_not_sure_all_classes_are_scored(monkeypatch):
    """Few dimensions, much noise: every class may be the one."""
    data = Shifted(classes=40, dim=4, images=40)
    whole, some = fits(data.z, data.g, monkeypatch)
    torch.testing.assert_close(some.classifier.weight, whole.classifier.weight, rtol=1e-3, atol=1e-3)


def test_the_bound_is_above_every_later_score(many, monkeypatch):
    """Of all rows and classes, against scores without any bound."""
    monkeypatch.setattr(assignment, "FEW_CLASSES", 2)
    checked = []
    bound_of = Sight.bound

    def checking(sight, later, moved, reach):
        bound = bound_of(sight, later, moved, reach)
        checked.append((sight, later, bound))
        return bound

    def assign(self, block, widths):
        assign_block(self, block, widths)
        for sight, later, bound in checked:
            s = later.trust / sight.fitted.trust
            expected = s * sight.best + (1 - s) * sight.evidence
            products = block.y.double() @ later.towards.T - 0.5 * later.squares
            scores = block.log_g.double() + later.log_prior + later.trust * products
            assert float((scores - expected[:, None] - bound).max()) < 1e-3
            assert float((scores - expected[:, None] - bound).max()) > -200, "a bound so loose says nothing"
            seen.append(block)
        checked.clear()

    seen: list[rounds.Block] = []
    assign_block = rounds.Round.assign
    monkeypatch.setattr(Sight, "bound", checking)
    monkeypatch.setattr(rounds.Round, "assign", assign)
    fit_gaussians(many[0], many[1])
    assert seen


def test_rounds_that_change_nothing_are_not_made(many, monkeypatch):
    """One image after the other of each class, all alike: settled at once, however many rounds are asked for."""
    made = []
    begin = rounds.Round.__init__
    monkeypatch.setattr(rounds.Round, "__init__", lambda self, *args: made.append(1) or begin(self, *args))
    monkeypatch.setattr(assignment, "FEW_CLASSES", 2)
    g, noise = many[1], 0.01 * torch.randn(1600, 24, generator=torch.Generator().manual_seed(1))
    few = fit_gaussians(functional.normalize(g.text.repeat(40, 1) + noise, dim=1), g, rounds=12)
    assert len(made) < 14
    assert float(few.counts.sum()) == pytest.approx(1600)
