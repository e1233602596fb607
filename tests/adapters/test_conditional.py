"""ConditionalTCA: what its ideas are for. Its numbers are compared with plain code elsewhere (test_references.py)."""

from __future__ import annotations

import logging
import math

import pytest
import torch

import clip_tca
from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.conditional import Constants, fit_conditional, imbalance, occurring
from clip_tca.adapters.export import export
from clip_tca.adapters.statistics import inverse_of, neighbour_sample, neighbour_temperature
from tests.conftest import DATA, Shifted


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


@pytest.mark.parametrize("sure", [0.55, 0.7, 0.8])
def test_a_classifier_that_is_sure_of_what_would_change_is_kept(sure, generator):
    """A tenth of one class lies beside the other class. g tells them apart, being as ``sure`` of all as of these."""
    centres = torch.tensor([[-4.0, 1.0]] * 900 + [[4.0, 1.0]] * 100 + [[4.0, -1.0]] * 1000).double()
    z = centres + 0.1 * torch.randn(2000, 2, generator=generator).double()
    g = LinearClassifier(torch.tensor([[0.0, 0.5], [0.0, -0.5]]).double() * math.log(sure / (1 - sure)))
    tca, known = ConditionalTCA(g).fit(z), ConditionalTCA(g, shares="uniform").fit(z)
    assert int((known.predict(z) != g.predict(z)).sum()) >= 100, "known shares are reason enough to change"
    if sure > 0.6:
        assert float(tca.trust_) == 0
        torch.testing.assert_close(tca.predict_proba(z), g.predict_proba(z), rtol=0, atol=1e-5)
        torch.testing.assert_close(tca.transform(z), z, rtol=0, atol=1e-5)
    else:
        assert int((tca.predict(z) != g.predict(z)).sum()) >= 100


def test_the_number_of_classes_that_seem_to_occur_is_the_inverse_simpson_index():
    assert float(occurring(torch.tensor([50.0, 50, 50, 0, 0]))) == pytest.approx(3)
    assert float(occurring(torch.tensor([100.0, 0, 0]))) == 2, "at least two, so that trust stays finite"


def test_imbalance_is_0_for_equal_classes_and_1_for_one_class():
    assert float(imbalance(torch.full((5,), 4000.0).double())) == pytest.approx(0, abs=1e-3)
    assert float(imbalance(torch.tensor([20000.0, 0, 0, 0, 0]).double())) == pytest.approx(1, abs=1e-3)


def test_the_temperature_of_neighbours_is_the_one_that_was_put_in(generator):
    """The neighbours say softmax(l / 3) of what rows say softmax(l)."""
    log_p = (6 * torch.randn(500, 9, generator=generator)).log_softmax(dim=1)
    assert float(neighbour_temperature(log_p, (log_p / 3).log_softmax(dim=1))) == pytest.approx(3, rel=1e-3)
    assert float(neighbour_temperature(log_p, (3 * log_p).log_softmax(dim=1))) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("classes", [3, 12])
def test_the_inverse_by_woodbury_s_identity_is_the_inverse(classes, generator):
    """With fewer classes than dimensions, and with more."""
    diagonal = 1 + torch.rand(8, generator=generator).double()
    removed = 0.1 * torch.randn(classes, 8, generator=generator).double()
    inverse, factor = inverse_of(diagonal, removed=removed)
    s = diagonal.diag() - removed.T @ removed
    torch.testing.assert_close(inverse.diag() + factor @ factor.T, torch.linalg.inv(s))


@pytest.mark.parametrize("rows", [300, 5000])
def test_the_sample_of_neighbours_is_the_same_in_any_order_and_after_rounding(rows, generator):
    z = torch.nn.functional.normalize(torch.randn(rows, 32, generator=generator), dim=1)
    z = z - z.mean(dim=0)
    order = torch.randperm(rows, generator=generator)
    chosen = neighbour_sample(z, 1000)
    assert set(order[neighbour_sample(z[order], 1000)].tolist()) == set(chosen.tolist())
    noisy = neighbour_sample(z + 1e-5 * torch.randn(z.shape, generator=generator), 1000)
    assert len(set(noisy.tolist()) & set(chosen.tolist())) > 0.95 * len(chosen)


@pytest.mark.parametrize(("domain", "file"), [("sketch", "pacs"), ("VOC2007", "vlcs")])
def test_neither_order_nor_noise_moves_many_predictions(domain, file, generator):
    path = DATA / f"embeddings/{file}.safetensors"
    if not path.is_file():
        pytest.skip("the embeddings are not beside the project")
    data = clip_tca.load_embeddings(path)
    g, z = data.classifier(), torch.nn.functional.normalize(data.domains[domain][0].float(), dim=1)
    before, order = ConditionalTCA(g).fit(z).predict(z), torch.randperm(len(z), generator=generator)
    noisy = z + 1e-5 * torch.randn(z.shape, generator=generator)
    for fitted, rows in ((ConditionalTCA(g).fit(z[order]), z), (ConditionalTCA(g).fit(noisy), noisy)):
        assert float((fitted.predict(rows) != before).double().mean()) < 0.02


