"""The studies toy and map: the paper's shifts to the letter, and pictures that show what was measured."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.core.tensors import unit
from clip_tca.datasets.synthetic import synthetic
from clip_tca.evaluation.inputs import Embedded
from clip_tca.studies import projection, toy
from clip_tca.studies.base import Subject
from clip_tca.studies.map import MOST_COLOURED, Map, adapt
from clip_tca.studies.projection import label_places, principal_axes
from clip_tca.studies.toy import Toy
from clip_tca.studies.toy_shifts import SHIFTS

# -- toy ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> dict:
    return json.loads(json.dumps(Toy(seed=3, points=60).measure(None)))


PAPER = """
X_s = torch.cat((torch.randn(30, 2),
                 torch.randn(30, 2) + 15,
                 torch.randn(30, 2) + torch.tensor([0, 10])), dim=0)
X_t = torch.cat((torch.randn(250, 2) * 2 + 7,
                 torch.randn(250, 2) * 2.5 + torch.tensor([0, 20]),
                 torch.randn(250, 2) * 3 + 21), dim=0)
""", """
X_s = torch.cat((torch.randn(30, 2),
                 torch.randn(30, 2) + 10,
                 torch.randn(30, 2) + torch.tensor([0, 10]),
                 torch.randn(30, 2) + torch.tensor([-5, -10])), dim=0)
X_t = torch.cat((torch.randn(250, 2) * 3 + 5,
                 torch.randn(250, 2) + 10,
                 torch.randn(250, 2) * 2 + torch.tensor([0, 20]),
                 torch.randn(250, 2) * 2.5 + torch.tensor([-9, 1])), dim=0)
