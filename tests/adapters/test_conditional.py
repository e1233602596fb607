"""ConditionalTCA: equations (1) and (2) and each safeguard, against its definition."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clip_tca import ConditionalTCA, LinearClassifier, ZeroShotClassifier
from clip_tca.adapters.conditional import (
    FEWEST_IMAGES,
    Estimate,
    Gaussians,
    Rows,
    Statistics,
    agreed_prior,
    along_axes,
    class_gaussians,
    discriminant,
    falling_root,
    fit_conditional,
    given_prior,
    imbalance,
    imbalance_is_artefact,
    least_move,
    local_covariance,
    matching_temperature,
    nearest,
    neighbour_temperature,
    prior_images,
    responsibilities,
    spread_rows,
)
from clip_tca.adapters.statistics import shrink
from tests.conftest import Shifted


@pytest.fixture(scope="module")
def wide() -> Shifted:
    return Shifted(classes=6, dim=64, images=240)


def drawn(n: int, d: int, c: int, seed: int = 0) -> tuple[Tensor, Tensor, Rows, Statistics]:
    """Random rows z and soft assignments q, with what is summed up of them; here p⁰ = q."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64) + 2
    q = (2 * torch.randn(n, c, generator=generator, dtype=torch.float64)).softmax(dim=1)
    rows = along_axes(z, q.log())
    soft = Statistics.empty(rows)
    soft.add(rows.y, q, rows.log_p)
    return z, q, rows, soft


def precision(rows: Rows, fitted: Gaussians) -> Tensor:
    """S⁻¹ ``(d, d)`` in the coordinates of the rows, where they have variance."""
    return rows.axes @ fitted.times_precision(torch.eye(len(fitted.diagonal), dtype=torch.float64)) @ rows.axes.T


# -- g and its neighbours ----------------------------------------------------------------------------------------------


