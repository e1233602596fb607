"""Each study measures what it says, beside a second calculation."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.core.tensors import unit
from clip_tca.datasets.embeddings import EmbeddingSet, synthetic
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.studies import study_class, toy
from clip_tca.studies.frame import Subject, run_study
from clip_tca.studies.source import in_proportion, predict_aligned
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def made() -> EmbeddingSet:
    return synthetic(0, classes=4, dim=16, images=60)


def measured(name: str, made: EmbeddingSet, reference: str | None = "clean", **options) -> dict:
    subject = Subject(Embedded(made, {}), ZeroShotClassifier(made.text, made.scale), reference)
    return study_class(name)(**options).measure(subject)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation distance, by NumPy."""
    first, second = (np.cov(unit(z).double().numpy(), rowvar=False) for z in (a, b))
    return float(((first - second) ** 2).sum() / (4 * len(first) ** 2))


def percent(predicted: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * float((predicted == y).double().mean())


# -- distances ---------------------------------------------------------------------------------------------------------


def test_corruption_measures_the_corrupted_pictures_and_severity_0_is_the_data_set_itself(tmp_path):
    rng = np.random.default_rng(0)
    for domain, (label, name) in itertools.product(("day", "night"), enumerate(("cat", "dog"))):
        (tmp_path / domain / name).mkdir(parents=True)
        for i in range(4):
            blocks = rng.uniform(60 * label, 200, (7, 7, 3)).repeat(32, axis=0).repeat(32, axis=1)
            Image.fromarray(blocks.astype(np.uint8)).save(tmp_path / domain / name / f"{i}.png")
    pictures = {"data_dir": tmp_path, "model": MODEL, "cache": False, "workers": 0}
    record = run_study("corruption", "folder", options={"kinds": ["contrast"]}, **pictures)
    clean, hard = (Inputs("folder", corrupt=how, **pictures).embed().data for how in (None, "contrast:4"))
    curve = record["results"]["domains"]["night"]["contrast"]
    z, y = hard.domains["night"]
    assert curve["distance"][4] == pytest.approx(distance(z, clean.domains["night"][0]))
    assert curve["accuracy"][4] == pytest.approx(percent((unit(z) @ hard.text[0].T).argmax(dim=1), y))
    assert len(curve["distance"]) == len(curve["accuracy"]) == 6
    assert curve["distance"][0] == 0
    study_class("corruption").draw(record["results"], Figure())
    assert len(record["finding"]) == 3
    with pytest.raises(ValueError, match="study corruption corrupts pictures, and this has embeddings only"):
        run_study("corruption", "synthetic")


def test_certainty_groups_are_cut_by_uncertainty(made):
    z, y = made.domains["shifted"]
    results = measured("certainty", made)
    p = torch.softmax(made.scale * unit(z).double() @ unit(made.text).double().T, dim=1)
    score = (torch.nn.functional.one_hot(p.argmax(dim=1), 4) - p).square().sum(dim=1)
    first = score.argsort(stable=True)[: len(z) // 10]
    groups = results["domains"]["shifted"]["groups"]
    assert groups[0]["uncertainty"] == pytest.approx(float(score[first].mean()), rel=1e-4)
    assert groups[0]["accuracy"] == pytest.approx(percent(p[first].argmax(dim=1), y[first]))
    assert groups[0]["distance"] == pytest.approx(distance(z[first], made.domains["clean"][0]), rel=1e-5)
    assert [row["uncertainty"] for row in groups] == sorted(row["uncertainty"] for row in groups)
    assert sum(row["images"] for row in groups) == len(z)
    assert list(results["domains"]) == ["shifted", "skewed"]


def test_alignment_starts_at_the_identity_and_ends_at_lineartca(made):
    (z, y), source = made.domains["shifted"], made.domains["clean"][0]
    found = measured("alignment", made, steps=6)["domains"]["shifted"]
    points = found["points"]
    assert [point["step"] for point in points] == list(range(7))
    assert points[0]["to_source"] == pytest.approx(distance(z, source), rel=1e-5)
    to_pseudo = [point["to_pseudo_source"] for point in points]
    assert to_pseudo == sorted(to_pseudo, reverse=True)
    g = ZeroShotClassifier(made.text, made.scale)
    tca = LinearTCA(g, solver="gradient", steps=6).fit(z)
    assert points[-1]["accuracy"] == pytest.approx(percent(tca.predict(z), y))
    assert found["zero_shot"] == pytest.approx(percent(g.predict(z), y))


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_k_and_test_size_are_lineartca(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["skewed"]
    whole = percent(LinearTCA(g).fit(z).predict(z), y)
    k = measured("k", made, values=[3, 9])["domains"]["skewed"]
    assert k["auto"]["accuracy"] == pytest.approx(whole)
    assert k["values"][1]["accuracy"] == pytest.approx(percent(LinearTCA(g, k=9).fit(z).predict(z), y))
    assert k["values"][0]["pseudo_source"] < k["values"][1]["pseudo_source"]
    rows = measured("test-size", made, sizes=[30, 60], seeds=2)["domains"]["skewed"]["methods"]["linear-tca"]
    assert [row["images"] for row in rows] == [30, 60, len(z)]
    assert [len(row["accuracies"]) for row in rows] == [2, 2, 1]
    assert (rows[-1]["mean"], rows[-1]["std"]) == (pytest.approx(whole), 0)
    a, b = rows[0]["accuracies"]
    assert (rows[0]["mean"], rows[0]["std"]) == (pytest.approx((a + b) / 2), pytest.approx(abs(a - b) / 2))


def test_a_stream_of_one_batch_is_one_fit(made):
    found = measured("batch-size", made, sizes=[16, 512], images=200)["domains"]["shifted"]
    small, large = found["sizes"]
    assert large == {"batch": 512, "accuracy": found["one_fit"], "agreement": 100}
    assert small["agreement"] < 100
    assert found["estimation_error"] > 0
    alone = measured("batch-size", made, reference=None, sizes=[64])["domains"]
    assert list(alone) == ["clean", "shifted", "skewed"]
    assert alone["shifted"]["estimation_error"] is None


# -- source ------------------------------------------------------------------------------------------------------------


def test_the_upper_bound_solves_as_lineartca_does(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["shifted"]
    equal = LinearTCA(g, shares="uniform", k=10).fit(z)  # ten of each: a plain mean and covariance
    assert torch.equal(predict_aligned(g, unit(z), equal.pseudo_source_), equal.predict(z))
    found = measured("upper-bound", made)["domains"]["shifted"]
    assert found["linear-tca"] == pytest.approx(percent(LinearTCA(g).fit(z).predict(z), y))
    oracle = LinearTCA(g, shares="oracle").fit(z, labels=y).predict(z)
    assert found["oracle: true proportions"] == pytest.approx(percent(oracle, y))


def test_the_source_in_the_proportions_of_the_test_set():
    source = torch.tensor([0] * 10 + [1] * 10 + [2] * 10)
    chosen = in_proportion(source, torch.tensor([0] * 4 + [1] * 2), classes=3)
    assert torch.bincount(source[chosen], minlength=3).tolist() == [10, 5, 0]
    assert len(in_proportion(source[:10], torch.tensor([0, 1]), classes=3)) == 0


def test_on_real_embeddings_proportions_matter_more_than_the_source(pacs):
    """On sketch the statistics of photo mislead, and the same in the test set's proportions do not."""
    found = measured("upper-bound", pacs, "photo")["domains"]["sketch"]
    assert found["zero-shot"] == pytest.approx(74.06, abs=0.2)
    assert found["oracle: source statistics"] < found["zero-shot"] < found["linear-tca"]
    assert found["oracle: source statistics, true proportions"] > found["oracle: source statistics"] + 10


def test_forgetting_predicts_the_source_with_the_state_of_another_domain(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["clean"]
    results = measured("forgetting", made, methods=["linear-tca", "t3a"])
    adapted = {name: LinearTCA(g).fit(made.domains[name][0]) for name in ("shifted", "skewed")}
    wanted = {name: pytest.approx(percent(tca.predict(z), y)) for name, tca in adapted.items()}
    assert results["methods"]["linear-tca"] == wanted
    assert results["without_state"] == pytest.approx(percent(g.predict(z), y))
    t3a = results["methods"]["t3a"]
    assert results["change"]["t3a"] == pytest.approx(sum(t3a.values()) / 2 - results["without_state"])


# -- toy ---------------------------------------------------------------------------------------------------------------

PAPER = {
    "linear": """
X_s = torch.cat((torch.randn(30, 2),
                 torch.randn(30, 2) + 15,
                 torch.randn(30, 2) + torch.tensor([0, 10])), dim=0)
X_t = torch.cat((torch.randn(250, 2) * 2 + 7,
                 torch.randn(250, 2) * 2.5 + torch.tensor([0, 20]),
                 torch.randn(250, 2) * 3 + 21), dim=0)
""",
    "nonlinear": """
X_s = torch.cat((torch.randn(30, 2),
                 torch.randn(30, 2) + 10,
                 torch.randn(30, 2) + torch.tensor([0, 10]),
                 torch.randn(30, 2) + torch.tensor([-5, -10])), dim=0)
X_t = torch.cat((torch.randn(250, 2) * 3 + 5,
                 torch.randn(250, 2) + 10,
                 torch.randn(250, 2) * 2 + torch.tensor([0, 20]),
                 torch.randn(250, 2) * 2.5 + torch.tensor([-9, 1])), dim=0)
""",
}
"""The two listings of the appendix."""


@pytest.mark.parametrize("name", PAPER)
def test_the_points_are_those_of_the_paper_s_code_and_classes_are_paired_by_the_least_movement(name):
    theirs = {"torch": torch}
    torch.manual_seed(5)
    exec(PAPER[name], theirs)  # noqa: S102
    source, _, test, _ = toy.clusters(name, 5, 250)
    assert torch.equal(source.float(), theirs["X_s"])
    assert torch.equal(test.float(), theirs["X_t"])
    centres, targets = np.array([centre for centre, *_ in toy.TEST[name]]), np.array(toy.SOURCE[name])
    moves = {p: ((centres - targets[list(p)]) ** 2).sum() for p in itertools.permutations(range(len(targets)))}
    assert min(moves, key=moves.get) == tuple(label for *_, label in toy.TEST[name])


@pytest.fixture(scope="module")
def shifts() -> dict:
    return json.loads(json.dumps(toy.Toy(seed=3, points=60).measure()))["shifts"]


@pytest.mark.parametrize("name", PAPER)
def test_distances_and_accuracy_are_those_of_the_points_in_the_record(shifts, name):
    source, labels = np.array(shifts[name]["source"]), toy.clusters(name, 3, 60)[3].numpy()
    means = source.reshape(-1, 30, 2).mean(axis=1)
    for one in shifts[name]["maps"].values():
        x = np.array(one["points"])
        nearest = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert one["accuracy"] == pytest.approx(100 * (nearest == labels).mean(), abs=1.0)  # points are rounded
        gap = np.cov(x.T) - np.cov(source.T)
        assert one["correlation"] == pytest.approx((gap**2).sum() / 16, rel=1e-2, abs=1e-3)
        assert one["mean"] == pytest.approx(np.linalg.norm(x.mean(axis=0) - source.mean(axis=0)), abs=2e-3)
        own = [np.linalg.norm(x[labels == c].mean(axis=0) - means[c]) for c in range(len(means))]
        assert one["centres"] == pytest.approx(np.mean(own), abs=2e-3)


def test_only_the_linear_shift_is_undone_by_a_linear_map_and_mlps_undo_the_rest(shifts):
    left = {}
    for name, found in shifts.items():
        before, linear = found["before"], found["maps"]["linear-tca"]
        assert linear["correlation"] < 1e-4 * before["correlation"]
        assert linear["accuracy"] > before["accuracy"] + 10
        left[name] = linear["centres"] / before["centres"]
        for key in ("mlp2-tca", "mlp3-tca"):
            assert found["maps"][key]["accuracy"] > min(99, linear["accuracy"] + 2)
            assert found["maps"][key]["centres"] < 0.5 * linear["centres"]
        steps = [scores["correlation"] for scores in found["process"].values()]
        assert steps[0] == pytest.approx(before["correlation"])
        assert steps == sorted(steps, reverse=True)
    assert left["linear"] < 0.25 < 0.4 < left["nonlinear"]