"""  # fmt: skip
"""The two listings of the appendix."""


def test_the_points_are_those_of_the_paper_s_code():
    for name, code in zip(("linear", "nonlinear"), PAPER, strict=True):
        theirs = {"torch": torch}
        torch.manual_seed(5)
        exec(code, theirs)  # noqa: S102
        source, test = SHIFTS[name].draw(5)
        assert torch.equal(source.x.float(), theirs["X_s"])
        assert torch.equal(test.x.float(), theirs["X_t"])


@pytest.mark.parametrize("name", SHIFTS)
def test_a_test_cluster_has_the_class_of_the_source_cluster_it_is_paired_with(name):
    """Of all pairings theirs is the one with the least squared moves."""
    source = np.array(SHIFTS[name].source)
    centres = np.array([centre for centre, *_ in SHIFTS[name].test])
    moves = {p: ((centres - source[list(p)]) ** 2).sum() for p in itertools.permutations(range(len(source)))}
    assert min(moves, key=moves.get) == tuple(label for *_, label in SHIFTS[name].test)


def test_only_the_linear_shift_has_an_affine_map_between_the_centres():
    for name, exists in {"linear": True, "nonlinear": False}.items():
        shift = SHIFTS[name]
        centres = np.array([[*centre, 1.0] for centre, *_ in shift.test])
        wanted = np.array([shift.source[label] for *_, label in shift.test], dtype=float)
        fitted = centres @ np.linalg.lstsq(centres, wanted, rcond=None)[0]
        assert np.allclose(fitted, wanted) == exists


@pytest.mark.parametrize("name", SHIFTS)
def test_distances_and_accuracy_are_those_of_the_points_in_the_record(measured, name):
    found = measured["shifts"][name]
    source, test = (np.array(found[part]) for part in ("source", "test"))
    labels = SHIFTS[name].draw(3, 60)[1].y.numpy()
    means = source.reshape(-1, 30, 2).mean(axis=1)
    for x, one in [(test, found["before"])] + [(np.array(m["points"]), m) for m in found["maps"].values()]:
        nearest = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert one["accuracy"] == pytest.approx(100 * (nearest == labels).mean(), abs=1.0)  # points are rounded
        gap = np.cov(x.T) - np.cov(source.T)
        assert one["correlation"] == pytest.approx((gap**2).sum() / 16, rel=1e-2, abs=1e-3)
        assert one["mean"] == pytest.approx(np.linalg.norm(x.mean(axis=0) - source.mean(axis=0)), abs=2e-3)
        own = [np.linalg.norm(x[labels == c].mean(axis=0) - means[c]) for c in range(len(means))]
        assert one["centres"] == pytest.approx(np.mean(own), abs=2e-3)


def test_the_linear_map_meets_mean_and_covariance_and_only_the_linear_shift_is_undone(measured):
    left = {}
    for name, found in measured["shifts"].items():
        linear = found["maps"]["linear-tca"]
        assert linear["correlation"] < 1e-4 * found["before"]["correlation"]
        assert linear["mean"] < 1e-2 * found["before"]["mean"]
        assert linear["accuracy"] > found["before"]["accuracy"] + 10
        left[name] = linear["centres"] / found["before"]["centres"]
    assert left["linear"] < 0.25 < 0.4 < left["nonlinear"]


@pytest.mark.parametrize("key", ["mlp2-tca", "mlp3-tca"])
def test_the_mlps_undo_what_the_linear_map_leaves(measured, key):
    for found in measured["shifts"].values():
        linear, mapped = found["maps"]["linear-tca"], found["maps"][key]
        assert mapped["accuracy"] > min(99, linear["accuracy"] + 2)
        assert mapped["centres"] < 0.5 * linear["centres"]
        assert mapped["correlation"] < 1e-2 * found["before"]["correlation"]
        assert mapped["mean"] < 0.1 * found["before"]["mean"]


def test_the_process_goes_from_the_means_alone_to_the_covariance(measured):
    for found in measured["shifts"].values():
        steps = [found["process"][str(step)]["correlation"] for step in toy.STEPS]
        assert steps[0] == pytest.approx(found["before"]["correlation"])
        assert found["process"]["0"]["mean"] < 1e-9
        assert steps == sorted(steps, reverse=True)
        assert steps[-1] < 1e-3 * steps[0]


def test_the_pseudo_source_is_the_most_certain_of_each_predicted_class():
    source, test = SHIFTS["linear"].draw(0, 80)
    scores = toy.source_classifier(source).logits(test.x).numpy()
    rows = toy.pseudo_source(source, test.x).tolist()
    predicted = scores.argmax(axis=1)
    for label in range(3):
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        others = np.delete(odds / odds.sum(axis=1, keepdims=True), label, axis=1)  # 1 - p would round to zero
        omega = others.sum(axis=1) ** 2 + (others**2).sum(axis=1)
        mine = [i for i in np.argsort(omega) if predicted[i] == label]
        assert {i for i in rows if predicted[i] == label} == set(mine[:30])


def test_a_seed_gives_the_same_record_and_another_gives_another(monkeypatch):
    monkeypatch.setattr(toy, "MLP_STEPS", 3)
    first, again, other = (Toy(seed=seed, points=5).measure(None) for seed in (0, 0, 1))
    assert first == again
    assert first["shifts"]["linear"]["test"] != other["shifts"]["linear"]["test"]


def test_the_toy_figure_shows_the_points_of_the_record(measured, tmp_path):
    figure = Figure()
    Toy(seed=3, points=60).draw(measured, figure)
    figure.set_layout_engine("none")  # which takes its time
    figure.savefig(tmp_path / "toy.png", dpi=20)
    assert len(figure.axes) == 2 * (6 + 4 + 1)
    titles = [axes.get_title() for axes in figure.axes]
    found = measured["shifts"]["linear"]
    last = found["maps"]["mlp3-tca"]
    axes = figure.axes[[title.startswith("MLP-3") for title in titles].index(True)]
    drawn = {dots.get_label(): dots.get_offsets().data for dots in axes.collections}
    assert np.array_equal(drawn["transformed"], last["points"])
    assert np.array_equal(drawn["source"], found["source"])
    assert f"{last['accuracy']:.1f} %" in axes.get_title()


def test_the_toy_finding_has_its_figures(measured):
    text = " ".join(Toy().describe(measured))
    for found in measured["shifts"].values():
        for one in (found["before"], found["process"]["0"], *found["maps"].values()):
            assert f"{one['accuracy']:.1f} %" in text


@pytest.mark.parametrize("options", [{"seed": -1}, {"points": 1}, {"points": 2.5}])
def test_a_wrong_option_of_toy_is_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: {next(iter(options.values()))}"):
        Toy(**options)


# -- map ---------------------------------------------------------------------------------------------------------------


def subject(classes: int = 5, images: int = 40) -> Subject:
    data = synthetic(0, classes, 24, images)
    about = {"data": {"classes": [f"class {i}" for i in range(classes)]}}
    return Subject(Embedded(data, about), ZeroShotClassifier(data.text, data.scale), "clean")


def test_the_rows_marked_are_those_that_linear_tca_selected():
    here = subject()
    z, y = here.shifted["shifted"]
    adapted, fitted = adapt(here, z, y, "linear-tca"), LinearTCA(here.classifier).fit(z)
    assert torch.allclose(adapted.marks, fitted.pseudo_source_, atol=1e-6)
    assert torch.equal(adapted.mark_classes.bincount(minlength=5), fitted.pseudo_source_counts_)


def test_the_axes_are_the_principal_components_of_before_and_after():
    from sklearn.decomposition import PCA

    here = subject()
    found = Map().measure(here)["domains"]["shifted"]
    z = unit(here.shifted["shifted"][0])
    after = LinearTCA(here.classifier).fit(z).transform(z)
    theirs = PCA(2).fit(torch.cat([z, after]).double().numpy())
    assert found["explained"] == pytest.approx(theirs.explained_variance_ratio_.sum(), abs=1e-6)
    sign = None
    for points, rows in [("before", z), ("after", after)]:
        expected, ours = theirs.transform(rows.double().numpy()), np.array(found["points"][points])
        sign = np.sign((expected * ours).sum(axis=0)) if sign is None else sign
        assert np.allclose(ours, expected * sign, atol=1e-4)  # one frame for both panels
    assert np.allclose(found["texts"], theirs.transform(here.classifier.text.double().numpy()) * sign, atol=1e-4)


def test_the_axes_do_not_flip(generator):
    z = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    _, axes, _ = principal_axes(z)
    assert (axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)) > 0).all()
    assert torch.allclose(axes.T @ axes, torch.eye(2, dtype=torch.float64))


def test_labels_change_the_accuracy_and_nothing_else():
    here, other = subject(), subject()
    for name, (z, y) in other.embedded.data.domains.items():
        other.embedded.data.domains[name] = z, (y + 1) % 5
    first, second = (Map().measure(one)["domains"]["shifted"] for one in (here, other))
    z, y = here.shifted["shifted"]
    right = (LinearTCA(here.classifier).fit(z).predict(z) == y).double().mean().item()
    assert first["accuracy"]["after"] == pytest.approx(100 * right)
    assert first.pop("accuracy") != second.pop("accuracy")
    assert first == second


def test_the_limit_thins_the_drawing_and_not_the_count():
    here = subject()
    whole, thin = (Map(limit=limit).measure(here)["domains"]["shifted"] for limit in (1500, 50))
    assert len(whole["points"]["before"]) == whole["images"] == thin["images"] == 200
    assert thin["points"]["before"] == whole["points"]["before"][::4]
    assert thin["predicted"]["after"] == whole["predicted"]["after"][::4]
    assert thin["accuracy"] == whole["accuracy"]


def test_of_many_classes_the_most_frequent_are_named():
    here = subject(classes=16, images=12)
    results = Map().measure(here)
    votes = np.zeros(16, dtype=int)
    for found in results["domains"].values():
        votes += sum(np.bincount(found["predicted"][when], minlength=16) for when in ("before", "after"))
    shown = [int(label) for label in results["classes"]]
    assert len(shown) == MOST_COLOURED < results["all_classes"] == 16
    assert min(votes[shown]) >= max(np.delete(votes, shown))
    figure = Figure()
    Map().draw(results, figure)
    assert "6 other classes" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_conditional_tca_marks_its_class_means():
    here = subject()
    found = Map(adapter="conditional-tca").measure(here)["domains"]["skewed"]
    assert found["mark_classes"] == [0, 1, 2, 3, 4]
    z = unit(here.shifted["skewed"][0])
    fitted = ConditionalTCA(here.classifier).fit(z)
    centre, axes, _ = principal_axes(torch.cat([z, fitted.transform(z)]))
    assert np.allclose(found["marks"], (fitted.means_ - centre) @ axes, atol=1e-4)


@pytest.mark.parametrize("adapter", [name for name, registered in ADAPTERS.items() if not registered.oracle])
def test_every_adapter_without_labels_can_be_mapped(adapter):
    here = subject()
    weights = LinearClassifier(here.classifier.weight, torch.linspace(-1, 1, 5).double())  # no texts, a bias
    study = Map(adapter=adapter, domain="shifted")
    results = study.measure(Subject(here.embedded, weights, "clean"))
    z, y = here.shifted["shifted"]
    right = (ADAPTERS[adapter].build(weights).fit(unit(z)).predict(unit(z)) == y).double().mean().item()
    assert results["domains"]["shifted"]["accuracy"]["after"] == pytest.approx(100 * right)
    assert ("class means" if adapter == "conditional-tca" else "pseudo-source") in study.describe(results)[0]
    with pytest.raises(ValueError, match="adapter: 'linear-tca:reference'; allowed are linear-tca"):
        Map(adapter="linear-tca:reference")


def test_the_map_shows_what_was_measured(tmp_path):
    here, study = subject(), Map()
    results = json.loads(json.dumps(study.measure(here)))
    figure = Figure()
    study.draw(results, figure)
    figure.savefig(tmp_path / "map.png", dpi=40)
    assert len(figure.axes) == 2 * len(here.shifted) == 4
    found = results["domains"]["skewed"]
    axes = figure.axes[3]
    assert axes.get_title(loc="left") == f"skewed, after: linear-tca {found['accuracy']['after']:.1f} %"
    assert {text.get_text() for text in axes.texts} == {f"class {i}" for i in range(5)}
    points, marks, texts = (dots.get_offsets().data for dots in axes.collections)
    assert sorted(points.tolist()) == sorted(found["points"]["after"])
    assert (marks.tolist(), texts.tolist()) == (found["marks"], found["texts"])
    lines = study.describe(results)
    assert f"zero-shot {found['accuracy']['before']:.2f} %" in lines[1]
    assert f"{found['changed']} of {found['images']} predictions change" in lines[1]


def test_tsne_is_the_same_for_a_seed():
    here = subject()
    first, again = (
        Map(method="tsne", domain="shifted", limit=20, adapter="conditional-tca").measure(here) for _ in range(2)
    )
    assert first == again
    assert first["domains"]["shifted"]["explained"] is None
    assert len(first["domains"]["shifted"]["points"]["after"]) == 20


def test_a_missing_package_is_named_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr(LinearTCA, "fit", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(ModuleNotFoundError, match="pip install umap-learn"):
        Map(method="umap").measure(subject())


def test_umap_gets_the_seed_and_all_rows(monkeypatch):
    class Module:
        class UMAP:
            def __init__(self, **options):
                self.options = options

            def fit_transform(self, rows):
                assert self.options["random_state"] == 7
                return rows[:, :2]

    monkeypatch.setitem(sys.modules, "umap", Module)
    z = torch.rand(30, 4)
    assert torch.allclose(projection.neighbours(z, "umap", 7), z[:, :2].double())


def test_labels_lie_on_no_other_label_and_no_point():
    points = [(0.5, 0.5), (0.5, 0.51), (0.52, 0.5), (0.1, 0.98), (0.02, 0.02), (0.51, 0.5)]
    widths, height = [0.2, 0.1, 0.3, 0.15, 0.2, 0.1], 0.05
    others = [(0.5, 0.6), (0.1, 0.9)]
    places = label_places(points, widths, height, others)
    boxes = list(zip(places, widths, strict=True))
    for ((x, y), wide), ((u, v), other) in itertools.combinations(boxes, 2):
        assert abs(x - u) >= 0.999 * (wide + other) / 2 or abs(y - v) >= 0.999 * height
    for (x, y), wide in boxes:
        assert wide / 2 <= x <= 1 - wide / 2
        assert all(
            abs(x - u) >= 0.999 * (wide + height) / 2 or abs(y - v) >= 0.999 * height for u, v in points + others
        )


def test_domains_can_be_chosen_and_the_reference_too():
    assert list(Map(domain=["clean", "skewed"]).measure(subject())["domains"]) == ["clean", "skewed"]
    with pytest.raises(ValueError, match="domain: 'none'; allowed are clean, shifted, skewed"):
        Map(domain="none").measure(subject())


def test_a_domain_may_be_called_by_a_number():
    here = subject()
    here.embedded.data.domains["2019"] = here.embedded.data.domains.pop("skewed")
    for given in (2019, "2019", [2019]):  # --set domain=2019 is a number when it comes here
        assert list(Map(domain=given).measure(here)["domains"]) == ["2019"]
    with pytest.raises(ValueError, match="domain: '2020'; allowed are clean, shifted, 2019"):
        Map(domain=2020).measure(here)


@pytest.mark.parametrize("options", [{"method": "lda"}, {"adapter": "tent"}, {"limit": 3}, {"seed": -1}])
def test_a_wrong_option_of_map_is_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: {next(iter(options.values()))!r}"):
        Map(**options)


def test_map_on_real_embeddings(pacs):
    here = Subject(
        Embedded(pacs, {"data": {"classes": pacs.classes}}), ZeroShotClassifier(pacs.text, pacs.scale), "photo"
    )
    results = Map(domain="cartoon", limit=100).measure(here)
    found = results["domains"]["cartoon"]
    assert results["classes"]["1"] == "elephant"
    assert found["accuracy"]["before"] == pytest.approx(77.0, abs=0.2)
    assert found["accuracy"]["after"] == pytest.approx(84.6, abs=0.3)
