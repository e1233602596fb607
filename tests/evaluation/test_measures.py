"""Measures beside accuracy, by hand and by scikit-learn's formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import clip_tca
from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.measures import BINS, Scores, auroc, calibration_error, equal_count, equal_width
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.evaluation.result_rows import result_row
from clip_tca.evaluation.unknown_classes import hidden_classes, hide


def row(logits: torch.Tensor, labels: torch.Tensor, classes: int) -> dict:
    names = [str(label) for label in range(classes)]
    return result_row(MethodSpec("zero-shot"), "d", 0, Scores.of(logits, labels), labels, names, len(labels))


def of_probabilities(p: list[list[float]], labels: list[int]) -> dict:
    return row(torch.tensor(p).log(), torch.tensor(labels), len(p[0]))


# -- by hand -----------------------------------------------------------------------------------------------------------


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


def test_the_bins_of_a_reliability_diagram_by_hand():
    found = of_probabilities([[0.95, 0.05], [0.55, 0.45], [0.45, 0.55], [0.05, 0.95]], [0, 0, 0, 1])["calibration"]
    assert [(i, n) for i, n in enumerate(found["count"]) if n] == [(8, 2), (14, 2)]
    assert found["confidence"][8] == pytest.approx(55, abs=1e-4)
    assert found["confidence"][14] == pytest.approx(95, abs=1e-4)
    assert (found["accuracy"][8], found["accuracy"][14], found["accuracy"][0]) == (50, 100, None)


def test_a_bin_holds_its_upper_end():
    """1/15 is in the first bin, a little more in the second; 1 is in the last."""
    shown = equal_width(torch.tensor([0.0, 1 / 15, 1 / 15 + 1e-9, 0.5, 1.0], dtype=torch.float64))
    assert shown.tolist() == [0, 0, 1, 7, 14]


def test_bins_of_equal_count_differ_by_at_most_one_image_and_follow_confidence():
    confidence = torch.rand(100, generator=torch.Generator().manual_seed(0))
    bins = equal_count(confidence)
    assert set(torch.bincount(bins, minlength=BINS).tolist()) == {6, 7}
    assert bins[confidence.argsort()].tolist() == sorted(bins.tolist())


def test_auroc_by_hand():
    """Of six pairs of known and unknown four are in order, one is a tie."""
    assert auroc(torch.tensor([0.9, 0.5, 0.8]), torch.tensor([0.5, 0.7])) == pytest.approx(100 * 4.5 / 6)
    assert auroc(torch.tensor([0.9]), torch.tensor([])) is None


def test_a_class_without_probability_has_no_likelihood_and_the_record_stays_whole():
    found = row(torch.tensor([[0.0, -math.inf], [0.0, 0.0]]), torch.tensor([1, 0]), 2)
    assert found["metrics"]["nll"] is None
    assert found["metrics"]["ece"] == pytest.approx(100 * (1 + 0.5) / 2)


# -- by scikit-learn ---------------------------------------------------------------------------------------------------


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


def test_auroc_is_scikit_learn_s():
    generator = torch.Generator().manual_seed(0)
    known, unknown = (torch.randint(50, (n,), generator=generator) / 50 for n in (400, 150))
    truth = [1] * 400 + [0] * 150
    expected = 100 * sklearn_metrics.roc_auc_score(truth, torch.cat([known, unknown]).numpy())
    assert auroc(known, unknown) == pytest.approx(expected)


def test_pieces_do_not_change_the_scores():
    logits = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(4, (5000,), generator=torch.Generator().manual_seed(1))
    whole, part = Scores.of(logits, labels), Scores.of(logits[4000:], labels[4000:])
    assert torch.equal(whole.confidence[4000:], part.confidence)
    assert torch.equal(whole.log_likelihood[4000:], part.log_likelihood)


# -- in a run ----------------------------------------------------------------------------------------------------------


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


# -- unknown classes ---------------------------------------------------------------------------------------------------

ROWS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.6, 0.8, 0], [0, 0, 1], [0.8, 0, 0.6]])
TRUE = torch.tensor([0, 2, 0, 1, 1])
"""Two images of class 0, one of class 2, two of the class 1 that is hidden: its text is the third axis."""

TEXT = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.fixture
def stored(tmp_path) -> str:
    EmbeddingSet(TEXT, 10.0, {"d": (ROWS, TRUE)}, ["ant", "bee", "cat"]).save(tmp_path / "three.safetensors")
    return str(tmp_path / "three.safetensors")


@pytest.mark.parametrize("head", [False, True])
def test_unknown_classes_by_hand(head, stored):
    """Known: p = σ(10), σ(10) and σ(2), the last one wrong. Unknown: 1/2 and σ(8). Five of six pairs are in order."""
    if head:
        head_of = LinearClassifier(10 * TEXT, classes=["ant", "bee", "cat"])
        EmbeddingSet(None, 1.0, {"d": (ROWS, TRUE)}, ["ant", "bee", "cat"], head=head_of).save(stored)
    record = clip_tca.evaluate(stored, methods=["zero-shot"], unknown_classes="bee")
    assert record["data"]["classes"] == ["ant", "cat"]
    assert record["data"]["unknown_classes"] == ["bee"]
    assert record["data"]["domains"]["d"]["images"] == 5
    (found,) = record["rows"]
    assert (found["correct"], found["images"], found["divisor"]) == (2, 3, 3)
    assert found["confusion"] == [[1, 1], [0, 1]]
    assert found["metrics"]["unknown_auroc"] == pytest.approx(100 * 5 / 6)
    softplus = [math.log(1 + math.exp(x)) for x in (-10, -10, 2)]
    assert found["metrics"]["nll"] == pytest.approx(sum(softplus) / 3, rel=1e-4)


def test_hidden_classes_leave_the_prompts_that_methods_see():
    data = EmbeddingSet(TEXT.expand(2, 3, 3), 10.0, {"d": (ROWS, TRUE)}, ["ant", "bee", "cat"])
    info = {"classes": ["a_nt", "b_ee", "c_at"], "domains": {"d": {"images": 5, "per_class": [2, 2, 1]}}}
    told = {"name": "single", "templates": ["{}"], "class_names": "clean", "classes": ["ant", "bee", "cat"]}
    embedded = Embedded(data, {"data": info, "prompts": told | {"texts_sha256": "0"}})
    reduced = hide(embedded, ["a_nt"])
    assert reduced.data.text.shape == (2, 2, 3)
    assert torch.equal(reduced.data.text[0], TEXT[1:])
    assert reduced.data.domains["d"][1].tolist() == [2, 1, 2, 0, 0]
    assert reduced.about["data"]["domains"]["d"]["per_class"] == [2, 1]
    assert reduced.about["prompts"]["classes"] == ["bee", "cat"]
    assert "texts_sha256" not in reduced.about["prompts"]
    assert info["classes"] == ["a_nt", "b_ee", "c_at"]


def test_unknown_classes_are_named_or_counted():
    raw, readable = ["a_nt", "b_ee", "c_at", "d_og"], ["ant", "bee", "cat", "dog"]
    assert hidden_classes("cat,a_nt", raw, readable) == hidden_classes(["ant", "cat", "c_at"], raw, readable) == [0, 2]
    assert hidden_classes(2, raw, readable) == hidden_classes("2", raw, readable)
    assert len(set(hidden_classes(2, raw, readable))) == 2
    with pytest.raises(ValueError, match=r"unknown_classes: 'cow' is not a class of this data set \(a_nt, b_ee"):
        hidden_classes("cow", raw, readable)
    for wrong in (0, 3, "ant,bee,cat"):
        with pytest.raises(ValueError, match=r"of 4 classes; at least 1 is needed, and at least 2 must stay known"):
            hidden_classes(wrong, raw, readable)


def test_unknown_images_are_no_examples_and_no_diagnosed_changes():
    methods = ["zero-shot", "linear-tca", "t3a+tca"]
    record = clip_tca.evaluate("synthetic", methods=methods, unknown_classes="1,4", examples=1, domains=["shifted"])
    before, after = (found["correct"] for found in record["rows"][:2])
    counts = record["examples"]["groups"][0]["counts"]
    assert counts["fixed"] - counts["broken"] == after - before
    share = record["rows"][1]["diagnosis"]["changed"]
    assert round(share * record["rows"][1]["images"]) == sum(counts.values())
    assert record["rows"][1]["images"] == 4 * 240
