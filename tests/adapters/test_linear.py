"""LinearTCA: certainty, selection, class shares and the map are what their definitions say."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from clip_tca import LinearClassifier, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.linear import CLOSED_FORM, coral, gradient, monge, uncertainty
from tests.conftest import Shifted

PAPER = {"shares": "global", "solver": "gradient"}
PUBLIC_CODE = {"shares": "oracle", "uncertainty": "entropy", "solver": "gradient"}


@pytest.fixture(scope="module")
def unequal() -> tuple[ZeroShotClassifier, torch.Tensor, torch.Tensor]:
    """Six classes with 240, 120, 60, 30, 0 and 0 images."""
    data = Shifted(classes=6, dim=64, images=240)
    keep = torch.cat([(data.y == c).nonzero()[:n, 0] for c, n in enumerate((240, 120, 60, 30))])
    return ZeroShotClassifier(data.g.text, data.g.scale, classes=list("abcdef")), data.z[keep], data.y[keep]


# -- certainty ---------------------------------------------------------------------------------------------------------


def test_distance_and_entropy_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert float(uncertainty(p, "distance")[0]) == pytest.approx(0.3**2 + 0.2**2 + 0.1**2)
    entropy = -(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    assert uncertainty(p, "entropy").tolist() == pytest.approx([entropy, math.log(3)])


@pytest.mark.parametrize("kind", ["distance", "entropy"])
def test_rows_stay_ordered_where_the_largest_probability_rounds_to_one(kind):
    p = torch.tensor([[0.0, -60.0], [0.0, -50.0], [0.0, -40.0]], dtype=torch.float64).softmax(dim=1)
    assert (p.max(dim=1).values == 1).all()
    scores = uncertainty(p, kind)
    assert scores[0] < scores[1] < scores[2]


# -- selection ---------------------------------------------------------------------------------------------------------


def test_global_takes_the_k_most_certain_of_all(shifted):
    tca = LinearTCA(shifted.g, k=10, **PAPER).fit(shifted.z)
    most = uncertainty(shifted.g.predict_proba(shifted.z.double())).argsort()[:10]
    torch.testing.assert_close(tca.pseudo_source_mean_, shifted.z[most].double().mean(dim=0), rtol=0, atol=1e-7)
    assert torch.equal(tca.pseudo_source_counts_, torch.bincount(shifted.g.predict(shifted.z[most]), minlength=4))


def test_the_oracle_selects_what_the_public_code_selects(shifted):
    """A plain loop: each predicted class by entropy, of it the first ⌊k·nᵢ/n₀⌋ with the counts n of the true labels."""
    g, z, y = shifted.g, shifted.z, shifted.y
    y = torch.where(torch.arange(len(y)) % 3 == 0, torch.zeros_like(y), y)  # unequal classes
    p = g.predict_proba(z.double())
    entropy = -(p * p.log()).sum(dim=1)
    chosen = []
    for c in range(g.n_classes):
        members = (p.argmax(dim=1) == c).nonzero()[:, 0]
        take = math.floor(7 * int((y == c).sum()) / int((y == 0).sum()))
        chosen += members[entropy[members].argsort()][:take].tolist()
    tca = LinearTCA(g, k=7, **PUBLIC_CODE).fit(z, labels=y)
    torch.testing.assert_close(tca.pseudo_source_, z[sorted(chosen)], rtol=0, atol=1e-6)
    torch.testing.assert_close(tca.pseudo_source_mean_, z[sorted(chosen)].double().mean(dim=0), rtol=0, atol=1e-7)


def test_only_the_oracle_hears_labels_and_it_needs_them(shifted):
    oracle = LinearTCA(shifted.g, k=20, **PUBLIC_CODE)
    skewed = torch.where(torch.arange(len(shifted.y)) % 2 == 0, 0, shifted.y)
    told, lied = (oracle.fit(shifted.z, labels=labels).transform(shifted.z) for labels in (shifted.y, skewed))
    assert not torch.equal(told, lied)
    for call in (oracle.fit, oracle.partial_fit, lambda z: oracle.fit(z, shifted.y)):  # scikit-learn's y is not labels
        with pytest.raises(ValueError, match=r"'oracle' counts the true labels .* call fit\(z, labels=…\)"):
            call(shifted.z)
    with pytest.raises(ValueError, match="none is 0"):
        oracle.fit(shifted.z, labels=shifted.y.clamp_min(1))


# -- LinearTCA+ --------------------------------------------------------------------------------------------------------


def test_the_classifier_s_own_logits_change_nothing(shifted):
    unit = torch.nn.functional.normalize(shifted.z, dim=1)
    given = LinearTCA(shifted.g).fit(shifted.z, logits=shifted.g.logits(unit.double()))
    torch.testing.assert_close(given.W_, LinearTCA(shifted.g).fit(shifted.z).W_)


def test_certainty_is_judged_by_the_logits_given(shifted):
    """Logits that are certain of class 2 alone make a pseudo-source of class 2 alone."""
    logits = torch.zeros(len(shifted.z), shifted.g.n_classes)
    logits[:, 2] = torch.linspace(1, 5, len(logits))
    tca = LinearTCA(shifted.g, k=10, shares="uniform").fit(shifted.z, logits=logits)
    assert tca.pseudo_source_counts_.tolist() == [0, 0, 10, 0]
    torch.testing.assert_close(tca.pseudo_source_, shifted.z[-10:])


def test_logits_that_do_not_fit_are_refused(shifted):
    with pytest.raises(ValueError, match=r"logits: shape \(3, 4\), but \(240, 4\) is needed"):
        LinearTCA(shifted.g).fit(shifted.z, logits=torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"logits.*NaN"):
        LinearTCA(shifted.g).fit(shifted.z, logits=torch.full((len(shifted.z), 4), float("nan")))


# -- class shares ------------------------------------------------------------------------------------------------------


def test_shares_in_every_form_are_the_same(unequal):
    g, z, y = unequal
    counts = torch.bincount(y, minlength=6)
    named = dict(zip("abcdef", counts.tolist(), strict=True))
    forms = [counts, counts.numpy(), tuple(counts.tolist()), (counts / counts.sum()).tolist(), named]
    maps = [LinearTCA(g, shares=form).fit(z).W_ for form in forms]
    for other in maps[1:]:
        torch.testing.assert_close(other, maps[0], rtol=1e-6, atol=1e-9)


def test_the_order_of_all_of_pacs_does_not_matter(pacs):
    """9,991 images: in version 0.2 accuracy moved by 2 points with the choice of 1,024 of them."""
    z = torch.cat([z for z, _ in pacs.domains.values()])
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(1))
    plain, other = LinearTCA(pacs.classifier()).fit(z), LinearTCA(pacs.classifier()).fit(z[order])
    assert torch.equal(other.predict(z), plain.predict(z))


def test_a_class_that_attracts_others_does_not_lead_the_estimate_astray(pacs):
    """An elephant in every third sketch where there is one in five: estimated shares gain as much as equal ones."""
    z, y = pacs.domains["sketch"]
    z, y = z[::2].float(), y[::2]
    bias, low, high = torch.zeros(7), 0.0, 20.0
    for _ in range(20):
        bias[1] = (low + high) / 2
        hub = LinearClassifier(pacs.classifier().weight, bias.clone())
        attracted = float((hub.predict(z) == 1).double().mean()) > 0.35
        low, high = (low, float(bias[1])) if attracted else (float(bias[1]), high)
    estimated, equal = (LinearTCA(hub, shares=s).fit(z).score(z, y) for s in ("estimated", "uniform"))
    assert estimated > hub.score(z, y) + 0.03
    assert estimated > equal - 0.005


# -- solvers -----------------------------------------------------------------------------------------------------------


def pair(n: int, m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def covariance(count: int) -> torch.Tensor:
        mix = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
        return torch.cov((torch.randn(count, d, generator=generator, dtype=torch.float64) @ mix).T)

    return covariance(n), covariance(m)


@pytest.mark.parametrize("solve", CLOSED_FORM.values())
@pytest.mark.parametrize(("n", "m"), [(300, 400), (300, 12), (20, 10), (2, 2)])
def test_closed_forms_solve_the_equation(solve, n, m):
    """Also with a pseudo-source, and with test embeddings, that leave directions without variance."""
    sigma_t, sigma_s = pair(n, m, 32)
    if n < 32:  # then no map can make variance where there is none
        sigma_s = sigma_t @ sigma_s @ sigma_t
    w = solve(sigma_t, sigma_s)
    torch.testing.assert_close(w.T @ sigma_t @ w, sigma_s, rtol=0, atol=1e-6 * float(sigma_s.abs().max()))


def test_monge_is_symmetric_and_moves_least():
    """E‖zW − z‖² = tr(WᵀΣW − ΣW − WᵀΣ + Σ), against solutions that turn where Σ̂_s is white."""
    sigma_t, sigma_s = pair(300, 300, 12)

    def cost(w: torch.Tensor) -> float:
        return float((w.T @ sigma_t @ w - 2 * sigma_t @ w + sigma_t).trace())

    w = monge(sigma_t, sigma_s)
    torch.testing.assert_close(w, w.T, rtol=0, atol=1e-9)
    values, vectors = torch.linalg.eigh(sigma_s)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    for seed in range(5):
        noise = torch.randn(12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert cost(w) < cost(w @ inverse @ torch.linalg.qr(noise).Q @ root)
    assert cost(w) < cost(coral(sigma_t, sigma_s))


@pytest.mark.parametrize(("steps", "lr"), [(20, 1e-3), (35, 1e-2), (0, 1e-3)])
def test_gradient_is_adam_with_autograd(steps, lr):
    sigma_t, sigma_s = pair(200, 30, 24)
    w = torch.eye(24, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (w.T @ sigma_t @ w - sigma_s).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(gradient(sigma_t, sigma_s, steps, lr), w.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("solve", CLOSED_FORM.values())
@pytest.mark.parametrize("n", [2, 5, 20])
def test_directions_without_variance_are_left_alone(solve, n):
    z = torch.randn(n, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = solve(torch.cov(z.T), torch.cov(z[: max(2, n // 2)].T))
    empty = torch.linalg.svd(z - z.mean(dim=0))[2][-1]  # a direction that no row has
    torch.testing.assert_close(empty @ w, empty, rtol=0, atol=1e-6)


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", CLOSED_FORM)
def test_adapted_embeddings_have_the_mean_and_covariance_of_the_pseudo_source(solver, shifted):
    tca = LinearTCA(shifted.g, solver=solver, shrinkage=0.0, shares="global", k=60).fit(shifted.z)
    adapted, source = tca.transform(shifted.z.double()), tca.pseudo_source_.double()
    torch.testing.assert_close(adapted.mean(dim=0), source.mean(dim=0), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cov(adapted.T), torch.cov(source.T), rtol=0, atol=1e-5)


def test_adapting_helps_where_the_paper_s_premise_holds():
    data = Shifted(classes=6, dim=64, images=240)
    assert LinearTCA(data.g).fit(data.z).score(data.z, data.y) > data.g.score(data.z, data.y) + 0.02


def test_what_the_user_should_know_is_logged(shifted, caplog):
    few = shifted.z[shifted.g.predict(shifted.z) == 0][:10]
    with caplog.at_level(logging.WARNING, "clip_tca"):
        LinearTCA(shifted.g, k=20, **PAPER).fit(few)
        tca = LinearTCA(shifted.g, k=3, **PAPER).fit(shifted.z)
    assert "3 of 4 classes are never predicted" in caplog.text
    assert "the pseudo-source is empty or all of the 10 embeddings; nothing changes" in caplog.text
    assert "10 embeddings say little about a covariance in 24 dimensions" in caplog.text
    left_out = int((tca.pseudo_source_counts_ == 0).sum())
    assert f"the 3 most certain leave out {left_out} predicted classes" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "clip_tca"):
        LinearTCA(shifted.g).fit(shifted.z)
    assert caplog.text == ""