@pytest.mark.parametrize("present", [2, 4])
def test_small_batches_with_some_of_the_classes_gain(present):
    """64 images; g is wrong about some, and what it says of absent classes is noise."""
    data, gained = Shifted(classes=12, dim=48, images=200), []
    for seed in range(8):
        random = torch.Generator().manual_seed(seed)
        rows = torch.isin(data.y, torch.randperm(12, generator=random)[:present]).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=random)[:64]]
        z, y = data.z[rows], data.y[rows]
        gained.append(ConditionalTCA(data.g).fit(z).score(z, y) - data.g.score(z, y))
    assert sum(gained) / len(gained) > 0.04


def test_every_constant_is_used(wide):
    """Each of them changes the result of some fit: the five of answers and of few rows need such rows."""
    few = Shifted(classes=12, dim=48, images=200)
    rows = torch.cat([few.z[few.y < 3][:80], few.z[:40]])
    answers = torch.where(torch.arange(len(few.z)) % 30 == 0, few.y, -1)
    sure = LinearClassifier(20 * few.g.weight)
    trials = [(few.z, few.g, None), (rows, few.g, None), (few.z, few.g, answers), (few.z, sure, None)]

    def result(constants: Constants) -> list[torch.Tensor]:
        fits = [fit_conditional(z, g.log_probabilities(z), answers=a, constants=constants) for z, g, a in trials]
        return [torch.cat([fit.weight.reshape(-1), fit.bias, fit.trust[None]]) for fit in fits]

    before = result(Constants())
    changed = dict.fromkeys(Constants._fields, 0.55) | {
        "fewest": 300,
        "neighbours": 1,
        "sample": 60,
        "least_kappa": 90.0,
    }
    for name, value in changed.items():
        after = result(Constants()._replace(**{name: value}))
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) or name == "sure", name


def test_many_classes_with_few_images_each_stay_close_to_a_good_classifier():
    """300 classes, 6 images of each, g is right on most: adaptation must not overrule it on thin evidence."""
    data = Shifted(classes=300, dim=128, images=6, domain="clean")
    assert data.g.score(data.z, data.y) > 0.7
    assert ConditionalTCA(data.g).fit(data.z).score(data.z, data.y) > data.g.score(data.z, data.y) - 0.01


def test_fewer_than_8_images_keep_g(wide, caplog):
    few = wide.z[: Constants().fewest - 1]
    with caplog.at_level(logging.WARNING, "clip_tca"):
        tca = ConditionalTCA(wide.g).fit(few)
    assert "7 images; with fewer than 8" in caplog.text
    torch.testing.assert_close(tca.transform(few), few, rtol=0, atol=1e-5)
    torch.testing.assert_close(tca.logits(few), wide.g.logits(few))


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_probabilities_are_about_as_sure_as_they_are_right(factor, wide):
    """The same without labels: a neighbour that shares g's label says how often g is right, however sure g is."""
    g = LinearClassifier(factor * wide.g.weight)
    tca = ConditionalTCA(g).fit(wide.z)
    sure = float(tca.predict_proba(wide.z).amax(dim=1).mean())
    assert tca.score(wide.z, wide.y) - 0.3 < sure < tca.score(wide.z, wide.y) + 0.05
    if factor > 1:
        assert float(g.predict_proba(wide.z).amax(dim=1).mean()) > g.score(wide.z, wide.y) + 0.1, "g is far too sure"


@pytest.mark.parametrize(("classes", "dim"), [(6, 64), (12, 5)])
def test_the_move_is_the_least_after_which_g_predicts_the_same(classes, dim, generator):
    """Against the pseudo-inverse of the centred weights, also of more classes than dimensions."""
    g = LinearClassifier(*(torch.randn(classes, n, generator=generator).double().squeeze() for n in (dim, 1)))
    w = g.weight - g.weight.mean(dim=0)
    weight = g.weight + w @ torch.randn(dim, dim, generator=generator).double()  # one that a move can reach
    bias = g.bias + w @ torch.randn(dim, generator=generator).double()
    matrix, offset = g.least_move(weight, bias)
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


