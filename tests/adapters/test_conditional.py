"""ConditionalTCA: what its safeguards are for. Its numbers are compared with the plain reference elsewhere."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from clip_tca import ConditionalTCA, LinearClassifier
from clip_tca.adapters.conditional import (
    FEWEST_IMAGES,
    agreed_prior,
    calibrated_weight,
    imbalance_is_artefact,
    least_move,
)
from tests.conftest import Shifted


@pytest.fixture(scope="module")
def wide() -> Shifted:
    return Shifted(classes=6, dim=64, images=240)


@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_a_head_that_is_sure_of_everything_is_adapted_like_a_calm_one(factor, wide):
    calm = ConditionalTCA(LinearClassifier(wide.g.weight)).fit(wide.z)
    sure = ConditionalTCA(LinearClassifier(factor * wide.g.weight)).fit(wide.z)
    assert float(sure.overconfidence_) > factor / 4
    assert float((sure.predict(wide.z) == calm.predict(wide.z)).double().mean()) > 0.9
    for adapter in (calm, sure):
        assert adapter.score(wide.z, wide.y) > wide.g.score(wide.z, wide.y)


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


def test_above_0_4_an_imbalance_is_real_however_many_images_g_gives_to_one_class():
    """Below, it is an artefact if one class attracts the others, and real if g predicts all equally often."""
    hub, even = torch.tensor([9997.0, 1, 1, 1]), torch.full((4,), 2500.0)
    for unequal in torch.linspace(0.4, 1, 13):
        assert not imbalance_is_artefact(unequal, hub)
    for unequal in torch.tensor([0.05, 0.2, 0.29, 0.31, 0.39]):
        assert imbalance_is_artefact(unequal, hub)
        assert not imbalance_is_artefact(unequal, even)


def test_the_prior_counts_twice_for_clearly_unequal_classes_and_hardly_for_nearly_equal_ones():
    """γ = min(2, 30u²): π² for a long tail, almost no prior for the imbalance that errors of g can cause."""
    tail, nearly = torch.tensor([900.0, 50, 30, 20]), torch.tensor([300.0, 250, 250, 200])
    no_cap = torch.tensor(1.0)
    shares = lambda support: ((support + 1) / (support.sum() + 4)).log()  # noqa: E731
    torch.testing.assert_close(agreed_prior(tail, no_cap), 2 * shares(tail))
    assert float(agreed_prior(nearly, no_cap).abs().max()) < 0.02 * float(shares(nearly).abs().max())
    assert float(agreed_prior(tail, torch.tensor(0.0)).abs().max()) == 0, "no more than the cap allows"


def test_a_classifier_that_is_over_confident_is_trusted_less():
    """80 classes with 30 images each: g is often wrong. If it is sure all the same, the Gaussians count fully."""
    data = Shifted(classes=80, dim=32, images=30)
    calm, sure = (ConditionalTCA(LinearClassifier(f * data.g.weight)).fit(data.z) for f in (0.3, 20.0))
    assert float(calm.trust_) < 0.5
    assert float(sure.trust_) == 1


def test_gaussians_are_trusted_fully_with_up_to_30_classes_and_as_far_as_g_bears_them_out_with_more():
    few, many = Shifted(classes=30, dim=32, images=40), Shifted(classes=60, dim=32, images=40)
    assert float(ConditionalTCA(few.g).fit(few.z).trust_) == 1
    assert 1e-3 < float(ConditionalTCA(many.g).fit(many.z).trust_) < 0.9


def test_the_calibrated_weight_is_the_temperature_that_was_put_in(generator):
    """g says softmax(0.05 · density), so the weight is 0.05; a third of it if the density is three times as sharp."""
    density = 40 * torch.randn(400, 9, generator=generator)
    log_p = (0.05 * density).log_softmax(dim=1)
    assert calibrated_weight(log_p, density) == pytest.approx(0.05, rel=0.01)
    assert calibrated_weight(log_p, 3 * density) == pytest.approx(0.05 / 3, rel=0.01)


def test_many_classes_with_few_images_each_stay_close_to_a_good_classifier():
    """300 classes, 6 images of each, g is right on most: adaptation must not overrule it on thin evidence."""
    data = Shifted(classes=300, dim=128, images=6, domain="clean")
    assert data.g.score(data.z, data.y) > 0.7
    assert ConditionalTCA(data.g).fit(data.z).score(data.z, data.y) > data.g.score(data.z, data.y) - 0.01


def test_fewer_than_8_images_keep_g(wide, caplog):
    few = wide.z[: FEWEST_IMAGES - 1]
    with caplog.at_level(logging.WARNING, "clip_tca"):
        tca = ConditionalTCA(wide.g).fit(few)
    assert "7 images; with fewer than 8" in caplog.text
    torch.testing.assert_close(tca.transform(few), few, rtol=0, atol=1e-5)
    torch.testing.assert_close(tca.logits(few), wide.g.logits(few))


def test_probabilities_are_on_average_as_sure_as_those_of_g(wide):
    tca = ConditionalTCA(wide.g).fit(wide.z)
    p, before = tca.predict_proba(wide.z), wide.g.predict_proba(wide.z)
    assert float(tca.temperature_) > 1
    assert float(tca.overconfidence_) == 1
    assert float(p.amax(dim=1).mean()) == pytest.approx(float(before.amax(dim=1).mean()), abs=1e-3)


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


def test_it_gains_where_classes_are_shifted_and_finds_their_counts_and_means(wide):
    tca = ConditionalTCA(wide.g).fit(wide.z)
    assert tca.score(wide.z, wide.y) > wide.g.score(wide.z, wide.y) + 0.05
    assert float(tca.counts_.sum()) == pytest.approx(len(wide.z))
    assert (tca.counts_ - 240).abs().max() < 120
    true = torch.stack([wide.z[wide.y == c].double().mean(dim=0) for c in range(6)])
    assert torch.cdist(tca.means_, true).argmin(dim=1).tolist() == list(range(6))


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


def test_logits_of_another_method_are_refused(shifted):
    with pytest.raises(ValueError, match="estimates class by class from its own classifier; use LinearTCA"):
        ConditionalTCA(shifted.g).fit(shifted.z, logits=torch.zeros(len(shifted.z), 4))
