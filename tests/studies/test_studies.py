"""Studies measure what they say, from labels only what is scored, and draw what is in the record."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from clip_tca import LinearClassifier, LinearTCA, ZeroShotClassifier, evaluate
from clip_tca.core.tensors import unit
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.synthetic import synthetic
from clip_tca.evaluation.inputs import Embedded, Inputs
from clip_tca.studies.base import Subject
from clip_tca.studies.registry import NAMES, study_class
from clip_tca.studies.scores import r_squared, ranks, spearman
from clip_tca.studies.study_run import output_files, run_study, save_study
from clip_tca.studies.upper_bound import in_proportion, predict_aligned
from tests.tiny_clip import MODEL

HERE = tuple(name for name in NAMES if name not in ("corruption", "toy", "map"))
SMALL = {
    "alignment": {"steps": 6},
    "k": {"values": [3, 9]},
    "test-size": {"sizes": [30, 60], "seeds": 2},
    "batch-size": {"sizes": [16, 512], "images": 200},
}
"""Options that make a study quick."""


def subject(made: EmbeddingSet, reference: str | None = "clean") -> Subject:
    return Subject(Embedded(made, {}), ZeroShotClassifier(made.text, made.scale), reference)


@pytest.fixture(scope="module")
def made() -> EmbeddingSet:
    return synthetic(0, classes=4, dim=16, images=60)


@pytest.fixture(scope="module")
def stored(made, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("stored") / "made.safetensors"
    made.save(path)
    return str(path)


@pytest.fixture(scope="module")
def measured(made) -> dict[str, dict]:
    return {name: study_class(name)(**SMALL.get(name, {})).measure(subject(made)) for name in HERE}


def numpy_distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum() / (4 * len(a) ** 2))


def numpy_covariance(z: torch.Tensor) -> np.ndarray:
    rows = z.double().numpy()
    return np.cov(rows / np.linalg.norm(rows, axis=1, keepdims=True), rowvar=False)


def percent(predicted: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * float((predicted == y).double().mean())


# -- correlation -------------------------------------------------------------------------------------------------------


def test_spearman_and_r_squared_by_hand():
    assert ranks([10, 20, 20, 5]).tolist() == [2, 3.5, 3.5, 1]
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(3 / 10**0.5)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3], [5, 5, 5]) is None
    assert r_squared([0, 1, 2], [0, 1, 1]) == pytest.approx(0.75)
    assert r_squared([1, 1], [0, 1]) is None


# -- the registry and the record ---------------------------------------------------------------------------------------


def test_every_study_says_what_it_is():
    for name in HERE:
        study = study_class(name)
        assert study.name == name
        assert study.summary
        assert study.paper
    with pytest.raises(ValueError, match="'tost'; allowed are corruption, certainty"):
        study_class("tost")


@pytest.mark.parametrize("name", HERE)
def test_a_record_is_json_and_its_figure_comes_from_it_alone(name, stored, tmp_path):
    record = run_study(name, stored, reference="clean", options=SMALL.get(name, {}))
    wanted = ("study", "title", "paper", "dataset", "data", "model", "prompts", "reference", "options", "results")
    assert all(key in record for key in (*wanted, "finding", "schema_version", "versions", "commit"))
    assert record["cost"]["seconds"] > 0
    assert record["options"].items() >= SMALL.get(name, {}).items()
    assert all(line.endswith(".") for line in record["finding"])
    written = save_study(record, tmp_path / "a")
    again = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert again["results"] == json.loads(json.dumps(record["results"]))
    save_study(again, tmp_path / "b")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 1296
    assert sorted(written) == sorted(path for path in tmp_path.iterdir() if path.name.startswith("a."))


def test_the_same_study_gives_the_same_results(stored):
    first, second = (
        run_study("test-size", stored, reference="clean", options=SMALL["test-size"])["results"] for _ in range(2)
    )
    assert first == second


def test_the_reference_is_photo_or_must_be_named(tmp_path):
    with pytest.raises(ValueError, match="certainty needs a source-like domain; name one of clean, shifted, skewed"):
        run_study("certainty", "synthetic")
    with pytest.raises(ValueError, match="'photo'; allowed are clean, shifted, skewed"):
        run_study("k", "synthetic", reference="photo")
    with pytest.raises(ValueError, match="'clean' is the only domain; another is needed"):
        run_study("certainty", "synthetic", reference="clean", domains=["clean"])
    with pytest.raises(ValueError, match="k measures on a data set"):
        run_study("k")
    made = synthetic(0, classes=3, dim=8, images=20)
    renamed = EmbeddingSet(made.text, made.scale, {"photo": made.domains["clean"], "art": made.domains["shifted"]})
    renamed.save(tmp_path / "two.safetensors")
    record = run_study("k", str(tmp_path / "two.safetensors"), options={"values": 2})
    assert record["reference"] == "photo"
    assert list(record["results"]["domains"]) == ["art"]
    assert run_study("k", "synthetic", options={"values": 2})["reference"] is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("certainty", {"group": 3}, "certainty has no 'group'; allowed are groups"),
        ("certainty", {"groups": 2}, "groups: 2; allowed are whole numbers of at least 3"),
        ("k", {"values": [0, 5]}, "values: 0"),
        ("k", {"shares": "oracle"}, "shares: 'oracle'; allowed are estimated"),
        ("test-size", {"sizes": 1}, "a fit needs at least 2"),
        ("test-size", {"sizes": []}, "sizes: \\[\\]; at least one value is needed"),
        ("test-size", {"methods": "linear-tca:reference"}, "allowed are linear-tca"),
        ("batch-size", {"images": 1}, "images: 1"),
        ("forgetting", {"methods": ["tant"]}, "methods: 'tant'"),
        ("efficiency", {"pictures": 0}, "pictures: 0"),
        ("alignment", {"lr": 0}, "lr: 0"),
        ("upper-bound", {"k": 3}, "upper-bound has no 'k'; allowed are none"),
    ],
)
def test_wrong_options_are_named_before_the_work(name, options, message, monkeypatch):
    monkeypatch.setattr("clip_tca.evaluation.inputs.synthetic", lambda *_: pytest.fail("worked first"))
    with pytest.raises(ValueError, match=message):
        run_study(name, "synthetic", reference="clean", options=options)


def test_files_are_written_all_or_none(stored, tmp_path, monkeypatch):
    record = run_study("upper-bound", stored, reference="clean")
    for path in output_files(tmp_path / "a").values():
        path.write_text("old")
    monkeypatch.setattr("clip_tca.studies.upper_bound.UpperBound.draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_study(record, tmp_path / "a")
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["old"] * 3
    assert [path.name for path in output_files("x.svg").values()] == ["x.json", "x.svg", "x.png"]
    with pytest.raises(ValueError, match="figures/ is a folder"):
        output_files("figures/")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "clip-tca\[plot\]"'):
        save_study(record, tmp_path / "b")
    assert save_study(record, tmp_path / "b", figure=False) == [tmp_path / "b.json"]


def test_labels_only_score(made, measured):
    """With other labels everything but accuracy is the same, except for the oracles, which say so."""
    generator = torch.Generator().manual_seed(1)
    mixed = {name: (z, y[torch.randperm(len(y), generator=generator)]) for name, (z, y) in made.domains.items()}
    other = EmbeddingSet(made.text, made.scale, mixed)

    def kept(results):
        of = results["certainty"]["domains"], results["alignment"]["domains"], results["k"]["domains"]
        groups, points, ks = ([found[key] for found in one.values()] for one, key in zip(of, PARTS, strict=True))
        streams = [one["methods"]["linear-tca"]["sizes"] for one in results["batch-size"]["domains"].values()]
        return [
            [(row["uncertainty"], row["distance"]) for group in groups for row in group],
            [(row["to_pseudo_source"], row["to_source"]) for point in points for row in point],
            [row["pseudo_source"] for k in ks for row in k],
            [row["agreement"] for stream in streams for row in stream],
        ]

    PARTS = ("groups", "points", "values")  # noqa: N806
    again = {
        name: study_class(name)(**SMALL.get(name, {})).measure(subject(other))
        for name in ("certainty", "alignment", "k", "batch-size")
    }
    assert kept(again) == kept(measured)
    assert again["k"]["domains"]["shifted"]["zero_shot"] != measured["k"]["domains"]["shifted"]["zero_shot"]


@pytest.mark.parametrize("name", [name for name in HERE if name not in ("forgetting", "efficiency")])
def test_a_study_measures_any_linear_classifier(made, measured, name):
    """The same weights without their texts give the same numbers, and a bias counts."""
    weight = ZeroShotClassifier(made.text, made.scale).weight
    study = study_class(name)(**SMALL.get(name, {}))
    plain, biased = (
        study.measure(Subject(Embedded(made, {}), LinearClassifier(weight, bias, normalize=True), "clean"))["domains"][
            "shifted"
        ]
        for bias in (None, torch.tensor([9.0, 0.0, 0.0, 0.0], dtype=weight.dtype))
    )
    assert json.dumps(plain, sort_keys=True) == json.dumps(measured[name]["domains"]["shifted"], sort_keys=True)
    assert plain != biased


# -- each study --------------------------------------------------------------------------------------------------------


def test_certainty_groups_are_cut_by_uncertainty(made, measured):
    z, y = made.domains["shifted"]
    found = measured["certainty"]["domains"]["shifted"]
    p = torch.softmax(made.scale * unit(z).double() @ unit(made.text).double().T, dim=1)
    onehot = torch.nn.functional.one_hot(p.argmax(dim=1), 4)
    score = (onehot - p).square().sum(dim=1)
    first = score.argsort(stable=True)[: len(z) // 10]
    group = found["groups"][0]
    assert group["images"] == 24
    assert group["uncertainty"] == pytest.approx(float(score[first].mean()), rel=1e-4)
    assert group["accuracy"] == pytest.approx(percent(p[first].argmax(dim=1), y[first]))
    wanted = numpy_distance(numpy_covariance(z[first]), numpy_covariance(made.domains["clean"][0]))
    assert group["distance"] == pytest.approx(wanted, rel=1e-5)
    scores = [row["uncertainty"] for row in found["groups"]]
    assert scores == sorted(scores)
    assert sum(row["images"] for row in found["groups"]) == len(z)
    assert list(measured["certainty"]["domains"]) == ["shifted", "skewed"]


def test_alignment_starts_at_the_identity_and_ends_at_lineartca(made, measured):
    z, y = made.domains["shifted"]
    found = measured["alignment"]["domains"]["shifted"]
    points = found["points"]
    assert [point["step"] for point in points] == list(range(7))
    source = numpy_covariance(made.domains["clean"][0])
    assert points[0]["to_source"] == pytest.approx(numpy_distance(numpy_covariance(z), source), rel=1e-5)
    to_pseudo = [point["to_pseudo_source"] for point in points]
    assert to_pseudo == sorted(to_pseudo, reverse=True)
    g = ZeroShotClassifier(made.text, made.scale)
    tca = LinearTCA(g, solver="gradient", steps=6).fit(z)
    assert points[-1]["accuracy"] == pytest.approx(percent(tca.predict(z), y))
    moved = numpy_distance(np.cov(tca.transform(z.double()).numpy(), rowvar=False), source)
    assert points[-1]["to_source"] == pytest.approx(moved, rel=1e-4)
    assert found["zero_shot"] == pytest.approx(percent(g.predict(z), y))


def test_k_and_test_size_are_lineartca(made, measured):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["skewed"]
    k = measured["k"]["domains"]["skewed"]
    whole = percent(LinearTCA(g).fit(z).predict(z), y)
    assert k["auto"]["accuracy"] == pytest.approx(whole)
    assert k["values"][1]["accuracy"] == pytest.approx(percent(LinearTCA(g, k=9).fit(z).predict(z), y))
    assert k["values"][0]["pseudo_source"] < k["values"][1]["pseudo_source"]
    rows = measured["test-size"]["domains"]["skewed"]["methods"]["linear-tca"]
    assert [row["images"] for row in rows] == [30, 60, len(z)]
    assert [len(row["accuracies"]) for row in rows] == [2, 2, 1]
    assert rows[-1]["mean"] == pytest.approx(whole)
    assert rows[-1]["std"] == 0
    a, b = rows[0]["accuracies"]
    assert rows[0]["mean"] == pytest.approx((a + b) / 2)
    assert rows[0]["std"] == pytest.approx(abs(a - b) / 2)


def test_a_stream_of_one_batch_is_one_fit_and_any_stream_ends_with_its_pseudo_source(made, measured):
    found = measured["batch-size"]["domains"]["shifted"]
    small, large = found["methods"]["linear-tca"]["sizes"]
    assert (small["batch"], large["batch"]) == (16, 512)
    assert large["agreement"] == 100
    assert large["accuracy"] == found["methods"]["linear-tca"]["one_fit"]
    assert small["agreement"] < 100
    assert found["estimation_error"][0] == pytest.approx(found["estimation_error"][1], rel=1e-9)
    alone = study_class("batch-size")(sizes=[64]).measure(subject(made, reference=None))
    assert list(alone["domains"]) == ["clean", "shifted", "skewed"]
    assert alone["domains"]["shifted"]["estimation_error"] is None


def test_the_figure_of_batch_sizes_is_of_the_methods_in_the_record(made):
    results = study_class("batch-size")(sizes=[64], methods=["conditional-tca", "linear-tca"]).measure(subject(made))
    figure = Figure()
    study_class("batch-size")().draw(results, figure)
    agreement = figure.axes[len(results["domains"])]
    assert agreement.get_title(loc="left") == "Agreement with one fit: conditional-tca"
    rows = [found["methods"]["conditional-tca"]["sizes"] for found in results["domains"].values()]
    assert [line.get_ydata()[0] for line in agreement.lines] == [row[0]["agreement"] for row in rows]


def test_the_upper_bound_solves_as_lineartca_does(made, measured):
    g = ZeroShotClassifier(made.text, made.scale)
    z, y = made.domains["shifted"]
    equal = LinearTCA(g, shares="uniform", k=10).fit(z)  # ten of each: a plain mean and covariance
    assert torch.equal(predict_aligned(g, unit(z), equal.pseudo_source_), equal.predict(z))
    tca = LinearTCA(g).fit(z)
    found = measured["upper-bound"]["domains"]["shifted"]
    assert found["linear-tca"] == pytest.approx(percent(tca.predict(z), y))
    oracle = LinearTCA(g, shares="oracle").fit(z, labels=y).predict(z)
    assert found["oracle: true proportions"] == pytest.approx(percent(oracle, y))
    uses = measured["upper-bound"]["uses"]
    assert all(bool(used) == row.startswith("oracle: ") for row, used in uses.items())


def test_the_source_in_the_proportions_of_the_test_set():
    source = torch.tensor([0] * 10 + [1] * 10 + [2] * 10)
    chosen = in_proportion(source, torch.tensor([0] * 4 + [1] * 2), classes=3)
    assert torch.bincount(source[chosen], minlength=3).tolist() == [10, 5, 0]
    assert len(in_proportion(source[:10], torch.tensor([0, 1]), classes=3)) == 0


def test_forgetting_is_that_of_eval():
    record = run_study("forgetting", "synthetic", reference="clean", options={"methods": ["linear-tca", "t3a"]})
    same = evaluate("synthetic", methods=["linear-tca", "t3a"], forgetting="clean")["forgetting"]
    wanted = {(row["method"], row["adapted_to"]): row["accuracy_with_state"] for row in same}
    results = record["results"]
    assert {(m, d): v for m, of in results["methods"].items() for d, v in of.items()} == wanted
    assert results["without_state"] == same[0]["accuracy_without_state"]
    mean = (wanted["t3a", "shifted"] + wanted["t3a", "skewed"]) / 2
    assert results["change"]["t3a"] == pytest.approx(mean - results["without_state"])


def test_efficiency_without_pictures_says_so(made, measured):
    results = measured["efficiency"]
    assert results["plain_clip"] is None
    assert "no pictures" in study_class("efficiency")().describe(results)[0]
    images = sum(len(y) for name, (_, y) in made.domains.items() if name != "clean")
    assert {row["images"] for row in results["methods"].values()} == {images}
    assert all(row["ms_per_image"] > 0 for row in results["methods"].values())
    one = results["methods"]["t3a"]
    seconds = one["base_seconds"] + one["adapting_seconds"] + one["predicting_seconds"]
    assert one["ms_per_image"] == pytest.approx(1000 * seconds / images)
    with pytest.raises(ValueError, match="'tent' works on images"):
        study_class("efficiency")(methods="tent").measure(subject(made))


def test_efficiency_with_pictures_has_plain_clip(tmp_path):
    for i in range(12):
        folder = tmp_path / ("photo", "art")[i % 2] / ("dog", "cat")[i // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * i, 255 - 20 * i, 90)).save(folder / f"{i}.png")
    options = {"methods": ["linear-tca", "tent"], "batch_size": 4, "pictures": 5}
    inputs = {"data_dir": tmp_path, "model": MODEL, "workers": 0, "cache": False}
    record = run_study("efficiency", "folder", options=options, **inputs)
    results = record["results"]
    assert results["plain_clip"]["images"] == results["methods"]["tent"]["images"] == 5
    assert results["methods"]["linear-tca"]["images"] == 6
    assert results["methods"]["tent"]["embeds"]
    assert min(results["methods"]["tent"]["ms_per_image"], results["plain_clip"]["ms_per_image"]) > 0
    assert "of plain CLIP" in " ".join(record["finding"])
    data = Inputs("folder", **inputs).embed().data
    right = ZeroShotClassifier(data.text, data.scale).predict(data.domains["art"][0]) == data.domains["art"][1]
    seen = torch.randperm(6, generator=torch.Generator().manual_seed(0))[:5]
    for name, part in {"linear-tca": right, "tent": right[seen]}.items():  # each against the images that it saw
        row, before = results["methods"][name], 100 * part.double().mean().item()
        assert row["zero_shot"] == pytest.approx(before)
        assert f"({row['accuracy'] - before:+.2f}, {len(part)} images)" in " ".join(record["finding"])
    assert results["methods"]["tent"]["zero_shot"] != results["methods"]["linear-tca"]["zero_shot"]  # of 5 and of 6


def test_on_real_embeddings_proportions_matter_more_than_the_source(pacs):
    """On sketch the statistics of photo mislead, and the same in the test set's proportions do not."""
    found = study_class("upper-bound")().measure(subject(pacs, "photo"))["domains"]["sketch"]
    assert found["zero-shot"] == pytest.approx(74.06, abs=0.2)
    assert found["oracle: source statistics"] < found["zero-shot"] < found["linear-tca"]
    assert found["oracle: source statistics, true proportions"] > found["oracle: source statistics"] + 10
