"""Study corruption measures the distance to the clean pictures, and accuracy, at every severity."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from clip_tca.evaluation.inputs import Inputs
from clip_tca.studies.study_run import run_study, save_study
from tests.tiny_clip import MODEL

KINDS = ["gaussian_noise", "contrast"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> dict:
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for domain in ("day", "night"):
        for label, name in enumerate(("cat", "dog")):
            (root / domain / name).mkdir(parents=True)
            for i in range(6):
                blocks = rng.uniform(60 * label, 200, (7, 7, 3)).repeat(32, axis=0).repeat(32, axis=1)
                Image.fromarray(blocks.astype(np.uint8)).save(root / domain / name / f"{i}.png")
    return {"data_dir": root, "model": MODEL, "cache": False, "workers": 0}


@pytest.fixture(scope="module")
def record(pictures) -> dict:
    return run_study("corruption", "folder", options={"kinds": KINDS}, **pictures)


def covariance(z: torch.Tensor) -> np.ndarray:
    rows = z.double().numpy()
    return np.cov(rows / np.linalg.norm(rows, axis=1, keepdims=True), rowvar=False)


def test_distance_and_accuracy_are_those_of_the_corrupted_pictures(record, pictures):
    clean = Inputs("folder", **pictures).embed().data
    embedded = Inputs("folder", corrupt="contrast:4", **pictures).embed()
    z, y = embedded.data.domains["night"]
    a, b = covariance(z), covariance(clean.domains["night"][0])
    curve = record["results"]["domains"]["night"]["contrast"]
    assert curve["distance"][4] == pytest.approx(((a - b) ** 2).sum() / (4 * len(a) ** 2))
    predicted = (torch.nn.functional.normalize(z, dim=1) @ embedded.data.text[0].T).argmax(dim=1)
    assert curve["accuracy"][4] == pytest.approx(100 * float((predicted == y).double().mean()))


def test_severity_0_is_the_data_set_itself(record):
    for domain in record["results"]["domains"].values():
        for curve in domain.values():
            assert len(curve["distance"]) == len(curve["accuracy"]) == 6
            assert curve["distance"][0] == 0
        assert domain["contrast"]["accuracy"][0] == domain["gaussian_noise"]["accuracy"][0]


def test_the_figure_comes_from_the_record_alone(record, tmp_path):
    assert record["options"] == {"kinds": KINDS}
    assert all(line.endswith(".") for line in record["finding"])
    assert len(record["finding"]) == 5
    save_study(record, tmp_path / "a")
    save_study(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")), tmp_path / "b")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_pictures_and_known_corruptions_are_needed(pictures):
    with pytest.raises(ValueError, match="study corruption corrupts pictures, and this has embeddings only"):
        run_study("corruption", "synthetic")
    with pytest.raises(ValueError, match="kinds: 'snow'; allowed are gaussian_noise"):
        run_study("corruption", "folder", options={"kinds": "snow"}, **pictures)
