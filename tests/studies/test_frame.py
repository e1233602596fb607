"""Every study: a record with its figure, options and references checked before the work, labels that only score."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image

from clip_tca import LinearClassifier, ZeroShotClassifier
from clip_tca.data.embeddings import EmbeddingSet, synthetic
from clip_tca.evaluation.inputs import Embedded
from clip_tca.studies import STUDIES, study_class
from clip_tca.studies.frame import Subject, output_files, run_study, save_study

SMALL = {
    "alignment": {"steps": 6},
    "k": {"values": [3, 9]},
    "test-size": {"sizes": [30, 60], "seeds": 2},
    "batch-size": {"sizes": [16, 512], "images": 200},
    "toy": {"points": 20},
}
"""Options that make a study quick."""

ON_EMBEDDINGS = [name for name in STUDIES if name != "corruption"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("stored") / "made.safetensors"
    synthetic(0, classes=4, dim=16, images=60).save(path)
    return str(path)


@pytest.mark.parametrize("name", ON_EMBEDDINGS)
def test_a_record_is_json_and_its_figure_comes_from_it_alone(name, stored, tmp_path):
    data = {} if name == "toy" else {"dataset": stored, "reference": "clean"}
    record = run_study(name, **data, options=SMALL.get(name, {}))
    wanted = ("study", "title", "paper", "dataset", "data", "model", "prompts", "reference", "options", "results")
    assert all(key in record for key in (*wanted, "finding", "schema_version", "versions", "commit"))
    assert record["options"].items() >= SMALL.get(name, {}).items()
    rows = [row for row in record["results"] if "points" not in row or "accuracy" in row]
    assert len(record["finding"]) == 1 + len(rows)
    written = save_study(record, tmp_path / "a")
    save_study(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")), tmp_path / "b")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 1296
    assert sorted(written) == sorted(path for path in tmp_path.iterdir() if path.name.startswith("a."))


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
    assert {row["domain"] for row in record["results"]} == {"art"}
    assert run_study("k", "synthetic", options={"values": 2})["reference"] is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tost", {}, "'tost'; allowed are corruption, certainty"),
        ("certainty", {"group": 3}, "certainty has no 'group'; allowed are groups"),
        ("certainty", {"groups": 2}, "groups: 2; allowed are whole numbers of at least 3"),
        ("corruption", {"kinds": "snow"}, "kinds: 'snow'; allowed are gaussian_noise"),
        ("k", {"values": [0, 5]}, "values: 0"),
        ("test-size", {"sizes": 1}, "a fit needs at least 2"),
        ("test-size", {"sizes": []}, "sizes: \\[\\]; at least one value is needed"),
        ("batch-size", {"images": 1}, "images: 1"),
        ("forgetting", {"methods": ["tant"]}, "methods: 'tant'"),
        ("upper-bound", {"k": 3}, "upper-bound has no 'k'; allowed are none"),
        ("toy", {"points": 2.5}, "points: 2.5"),
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
    with pytest.raises(KeyError):
        save_study({**record, "results": []}, tmp_path / "a")
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["old"] * 3
    assert [path.name for path in output_files("x.svg").values()] == ["x.json", "x.svg", "x.png"]
    with pytest.raises(ValueError, match="figures/ is a folder"):
        output_files("figures/")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[plot\]"'):
        save_study(record, tmp_path / "b")


def measured(name: str, made: EmbeddingSet, g: LinearClassifier) -> list[dict]:
    return study_class(name)(**SMALL.get(name, {})).measure(Subject(Embedded(made, {}), g, "clean"))


@pytest.mark.parametrize("name", ["certainty", "alignment", "k", "test-size", "batch-size"])
def test_labels_only_score_and_any_linear_classifier_is_measured(name):
    """Other labels change accuracies alone; the same weights without their texts give the same; a bias counts."""
    made = synthetic(0, classes=4, dim=16, images=60)
    other = EmbeddingSet(made.text, made.scale, {name: (z, (y + 1) % 4) for name, (z, y) in made.domains.items()})
    text = ZeroShotClassifier(made.text, made.scale)

    def without_scores(rows):
        scores = ("accuracy", "std", "gain", "spearman", "percent")
        return [{key: value for key, value in row.items() if key not in scores} for row in rows]

    first, relabelled = measured(name, made, text), measured(name, other, text)
    assert without_scores(first) == without_scores(relabelled)
    assert first != relabelled
    bias = torch.tensor([9.0, 0.0, 0.0, 0.0], dtype=text.weight.dtype)
    plain, biased = (measured(name, made, LinearClassifier(text.weight, b, normalize=True)) for b in (None, bias))
    assert plain == first
    assert plain != biased