def test_the_nearest_rows_by_hand():
    y = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    assert nearest(y, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    assert nearest(y[:2], 3).tolist() == [[1], [0]]


def test_the_same_rows_are_taken_in_whatever_order_they_come(generator):
    z = torch.randn(1000, 3, generator=generator).relu()  # many have the same first coordinate
    order = torch.randperm(1000, generator=generator)
    taken, others = z[spread_rows(z, 100)], z[order][spread_rows(z[order], 100)]
    assert len(taken) == 100
    assert torch.equal(taken, others)


def test_the_temperature_predicts_the_neighbour_best(generator):
    log_g = (2 * torch.randn(60, 4, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    neighbour = torch.randperm(60, generator=generator)
    mixed = (0.6 * log_g + 0.4 * log_g[neighbour]).log_softmax(dim=1)

    def likelihood(t: float) -> float:
        return float((mixed.exp()[neighbour] * (mixed / t).log_softmax(dim=1)).sum())

    best = max(torch.linspace(1, 5, 801).tolist(), key=likelihood)
    assert best > 1.1
    assert neighbour_temperature(mixed, neighbour) == pytest.approx(best, abs=0.005)


def test_where_neighbours_agree_nothing_is_cooled(generator):
    pairs = torch.randn(40, 5, generator=generator).log_softmax(dim=1).repeat_interleave(2, dim=0)
    other = torch.arange(80).view(-1, 2).flip(1).flatten()
    assert neighbour_temperature(pairs, other) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_a_head_that_is_sure_of_everything_is_adapted_like_a_calm_one(factor, shifted):
    calm = ConditionalTCA(LinearClassifier(shifted.g.weight)).fit(shifted.z)
    sure = ConditionalTCA(LinearClassifier(factor * shifted.g.weight)).fit(shifted.z)
    assert float(sure.start_temperature_) > factor
    assert float((sure.predict(shifted.z) == calm.predict(shifted.z)).double().mean()) > 0.9
    for adapter in (calm, sure):
        assert adapter.score(shifted.z, shifted.y) > shifted.g.score(shifted.z, shifted.y)


def test_the_first_covariance_is_that_of_the_differences_between_neighbours(generator):
    z = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(30):
        distance = (z - z[i]).norm(dim=1)
        distance[i] = float("inf")
        for j in distance.argsort()[:3]:
            expected += torch.outer(z[i] - z[j], z[i] - z[j])
    torch.testing.assert_close(local_covariance(z, nearest(z, 3)), expected / expected.trace())


@pytest.mark.parametrize("root", [0.001, 0.7, 6.3])
@pytest.mark.parametrize("steep", [0.05, 1.0, 30.0])
def test_a_falling_function_is_followed_to_where_it_is_zero(root, steep):
    for value in (lambda gap: (-gap).tanh(), lambda gap: (-gap).exp() - 1):
        found = falling_root(lambda x, f=value: f(torch.tensor(steep * (x - root)).double()), 0.0, 9.0)
        assert found == pytest.approx(root, abs=1e-6)


def test_a_function_without_a_zero_ends_where_it_is_nearest():
    assert falling_root(lambda x: torch.tensor(-1 - x), 0.0, 9.0) == 0.0
    assert falling_root(lambda x: torch.tensor(10 - x), 0.0, 9.0) == 9.0


# -- equation (2) ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "classes"), [(5, 3), (20, 3), (80, 3), (5, 9)])
def test_means_and_covariance_are_those_of_the_equation(dim, classes):
    """By Woodbury or by a plain inverse: few classes or many, more rows than dimensions or fewer."""
    z, q, rows, soft = drawn(50, dim, classes)
    fitted = class_gaussians(rows, soft, 0.25)
    x, kappa = z - z.mean(dim=0), float(fitted.kappa)
    means = q.T @ x / (q.sum(dim=0) + kappa)[:, None]
    torch.testing.assert_close(fitted.means @ rows.axes.T, means)
    gaps = x[:, None, :] - means
    s = shrink(torch.einsum("nc,nci,ncj->ij", q, gaps, gaps) / 50, 0.25)
    seen = rows.axes @ rows.axes.T  # where the rows have variance
    torch.testing.assert_close(precision(rows, fitted), seen @ torch.linalg.inv(s) @ seen, rtol=1e-4, atol=1e-4)
    direct = ((x @ torch.linalg.inv(s)) * x).sum(dim=1)
    torch.testing.assert_close(fitted.squared_lengths(rows.y), direct, rtol=1e-4, atol=1e-4)


def test_a_given_shape_replaces_that_of_the_covariance_and_keeps_its_trace(generator):
    _, _, rows, soft = drawn(60, 4, 3)
    shape = torch.cov(torch.randn(4, 20, generator=generator, dtype=torch.float64))
    shape = shape / shape.trace()
    usual, shaped = (torch.linalg.inv(precision(rows, class_gaussians(rows, soft, 0.2, s))) for s in (None, shape))
    turned = rows.axes @ shape @ rows.axes.T
    torch.testing.assert_close(shaped, shrink(turned * usual.trace(), 0.2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 0.25])
@pytest.mark.parametrize("images", [2, 30])
def test_kappa_is_the_variance_within_classes_over_that_between_them(generator, spread, images):
    """Within 1 in each of 4 dimensions, between ``spread``². A mean of 2 images has noise of 1/2: that is taken off."""
    centres = spread * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    z = centres.repeat(images, 1) + torch.randn(300 * images, 4, generator=generator, dtype=torch.float64)
    q = torch.eye(300, dtype=torch.float64).repeat(images, 1)
    rows = along_axes(z, q)
    soft = Statistics.empty(rows)
    soft.add(rows.y, q, q)
    assert float(prior_images(rows, soft)) == pytest.approx(1 / spread**2, rel=0.15 if images > 2 else 0.4)


def test_kappa_is_from_2_to_100(generator):
    for spread, limit in ((3.0, 2.0), (0.0, 100.0)):
        z = spread * torch.eye(4).repeat(50, 1) + 0.1 * torch.randn(200, 4, generator=generator)
        rows = along_axes(z.double(), torch.eye(4).repeat(50, 1))
        soft = Statistics.empty(rows)
        soft.add(rows.y, torch.eye(4).double().repeat(50, 1), rows.log_p)
        assert float(prior_images(rows, soft)) == pytest.approx(limit, rel=0.7 if limit > 2 else 0)


# -- the class prior ---------------------------------------------------------------------------------------------------


def test_imbalance_by_hand():
    equal, one = torch.full((4,), 50.0, dtype=torch.float64), torch.tensor([1e9, 0, 0, 0], dtype=torch.float64)
    assert float(imbalance(equal)) == pytest.approx(0.0, abs=0.01)
    assert float(imbalance(one)) == pytest.approx(1.0, abs=0.01)
    assert float(imbalance(torch.tensor([3.0, 1.0, 2.0, 2.0], dtype=torch.float64))) == 0.0  # may be chance
    many = torch.tensor([3e6, 1e6, 0, 0], dtype=torch.float64)
    assert float(imbalance(many)) == pytest.approx(1 + math.log(0.75**2 + 0.25**2) / math.log(4), abs=1e-4)


def test_the_prior_grows_with_the_imbalance_up_to_what_was_seen_at_first():
    equal, one = torch.full((4,), 50.0, dtype=torch.float64), torch.tensor([1e9, 0, 0, 0], dtype=torch.float64)
    full = torch.tensor(1.0, dtype=torch.float64)
    assert agreed_prior(equal, full).abs().max() < 0.1  # equal classes: no prior
    assert agreed_prior(one, 0 * full).abs().max() == 0.0  # nor where they seemed equal at first
    log_pi = ((one + 1) / (one.sum() + 4)).log()
    torch.testing.assert_close(agreed_prior(one, full), 2 * log_pi)
    torch.testing.assert_close(agreed_prior(one, 0.1 * full), 0.6 * log_pi)


def test_given_shares_are_the_prior_with_half_an_image_more():
    prior = given_prior(torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64), 100)
    torch.testing.assert_close(prior.exp() * 101, torch.tensor([75.5, 25.5, 1e-9], dtype=torch.float64))


def test_predictions_more_unequal_than_what_is_agreed_on_are_the_work_of_one_class():
    uneven, one_sided = torch.tensor([[40.0, 25, 20, 15], [70, 30, 0, 0]], dtype=torch.float64)

    def found(unequal: float, predicted: Tensor) -> bool:
        return bool(imbalance_is_artefact(torch.tensor(unequal, dtype=torch.float64), predicted))

    assert found(0.05, uneven)
    assert not found(0.15, uneven), "more is agreed on than predicted: the classes are unequal"
    assert found(0.15, one_sided)
    assert found(0.31, one_sided)
    assert not found(0.55, one_sided), "much may be lost, and it is not clear"


def test_shares_that_are_known_are_the_prior(wide):
    """Images of two classes of six: who says so gains more, and names serve as well as numbers."""
    present = wide.y < 2
    z, y = wide.z[present], wide.y[present]
    known = ConditionalTCA(wide.g, shares=[1, 1, 0, 0, 0, 0]).fit(z)
    named = wide.g.named(list("abcdef"))
    by_name = ConditionalTCA(named, shares={"a": 0.5, "b": 0.5} | dict.fromkeys("cdef", 0)).fit(z)
    assert known.score(z, y) > ConditionalTCA(wide.g).fit(z).score(z, y)
    assert int(known.predict(z).max()) < 2
    torch.testing.assert_close(by_name.weight_, known.weight_)


def test_words_for_shares_are_those_numbers(wide):
    predicted = torch.bincount(wide.g.predict(wide.z), minlength=6)
    for word, numbers in (("uniform", [1] * 6), ("predicted", predicted)):
        by_word, by_number = (ConditionalTCA(wide.g, shares=shares).fit(wide.z) for shares in (word, numbers))
        torch.testing.assert_close(by_word.weight_, by_number.weight_)


# -- equation (1) ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", [0.0, 1.0, 2.5])
def test_each_row_is_assigned_by_means_without_it(anchor):
    """Leave-one-out, by definition: for each row and class, sums and counts without its own share."""
    z, q, rows, soft = drawn(40, 6, 3)
    fitted = class_gaussians(rows, soft, 0.3)
    log_prior, trust = torch.tensor([-0.5, -1.0, -2.0]).double(), torch.tensor(0.7).double()
    new = q.clone()
    again = responsibilities(rows, new, fitted, None, log_prior, trust, anchor)
    x, inverse = z - z.mean(dim=0), precision(rows, fitted)
    for i in range(40):
        scores = []
        for c in range(3):
            counts, sums = q[:, c].sum() - q[i, c], q[:, c] @ x - q[i, c] * x[i]
            gap = x[i] - sums / (counts + fitted.kappa)
            scores.append(anchor * q[i, c].log() + log_prior[c] - trust / 2 * gap @ inverse @ gap)
        torch.testing.assert_close(new[i], torch.stack(scores).softmax(dim=0))
    torch.testing.assert_close(again.counts, new.sum(dim=0))
    torch.testing.assert_close(again.sums, new.T @ rows.y)
    torch.testing.assert_close(again.support, (new * q).sum(dim=0))


def test_the_classifier_that_is_learned_is_the_discriminant_of_the_gaussians():
    """z·S⁻¹m_c − ½ m_cᵀS⁻¹m_c + log π_c for z as it is, not centred, less the noise of an estimated mean."""
    z, q, rows, soft = drawn(60, 5, 3)
    fitted = class_gaussians(rows, soft, 0.3)
    log_prior, trust = torch.tensor([-0.5, -1.0, -2.0]).double(), torch.tensor(0.7).double()
    means, weight, bias = discriminant(rows, Estimate(q, soft, fitted, log_prior, trust))
    x, inverse = z - z.mean(dim=0), precision(rows, fitted)
    centred = fitted.means @ rows.axes.T
    torch.testing.assert_close(means, centred + z.mean(dim=0))
    length = ((x @ inverse) * x).sum(dim=1).mean()
    noise = length * q.sum(dim=0) / (q.sum(dim=0) + fitted.kappa).square()
    squares = ((centred @ inverse) * centred).sum(dim=1) - noise
    torch.testing.assert_close(z @ weight.T + bias, trust * (x @ inverse @ centred.T - squares / 2) + log_prior)


# -- keeping g, temperature, transform ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sure", [0.6, 0.63, 0.67, 0.75])
def test_a_classifier_that_is_sure_of_what_would_change_is_kept(sure, generator):
    """A tenth of one class lies beside the other class. g tells them apart, being as ``sure`` of all as of these."""
    centres = torch.tensor([[-4.0, 1.0]] * 90 + [[4.0, 1.0]] * 10 + [[4.0, -1.0]] * 100).double()
    z = centres + 0.1 * torch.randn(200, 2, generator=generator).double()
    g = LinearClassifier(torch.tensor([[0.0, 0.5], [0.0, -0.5]]).double() * math.log(sure / (1 - sure)))
    tca, known = ConditionalTCA(g).fit(z), ConditionalTCA(g, shares="uniform").fit(z)
    assert float(tca.disputed_) == pytest.approx(sure, abs=0.01)
    assert int((known.predict(z) != g.predict(z)).sum()) >= 10, "known shares are reason enough to change"
    if sure > 0.65:
        torch.testing.assert_close(tca.logits(z), g.logits(z), rtol=0, atol=1e-5)
        torch.testing.assert_close(tca.transform(z), z, rtol=0, atol=1e-5)
    else:
        assert int((tca.predict(z) != g.predict(z)).sum()) >= 10


def test_fewer_than_8_images_keep_g(wide, caplog):
    few = wide.z[: FEWEST_IMAGES - 1]
    with caplog.at_level(logging.WARNING, "clip_tca"):
        tca = ConditionalTCA(wide.g).fit(few)
    assert "7 images; with fewer than 8" in caplog.text
    torch.testing.assert_close(tca.transform(few), few, rtol=0, atol=1e-5)
    torch.testing.assert_close(tca.logits(few), wide.g.logits(few))


def test_a_memory_of_fewer_than_8_images_is_logged_too(wide, caplog):
    with caplog.at_level(logging.WARNING, "clip_tca"):
        tca = ConditionalTCA(wide.g, memory=4).fit(wide.z)
    assert torch.equal(tca.predict(wide.z), wide.g.predict(wide.z))
    assert "4 images; with fewer than 8" in caplog.text


def test_probabilities_are_on_average_a_little_surer_than_those_of_g(wide):
    """By 0.3 for each changed prediction."""
    tca = ConditionalTCA(wide.g).fit(wide.z)
    p, before = tca.predict_proba(wide.z), wide.g.predict_proba(wide.z).max(dim=1)
    assert float(tca.temperature_) > 1
    changed = (p.argmax(dim=1) != before.indices).float().mean()
    assert changed > 0.02
    expected = float(before.values.mean() + 0.3 * changed)
    assert float(p.max(dim=1).values.mean()) == pytest.approx(expected, abs=1e-3)


def test_the_matching_temperature_by_hand():
    """One image, which g gives 0.8 and the adapted logits a gap of 8: softmax(8/T) = 0.8 at T = 8 / log 4."""
    z, gap = torch.ones(1, 1, dtype=torch.float64), math.log(4)
    g = LinearClassifier(torch.tensor([[gap], [0.0]]).double())
    zero = torch.zeros(2, dtype=torch.float64)
    found = matching_temperature(z, torch.tensor([[8.0], [0.0]]).double(), zero, g)
    assert found == pytest.approx(8 / gap, rel=1e-5)
    changed = matching_temperature(z, torch.tensor([[0.0], [8.0]]).double(), zero, g)
    assert changed == pytest.approx(8 / math.log(99), rel=1e-5)  # 0.8 + 0.3, but at most 0.99
    assert matching_temperature(z, torch.tensor([[0.1], [0.0]]).double(), zero, g) == 1.0  # never surer


@pytest.mark.parametrize(("classes", "dim"), [(6, 64), (12, 5)])
def test_the_move_is_the_least_after_which_g_predicts_the_same(classes, dim, generator):
    """Against the pseudo-inverse of the centred weights, also of more classes than dimensions."""
    g = LinearClassifier(*(torch.randn(classes, n, generator=generator).double().squeeze() for n in (dim, 1)))
    w = g.weight - g.weight.mean(dim=0)
    weight = g.weight + w @ torch.randn(dim, dim, generator=generator).double()  # one that a move can reach
    bias = g.bias + w @ torch.randn(dim, generator=generator).double()
    matrix, offset = least_move(weight, bias, g)
    z = torch.randn(9, dim, generator=generator).double()
    moved = z @ matrix + offset
    torch.testing.assert_close(g.predict_proba(moved), (z @ weight.T + bias).softmax(dim=1))
    difference = z @ (weight - g.weight).T + bias - g.bias
    least = (difference - difference.mean(dim=1, keepdim=True)) @ torch.linalg.pinv(w).T
    torch.testing.assert_close(moved - z, least)


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_it_gains_where_classes_are_shifted(wide):
    assert ConditionalTCA(wide.g).fit(wide.z).score(wide.z, wide.y) > wide.g.score(wide.z, wide.y) + 0.05


def test_counts_and_means_are_those_of_the_classes(wide):
    tca = ConditionalTCA(wide.g).fit(wide.z)
    assert float(tca.counts_.sum()) == pytest.approx(len(wide.z))
    assert (tca.counts_ - 240).abs().max() < 120
    true = torch.stack([wide.z[wide.y == c].double().mean(dim=0) for c in range(6)])
    assert torch.cdist(tca.means_, true).argmin(dim=1).tolist() == list(range(6))


def test_more_classes_than_dimensions(generator):
    g = ZeroShotClassifier(torch.randn(40, 8, generator=generator), scale=20)
    z, y = g.text.repeat(20, 1) + 0.2 * torch.randn(800, 8, generator=generator), torch.arange(40).repeat(20)
    tca = ConditionalTCA(g).fit(z)
    assert torch.isfinite(tca.transform(z)).all()
    assert tca.score(z, y) > g.score(z, y) - 0.03


@pytest.mark.parametrize("dim", [96, 384])
@pytest.mark.parametrize("images", [5, 12, 37])
def test_few_images_of_65_classes(images, dim):
    data = Shifted(classes=65, dim=dim, images=images)
    after = ConditionalTCA(data.g).fit(data.z).score(data.z, data.y)
    assert after > data.g.score(data.z, data.y) - (0.25 / len(data.y)) ** 0.5  # one standard error of an accuracy


def test_absent_classes_do_not_run_away(wide):
    """Images of two classes only, prompts of six."""
    z, y = wide.z[wide.y < 2], wide.y[wide.y < 2]
    assert ConditionalTCA(wide.g).fit(z).score(z, y) >= wide.g.score(z, y)


def test_a_class_with_one_image_is_not_swallowed():
    data = Shifted(classes=5, dim=48, images=100, domain="clean")
    rare = torch.cat([(data.y > 0).nonzero()[:, 0], (data.y == 0).nonzero()[:1, 0]])
    assert ConditionalTCA(data.g).fit(data.z[rare]).score(data.z[rare], data.y[rare]) == 1.0


def test_the_sample_bounds_the_memory_and_costs_little(wide):
    whole, bounded = ConditionalTCA(wide.g).fit(wide.z), ConditionalTCA(wide.g, memory=400).fit(wide.z)
    assert float(bounded.counts_.sum()) == pytest.approx(400)
    assert abs(bounded.score(wide.z, wide.y) - whole.score(wide.z, wide.y)) < 0.04


def test_more_rounds_change_nothing_once_it_has_settled(generator):
    g = ZeroShotClassifier(torch.randn(5, 24, generator=generator), scale=30)
    z = functional.normalize(g.text.repeat(60, 1) + 0.05 * torch.randn(300, 24, generator=generator), dim=1)
    few, many = (fit_conditional(z, g, rounds=rounds) for rounds in (8, 40))
    torch.testing.assert_close(few.weight, many.weight, rtol=1e-3, atol=1e-3)


def test_logits_of_another_method_are_refused(shifted):
    with pytest.raises(ValueError, match="estimates class by class from its own classifier; use LinearTCA"):
        ConditionalTCA(shifted.g).fit(shifted.z, logits=torch.zeros(len(shifted.z), 4))