@pytest.fixture(scope="module")
def pair(wide) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of an encoder that sees the classes well, and scores of one that is often wrong, of the same pictures."""
    random = torch.Generator().manual_seed(1)
    rows = torch.nn.functional.one_hot(wide.y, 40).float() + 0.2 * torch.randn(len(wide.y), 40, generator=random)
    return rows, 0.3 * wide.g.logits(wide.z) + 0.5 * torch.randn(len(wide.y), 6, generator=random)


def test_rows_of_another_encoder_need_no_classifier_and_any_scale(wide, pair, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rows, logits = pair
    tca = ConditionalTCA().fit(7 * rows, logits=logits)
    assert tca.score(rows, wide.y, logits=logits) > float((logits.argmax(dim=1) == wide.y).double().mean()) + 0.1
    assert tca.n_features_in_ == 40
    torch.testing.assert_close(tca.predict_proba(rows, logits=logits + 5), tca.predict_proba(3 * rows, logits=logits))
    named = ConditionalTCA(wide.g.named(list("abcdef"))).fit(rows, logits=logits)
    assert set(named.predict(rows, names=True, logits=logits)) <= set("abcdef")
    tca.save(tmp_path / "state")
    again = clip_tca.from_pretrained(tmp_path / "state")
    assert torch.equal(again.predict(rows, logits=logits), tca.predict(rows, logits=logits))
    again.partial_fit(rows[:20], logits=logits[:20]).solve()
    assert "classified, not moved" in tca.explain()
    export(tca, tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    _, labels = session.run(None, {"embeddings": 2 * rows.numpy(), "scores": logits.numpy()})
    assert (labels == tca.predict(rows, logits=logits).numpy()).mean() > 0.999


def test_a_stream_of_rows_with_logits_ends_where_one_fit_does(pair):
    rows, logits = pair
    stream = ConditionalTCA()
    for start in range(0, len(rows), 200):
        stream.partial_fit(rows[start : start + 200], logits=logits[start : start + 200])
    whole = ConditionalTCA().fit(rows, logits=logits)
    torch.testing.assert_close(stream.solve().weight_, whole.weight_, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda z, s: ConditionalTCA().fit(z), "logits: missing; without a classifier use fit"),
        (lambda z, s: ConditionalTCA().fit(z, logits=s[:-1]), r"logits: shape \(1439, 6\), but \(1440, 6\) is needed"),
        (lambda z, s: ConditionalTCA().fit(z, logits=s[:, :1]), "logits: 1 classes; at least 2 are needed"),
        (
            lambda z, s: ConditionalTCA(ZeroShotClassifier(torch.randn(5, 9))).fit(z, logits=s),
            "6 classes; the classifier's 5",
        ),
        (
            lambda z, s: ConditionalTCA().fit(z, logits=s).predict(z),
            "logits: missing; this adapter was fitted with logits",
        ),
        (lambda z, s: ConditionalTCA().fit(z, logits=s).predict(z, logits=s[:, :4]), r"shape \(1440, 4\), but"),
        (lambda z, s: ConditionalTCA().fit(z, logits=s).predict(z[:, :9], logits=s), "embeddings: dimension 9"),
        (lambda z, s: ConditionalTCA().fit(z, logits=s).transform(z), "classified, not moved; use predict"),
        (lambda z, s: ConditionalTCA().fit(z, logits=s * float("nan")), "logits: 1440 of 1440 rows hold NaN"),
        (lambda z, s: ConditionalTCA().fit(0 * z, logits=s), r"1440 of 1440 rows are all zeros \(rows 0, 1, 2, 3, 4\)"),
        (lambda z, s: ConditionalTCA().fit(z[:0], logits=s[:0]), "embeddings: empty"),
    ],
)
def test_logits_that_do_not_fit_are_one_line(call, words, wide):
    with pytest.raises(ValueError, match=words) as raised:
        call(wide.z, wide.g.logits(wide.z))
    assert "\n" not in str(raised.value)


def test_logits_where_none_are_used_are_refused_and_an_earlier_fit_stays(wide):
    logits = wide.g.logits(wide.z)
    tca = ConditionalTCA(wide.g).fit(wide.z)
    before = tca.logits(wide.z)
    with pytest.raises(ValueError, match="logits: this adapter was fitted without"):
        tca.predict(wide.z, logits=logits)
    with pytest.raises(ValueError, match="LinearTCA predicts from embeddings alone"):
        LinearTCA(wide.g).fit(wide.z).predict(wide.z, logits=logits)
    for broken in (logits[:5], logits * float("nan")):
        with pytest.raises(ValueError, match="logits: "):
            tca.fit(wide.z, logits=broken)
    assert torch.equal(tca.logits(wide.z), before)


def test_a_row_of_zeros_has_no_direction(wide):
    z = wide.z.clone()
    z[[3, 700]] = 0
    with pytest.raises(ValueError, match=r"embeddings: 2 of 1440 rows are all zeros \(rows 3, 700\); drop them"):
        ConditionalTCA(wide.g).fit(z)
    assert ConditionalTCA(LinearClassifier(wide.g.weight)).fit(z), "features as they come may be zero"
