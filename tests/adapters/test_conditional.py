from __future__ import annotations

import pytest
import torch

from clip_tca import ConditionalTCA, ZeroShotClassifier
from clip_tca.adapters import gaussian_fit
from clip_tca.adapters.assignment import Assignment, local_covariance
from clip_tca.adapters.class_priors import agreed_prior, imbalance, known_prior
from clip_tca.adapters.gaussian_fit import FEWEST_IMAGES, fit_gaussians, matching_temperature
from clip_tca.adapters.gaussians import Axes, Gaussians, SoftStatistics, prior_images
from clip_tca.adapters.overconfidence import nearest
from clip_tca.adapters.statistics import shrink
from tests.conftest import Shifted


def accuracy(predicted: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * (predicted == y).double().mean().item()


def statistics(z: torch.Tensor, q: torch.Tensor) -> tuple[Axes, torch.Tensor, SoftStatistics]:
    axes, y = Axes.of(z)
    soft = SoftStatistics.empty(axes, q.shape[1])
    soft.add(y, q, q)
    return axes, y, soft


def gaussians(axes: Axes, soft: SoftStatistics, shrinkage: float, shape: torch.Tensor | None = None) -> Gaussians:
    prior = agreed_prior(soft.support, imbalance(soft.support))
    return Gaussians.fit(axes, soft, shrinkage, prior, torch.tensor(0.5, dtype=torch.float64), shape)


def precision(fitted: Gaussians) -> torch.Tensor:
    return fitted.precise(torch.eye(len(fitted.diagonal), dtype=torch.float64))


@pytest.fixture(scope="module")
def wide() -> Shifted:
    return Shifted(classes=6, dim=64, images=240)


def test_it_gains_where_classes_are_shifted(wide):
    after = accuracy(ConditionalTCA(wide.g).fit(wide.z).predict(wide.z), wide.y)
    assert after > accuracy(wide.g.predict(wide.z), wide.y) + 5


def test_leaving_one_out_is_recomputing_the_mean_without_it(generator):
    """Against the definition: for each row, class sums and counts without its own share."""
    z = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    q = torch.rand(40, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    axes, x, soft = statistics(z, q)
    fitted = gaussians(axes, soft, 0.3)
    density = fitted.density(torch.float64)
    scores = density.scores(x, density.half * density.lengths(x)) * (1 + density.own_share(q)) + fitted.log_prior
    inverse = precision(fitted)
    for i in (0, 7, 39):
        for c in range(3):
            mean = (soft.sums[c] - q[i, c] * x[i]) / (soft.counts[c] - q[i, c] + fitted.prior_images)
            expected = fitted.log_prior[c] - 0.5 * fitted.trust * (x[i] - mean) @ inverse @ (x[i] - mean)
            assert float(scores[i, c]) == pytest.approx(float(expected), rel=1e-9)


def test_soft_statistics_of_parts_add_up_to_those_of_the_whole(generator):
    """What lets several processes estimate one classifier: counts, sums and support are plain sums over rows."""
    z = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    q = torch.randn(60, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    axes, y, whole = statistics(z, q)
    parts = SoftStatistics.empty(axes, 3)
    for rows in (slice(40, 60), slice(0, 1), slice(1, 40)):
        parts.add(y[rows], q[rows], q[rows])
    for name in ("counts", "squares", "sums", "support"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dim", "classes"), [(5, 3), (80, 3), (5, 9)])
def test_the_within_class_covariance_is_its_definition(generator, dim, classes):
    """Also of fewer rows than dimensions, where all is done in the span of the rows, and of more classes than both."""
    z = torch.randn(50, dim, generator=generator, dtype=torch.float64)
    q = torch.randn(50, classes, generator=generator, dtype=torch.float64).softmax(dim=1)
    axes, _, soft = statistics(z, q)
    fitted = gaussians(axes, soft, 0.25)
    gaps = (z - z.mean(dim=0))[:, None, :] - fitted.means @ axes.directions.T
    within = shrink(torch.einsum("nc,nci,ncj->ij", q, gaps, gaps) / 50, 0.25)
    inverse = torch.linalg.inv(precision(fitted))
    torch.testing.assert_close(inverse, axes.directions.T @ within @ axes.directions, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(axes.directions @ axes.directions.T @ gaps[0].T, gaps[0].T)


def test_probabilities_are_on_average_a_little_surer_than_those_of_zero_shot(wide):
    """By 0.3 for each changed prediction."""
    tca = ConditionalTCA(wide.g).fit(wide.z)
    p = tca.probabilities(wide.z)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)))
    assert float(tca.temperature_) > 1
    zero_shot = wide.g.probabilities(wide.z).max(dim=1)
    changed = (p.argmax(dim=1) != zero_shot.indices).float().mean()
    assert changed > 0.02
    expected = float(zero_shot.values.mean() + 0.3 * changed)
    assert float(p.max(dim=1).values.mean()) == pytest.approx(expected, abs=0.01)


def test_the_first_covariance_has_the_shape_of_differences_between_neighbours(generator):
    """Against the definition, row by row; and a given shape replaces that of the statistics."""
    z = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(30):
        distance = (z - z[i]).norm(dim=1)
        distance[i] = float("inf")
        for j in distance.argsort()[:3]:
            expected += torch.outer(z[i] - z[j], z[i] - z[j])
    shape = local_covariance(z, nearest(z, 3))
    torch.testing.assert_close(shape, expected / expected.trace())
    q = torch.randn(30, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    axes, _, soft = statistics(z, q)
    usual, shaped = (torch.linalg.inv(precision(gaussians(axes, soft, 0.2, s))) for s in (None, shape))
    assert float(shaped.trace()) == pytest.approx(float(usual.trace()), rel=1e-4)
    mixed = shrink(shape * usual.trace(), 0.2)
    torch.testing.assert_close(shaped, mixed, rtol=1e-4, atol=1e-6)


def test_imbalance_and_priors_by_hand():
    equal, one = torch.full((4,), 50.0, dtype=torch.float64), torch.tensor([1e9, 0, 0, 0], dtype=torch.float64)
    assert float(imbalance(equal)) == pytest.approx(0.0, abs=0.01)
    assert float(imbalance(one)) == pytest.approx(1.0, abs=0.01)
    assert float(imbalance(torch.tensor([3.0, 1.0, 2.0, 2.0], dtype=torch.float64))) == 0.0  # may be chance
    assert agreed_prior(equal, torch.tensor(1.0)).abs().max() < 0.1  # equal classes: no prior
    assert agreed_prior(one, torch.tensor(0.0)).abs().max() == 0.0  # nor where the first look saw them equal
    strong = agreed_prior(one, torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(strong, 2 * ((one + 1) / (one.sum() + 4)).log())
    prior = known_prior(torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64), 100)
    torch.testing.assert_close(prior.exp() * 101, torch.tensor([75.5, 25.5, 1e-9], dtype=torch.float64))


def test_shares_that_are_known_are_the_prior(wide):
    """Images of two classes of six: who says so gains more, and names serve as well as numbers."""
    present = wide.y < 2
    z, y = wide.z[present], wide.y[present]
    named = ZeroShotClassifier(wide.g.text, wide.g.scale, classes=list("abcdef"))
    estimated = accuracy(ConditionalTCA(wide.g).fit(z).predict(z), y)
    known = ConditionalTCA(wide.g, shares=[1, 1, 0, 0, 0, 0]).fit(z)
    by_name = ConditionalTCA(named, shares={"a": 0.5, "b": 0.5} | dict.fromkeys("cdef", 0)).fit(z)
    assert accuracy(known.predict(z), y) > estimated
    torch.testing.assert_close(by_name.weight_, known.weight_)


def test_matching_temperature_by_hand():
    """Two classes, one logit gap of 8: softmax(8/T) = 0.8 at T = 8 / log 4."""
    found = matching_temperature(
        torch.tensor([[8.0, 0.0]], dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    )
    assert float(found) == pytest.approx(8 / torch.log(torch.tensor(4.0)).item(), rel=1e-6)
    modest = matching_temperature(
        torch.tensor([[0.1, 0.0]], dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
    )
    assert float(modest) == pytest.approx(1.0)


def test_transform_moves_no_more_than_needed(wide):
    """What it adds lies in the span of the differences between class texts."""
    tca = ConditionalTCA(wide.g).fit(wide.z)
    z = wide.z.double()
    move = tca.transform(z) - z
    text = wide.g.text.double()
    basis = torch.linalg.svd(text - text.mean(dim=0), full_matrices=False)[2][:-1]
    torch.testing.assert_close(move @ basis.T @ basis, move, rtol=0, atol=1e-5)


def test_more_classes_than_dimensions(generator):
    g = ZeroShotClassifier(torch.randn(40, 8, generator=generator), scale=20)
    z = g.text.repeat(20, 1) + 0.2 * torch.randn(800, 8, generator=generator)
    tca = ConditionalTCA(g).fit(z)
    y = torch.arange(40).repeat(20)
    assert torch.isfinite(tca.transform(z)).all()
    assert accuracy(tca.predict(z), y) > accuracy(g.predict(z), y) - 3


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_prior_images_are_variance_within_over_between(generator, spread):
    """Known classes, many images: within 1 for each of 4 dimensions, between ``spread``² for each."""
    centres = spread * torch.randn(200, 4, generator=generator, dtype=torch.float64)
    z = centres.repeat(30, 1) + torch.randn(6000, 4, generator=generator, dtype=torch.float64)
    q = torch.eye(200, dtype=torch.float64).repeat(30, 1)
    axes, _, soft = statistics(z, q)
    kappa = prior_images(axes, soft)
    assert float(kappa) == pytest.approx(max(2.0, 1 / spread**2), rel=0.15)


@pytest.mark.parametrize("dim", [96, 384])
@pytest.mark.parametrize("images", [5, 12, 37])
def test_few_images_of_65_classes(images, dim):
    data = Shifted(classes=65, dim=dim, images=images)
    before = accuracy(data.g.predict(data.z), data.y)
    after = accuracy(ConditionalTCA(data.g).fit(data.z).predict(data.z), data.y)
    assert after > before - 100 * (0.25 / len(data.y)) ** 0.5  # one standard error of an accuracy


def test_too_few_images_keep_zero_shot(wide):
    few = wide.z[: FEWEST_IMAGES - 1]
    tca = ConditionalTCA(wide.g).fit(few)
    torch.testing.assert_close(tca.transform(few), few, rtol=0, atol=1e-5)
    assert torch.equal(tca.predict(few), wide.g.predict(few))


def test_absent_classes_do_not_run_away(wide):
    """Images of two classes only, prompts of six."""
    present = wide.y < 2
    z, y = wide.z[present], wide.y[present]
    after = ConditionalTCA(wide.g).fit(z).predict(z)
    assert accuracy(after, y) >= accuracy(wide.g.predict(z), y)


def test_a_class_with_one_image_is_not_swallowed():
    data = Shifted(classes=5, dim=48, images=100, domain="clean")
    rare = torch.cat([(data.y > 0).nonzero()[:, 0], (data.y == 0).nonzero()[:1, 0]])
    z, y = data.z[rare], data.y[rare]
    assert accuracy(ConditionalTCA(data.g).fit(z).predict(z), y) == 100.0


def test_the_sample_bounds_the_memory_and_costs_little(wide):
    whole = ConditionalTCA(wide.g).fit(wide.z)
    bounded = ConditionalTCA(wide.g, memory=400).fit(wide.z)
    assert float(bounded.counts_.sum()) == pytest.approx(400)
    assert abs(accuracy(bounded.predict(wide.z), wide.y) - accuracy(whole.predict(wide.z), wide.y)) < 4


def test_counts_are_close_to_the_truth(wide):
    fitted = fit_gaussians(wide.z, wide.g)
    assert float(fitted.counts.sum()) == pytest.approx(len(wide.z))
    assert (fitted.counts - 240).abs().max() < 120


def test_disputed_is_the_mean_confidence_in_the_predictions_that_change(generator):
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]], dtype=torch.float64)
    z = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    rows = Assignment.of(z, p.log(), 1.0, 0.3)
    q = torch.tensor([[0.2, 0.8], [0.7, 0.3], [0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    assert float(rows.disputed(q.argmax(dim=1))) == pytest.approx((0.9 + 0.7) / 2)
    assert float(rows.disputed(p.argmax(dim=1))) == 0.0


def test_a_classifier_that_is_sure_of_what_would_change_is_kept(wide, monkeypatch):
    sure = float(ConditionalTCA(wide.g).fit(wide.z).disputed_)
    monkeypatch.setattr(gaussian_fit, "KEPT", sure + 0.01)
    assert not torch.equal(ConditionalTCA(wide.g).fit(wide.z).predict(wide.z), wide.g.predict(wide.z))
    monkeypatch.setattr(gaussian_fit, "KEPT", sure - 0.01)
    kept = ConditionalTCA(wide.g).fit(wide.z)
    assert torch.equal(kept.predict(wide.z), wide.g.predict(wide.z))
    torch.testing.assert_close(kept.transform(wide.z), torch.nn.functional.normalize(wide.z, dim=1), atol=1e-5, rtol=0)
    known = ConditionalTCA(wide.g, shares=[1.0] * wide.g.n_classes).fit(wide.z)
    assert not torch.equal(known.predict(wide.z), wide.g.predict(wide.z))
