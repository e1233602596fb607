"""Measures beside accuracy, by hand and by scikit-learn's formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import clip_tca
from clip_tca.data.embeddings import EmbeddingSet
from clip_tca.evaluation.measures import Scores, calibration_error, equal_count, equal_width, result_row
from clip_tca.evaluation.method_spec import MethodSpec


def row(logits: torch.Tensor, labels: torch.Tensor, classes: int) -> dict:
    names = [str(label) for label in range(classes)]
    return result_row(MethodSpec("zero-shot"), "d", 0, Scores.of(logits, labels), labels, names, len(labels))


def of_probabilities(p: list[list[float]], labels: list[int]) -> dict:
    return row(torch.tensor(p).log(), torch.tensor(labels), len(p[0]))


def test_the_measures_of_four_images_by_hand():
    """Classes 0 0 0 1 are called 0 0 1 1, with the confidences 0.95, 0.55, 0.55 and 0.95."""
    found = of_probabilities([[0.95, 0.05], [0.55, 0.45], [0.45, 0.55], [0.05, 0.95]], [0, 0, 0, 1])
    assert found["accuracy"] == 75
    expected = {
        "macro_accuracy": 100 * (2 / 3 + 1) / 2,
        "worst_class": 100 * 2 / 3,
        "macro_f1": 100 * (2 * 2 / (2 * 2 + 0 + 1) + 2 * 1 / (2 * 1 + 1 + 0)) / 2,
        "nll": -(2 * math.log(0.95) + math.log(0.55) + math.log(0.45)) / 4,
        # above 14/15 two of two are right at 0.95; in (8/15, 9/15] one of two at 0.55
        "ece": 100 * (2 / 4 * 0.05 + 2 / 4 * 0.05),
        # four images in fifteen bins: each image alone
        "adaptive_ece": 100 * (0.05 + 0.05 + 0.45 + 0.55) / 4,
    }
    assert found["metrics"] == pytest.approx(expected, abs=1e-5)
    bins = found["calibration"]
    assert [(i, n) for i, n in enumerate(bins["count"]) if n] == [(8, 2), (14, 2)]
    assert bins["confidence"][8] == pytest.approx(55, abs=1e-4)
    assert (bins["accuracy"][8], bins["accuracy"][14], bins["accuracy"][0]) == (50, 100, None)


def test_a_bin_holds_its_upper_end():
    """1/15 is in the first bin, a little more in the second; 1 is in the last."""
    shown = equal_width(torch.tensor([0.0, 1 / 15, 1 / 15 + 1e-9, 0.5, 1.0], dtype=torch.float64))
    assert shown.tolist() == [0, 0, 1, 7, 14]


def test_a_class_without_probability_has_no_likelihood_and_the_record_stays_whole():
    found = row(torch.tensor([[0.0, -math.inf], [0.0, 0.0]]), torch.tensor([1, 0]), 2)
    assert found["metrics"]["nll"] is None
    assert found["metrics"]["ece"] == pytest.approx(100 * (1 + 0.5) / 2)


@pytest.mark.parametrize("classes", [2, 7])
def test_the_measures_are_scikit_learn_s(classes):
    generator = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(3000, classes, generator=generator)  # more than a chunk
    labels = torch.where(
        torch.rand(3000, generator=generator) < 0.6,
        logits.argmax(dim=1),
        torch.randint(classes, (3000,), generator=generator),
    )
    labels[labels == classes - 1] = 0 if classes > 2 else 1  # a class that is predicted and has no images
    found, predicted = row(logits, labels, classes)["metrics"], logits.argmax(dim=1)
    truth, p = labels.numpy(), logits.double().softmax(dim=1).numpy()
    recalls = sklearn_metrics.recall_score(truth, predicted, average=None, labels=np.unique(truth))
    expected = {
        "macro_accuracy": 100 * np.mean(recalls),
        "macro_f1": 100 * sklearn_metrics.f1_score(truth, predicted, average="macro"),
        "worst_class": 100 * min(recalls),
        "nll": sklearn_metrics.log_loss(truth, p, labels=range(classes)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_calibration_errors_are_those_of_a_second_implementation():
    generator = np.random.default_rng(0)
    confidence, correct = generator.random(300), generator.random(300) < 0.6

    def error(groups: list[np.ndarray]) -> float:
        return 100 * sum(len(g) / 300 * abs(correct[g].mean() - confidence[g].mean()) for g in groups if len(g))

    edges = np.linspace(0, 1, 16)
    width = [np.flatnonzero((confidence > a) & (confidence <= b)) for a, b in pairwise(edges)]
    count = np.array_split(np.argsort(confidence), 15)
    values, right = torch.from_numpy(confidence), torch.from_numpy(correct)
    assert calibration_error(values, right, equal_width(values)) == pytest.approx(error(width))
    assert calibration_error(values, right, equal_count(values)) == pytest.approx(error(count))


@pytest.mark.parametrize("setting", ["transductive", "online"])
def test_every_method_of_a_run_has_all_measures_of_its_own_probabilities(setting):
    methods = ["zero-shot", "linear-tca", "t3a", "t3a+tca"]
    record = clip_tca.evaluate("synthetic", methods=methods, setting=setting, batch_size=400, domains=["shifted"])
    for found in record["rows"]:
        assert sorted(found["metrics"]) == ["adaptive_ece", "ece", "macro_accuracy", "macro_f1", "nll", "worst_class"]
        assert sum(found["calibration"]["count"]) == found["images"]
        classes = [score["accuracy"] for score in found["per_class"].values()]
        assert found["metrics"]["worst_class"] == pytest.approx(min(classes))
    assert len({found["metrics"]["nll"] for found in record["rows"]}) == 4


def test_zero_shot_s_probabilities_are_those_of_unit_embeddings(tmp_path):
    """Stored embeddings need not have unit length; prompts are compared with such."""
    data = EmbeddingSet(torch.eye(2), 2.0, {"d": (torch.tensor([[5.0, 0.0], [0.0, 0.1]]), torch.tensor([0, 1]))})
    data.save(tmp_path / "long.safetensors")
    (found,) = clip_tca.evaluate(str(tmp_path / "long.safetensors"), methods=["zero-shot"])["rows"]
    assert found["metrics"]["nll"] == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)
