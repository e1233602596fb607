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
from clip_tca.data.embeddings import EmbeddingSet, synthetic
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.studies import study_class, toy
from clip_tca.studies.frame import Subject, run_study, shuffled
from clip_tca.studies.paper import in_proportion, predict_aligned
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def made() -> EmbeddingSet:
    return synthetic(0, classes=4, dim=16, images=60)


def measured(name: str, made: EmbeddingSet, reference: str | None = "clean", **options) -> list[dict]:
    subject = Subject(Embedded(made, {}), ZeroShotClassifier(made.text, made.scale), reference)
    return study_class(name)(**options).measure(subject)


def column(rows: list[dict], name: str, **where) -> list:
    """Values of a column in the rows that have these values."""
    return [row[name] for row in rows if row.items() >= where.items() and name in row]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation distance, by NumPy."""
    first, second = (np.cov(unit(z).double().numpy(), rowvar=False) for z in (a, b))
    return float(((first - second) ** 2).sum() / (4 * len(first) ** 2))


def percent(predicted: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * float((predicted == y).double().mean())


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
    distances, accuracies = (column(record["results"], name, domain="night") for name in ("distance", "accuracy"))
    z, y = hard.domains["night"]
    assert distances[4] == pytest.approx(distance(z, clean.domains["night"][0]))
    assert accuracies[4] == pytest.approx(percent((unit(z) @ hard.text[0].T).argmax(dim=1), y))
    assert column(record["results"], "severity", domain="night", kind="contrast") == list(range(6))
    assert distances[0] == 0
    figure = Figure()
    study_class("corruption").draw(record["results"], figure)
    assert [len(panel.lines) for panel in figure.axes] == [2, 2]  # distance and accuracy, a line for each domain
    with pytest.raises(ValueError, match="study corruption corrupts pictures, and this has embeddings only"):
        run_study("corruption", "synthetic")


def test_certainty_groups_are_cut_by_uncertainty(made):
    z, y = made.domains["shifted"]
    results = measured("certainty", made)
    p = torch.softmax(made.scale * unit(z).double() @ unit(made.text).double().T, dim=1)
    score = (torch.nn.functional.one_hot(p.argmax(dim=1), 4) - p).square().sum(dim=1)
    first = score.argsort(stable=True)[: len(z) // 10]
    groups = [row for row in results if row["domain"] == "shifted" and "group" in row]
    assert groups[0]["uncertainty"] == pytest.approx(float(score[first].mean()), rel=1e-4)
    assert groups[0]["accuracy"] == pytest.approx(percent(p[first].argmax(dim=1), y[first]))
    assert groups[0]["distance"] == pytest.approx(distance(z[first], made.domains["clean"][0]), rel=1e-5)
    uncertainties, distances = ([row[name] for row in groups] for name in ("uncertainty", "distance"))
    assert uncertainties == sorted(uncertainties)
    assert groups[0]["spearman"] == pytest.approx(np.corrcoef(np.argsort(np.argsort(distances)), range(10))[0, 1])
    assert sum(row["images"] for row in groups) == len(z)
    assert {row["domain"] for row in results} == {"shifted", "skewed"}


def test_alignment_starts_at_the_identity_and_ends_at_lineartca(made):
    (z, y), source = made.domains["shifted"], made.domains["clean"][0]
    points = [row for row in measured("alignment", made, steps=6) if row["domain"] == "shifted"]
    assert [point["step"] for point in points] == list(range(7))
    assert points[0]["distance_to_source"] == pytest.approx(distance(z, source), rel=1e-5)
    to_pseudo = [point["distance_to_pseudo_source"] for point in points]
    assert to_pseudo == sorted(to_pseudo, reverse=True)
    assert points[-1]["gone"] == pytest.approx(100 * (1 - to_pseudo[-1] / to_pseudo[0]))
    g = ZeroShotClassifier(made.text, made.scale)
    tca = LinearTCA(g, solver="gradient", steps=6).fit(z)
    assert points[-1]["accuracy"] == pytest.approx(percent(tca.predict(z), y))
    assert points[-1]["gain"] == pytest.approx(points[-1]["accuracy"] - percent(g.predict(z), y))


def test_k_and_test_size_are_lineartca(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["skewed"]
    whole = percent(LinearTCA(g).fit(z).predict(z), y)
    rows = measured("k", made, values=[3, 9])
    assert column(rows, "accuracy", domain="skewed", method="linear-tca, k = auto") == [pytest.approx(whole)]
    nine = percent(LinearTCA(g, k=9).fit(z).predict(z), y)
    assert column(rows, "accuracy", domain="skewed", method="linear-tca", k=9) == [pytest.approx(nine)]
    small, large = column(rows, "pseudo_source", domain="skewed", method="linear-tca")
    assert small < large
    rows = measured("test-size", made, sizes=[30, 60], seeds=2)
    skewed = [row for row in rows if (row["domain"], row["method"]) == ("skewed", "linear-tca")]
    assert [row["images"] for row in skewed] == [30, 60, len(z)]
    a, b = (percent(LinearTCA(g).fit(z[shuffled(len(z), seed)][:30]).predict(z), y) for seed in range(2))
    assert (skewed[0]["accuracy"], skewed[0]["std"]) == (pytest.approx((a + b) / 2), pytest.approx(abs(a - b) / 2))
    assert (skewed[-1]["accuracy"], skewed[-1]["std"]) == (pytest.approx(whole), 0)


def test_a_stream_of_one_batch_is_one_fit(made):
    rows = measured("batch-size", made, sizes=[16, 512], images=200)
    (once,) = column(rows, "percent", domain="shifted", measure="accuracy of one fit")
    small, large = column(rows, "percent", domain="shifted", measure="agreement with one fit")
    assert column(rows, "percent", domain="shifted", measure="accuracy of the stream", batch=512) == [once]
    assert small < large == 100
    assert min(column(rows, "estimation_error")) > 0
    alone = measured("batch-size", made, reference=None, sizes=[64])
    assert column(alone, "estimation_error") == [None] * 3


def upper_bounds(made: EmbeddingSet, domain: str, reference: str = "clean") -> dict[str, float]:
    rows = measured("upper-bound", made, reference)
    return {row["method"]: row["accuracy"] for row in rows if row["domain"] == domain}


def test_the_upper_bound_solves_as_lineartca_does(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["shifted"]
    equal = LinearTCA(g, shares="uniform", k=10).fit(z)  # ten of each: a plain mean and covariance
    assert torch.equal(predict_aligned(g, unit(z), equal.pseudo_source_), equal.predict(z))
    found = upper_bounds(made, "shifted")
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
    found = upper_bounds(pacs, "sketch", "photo")
    assert found["zero-shot"] == pytest.approx(74.06, abs=0.2)
    assert found["oracle: source statistics"] < found["zero-shot"] < found["linear-tca"]
    assert found["oracle: source statistics, true proportions"] > found["oracle: source statistics"] + 10


def test_forgetting_predicts_the_source_with_the_state_of_another_domain(made):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["clean"]
    rows = measured("forgetting", made, methods=["linear-tca", "t3a"])
    before = percent(g.predict(z), y)
    for name in ("shifted", "skewed"):
        after = percent(LinearTCA(g).fit(made.domains[name][0]).predict(z), y)
        assert column(rows, "accuracy", domain=name, method="linear-tca") == [pytest.approx(after)]
        assert column(rows, "change", domain=name, method="linear-tca") == [pytest.approx(after - before)]
    assert rows[-1]["accuracy"] == pytest.approx(before)
    assert len(column(rows, "accuracy", method="t3a")) == 2


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
def maps() -> dict:
    """Rows of the toy by shift and map; of the gradient steps a list."""
    rows: dict = {}
    for row in json.loads(json.dumps(toy.Toy(seed=3, points=60).measure())):
        if "step" in row:
            rows.setdefault((row["shift"], "steps"), []).append(row)
        elif "accuracy" in row or row["map"] == "source":
            rows[row["shift"], row["map"]] = row
    return rows


@pytest.mark.parametrize("shift", PAPER)
def test_distances_and_accuracy_are_those_of_the_points_in_the_record(maps, shift):
    source, labels = np.array(maps[shift, "source"]["points"]), toy.clusters(shift, 3, 60)[3].numpy()
    means = source.reshape(-1, 30, 2).mean(axis=1)
    for name in ("LinearTCA", "MLP-2", "MLP-3", "pseudo-source"):
        one = maps[shift, name]
        x = np.array(one["points"])
        nearest = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert one["accuracy"] == pytest.approx(100 * (nearest == labels).mean(), abs=1.0)  # points are rounded
        gap = np.cov(x.T) - np.cov(source.T)
        assert one["correlation"] == pytest.approx((gap**2).sum() / 16, rel=1e-2, abs=1e-3)
        assert one["mean"] == pytest.approx(np.linalg.norm(x.mean(axis=0) - source.mean(axis=0)), abs=2e-3)
        own = [np.linalg.norm(x[labels == c].mean(axis=0) - means[c]) for c in range(len(means))]
        assert one["centres"] == pytest.approx(np.mean(own), abs=2e-3)


def test_only_the_linear_shift_is_undone_by_a_linear_map_and_mlps_undo_the_rest(maps):
    left = {}
    for shift in PAPER:
        before, linear = maps[shift, "before"], maps[shift, "LinearTCA"]
        assert linear["correlation"] < 1e-4 * before["correlation"]
        assert linear["accuracy"] > before["accuracy"] + 10
        left[shift] = linear["centres"] / before["centres"]
        for name in ("MLP-2", "MLP-3"):
            assert maps[shift, name]["accuracy"] > min(99, linear["accuracy"] + 2)
            assert maps[shift, name]["centres"] < 0.5 * linear["centres"]
        steps = [row["correlation"] for row in maps[shift, "steps"]]
        assert steps[0] == pytest.approx(before["correlation"])
        assert steps == sorted(steps, reverse=True)
    assert left["linear"] < 0.25 < 0.4 < left["nonlinear"]
