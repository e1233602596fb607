"""Rivals on embeddings: the outputs of their authors' code, and what holds for all of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.mixture import GaussianMixture
from torch import Tensor

from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.methods.base import Task
from clip_tca.methods.certain_images import most_certain
from clip_tca.methods.dmn import by_class
from clip_tca.methods.gmm import GMM
from clip_tca.methods.neighbours import Graph, nearest
from clip_tca.methods.registry import base_method

SCALE = 100.0
STORED = load_file(Path(__file__).parent / "references" / "rivals.safetensors")
"""Texts, embeddings, and what the authors' code returns for them: class probabilities, or the scores of ZLaP.

TransCLIP: TransCLIP_solver of MaxZanella/transduction-for-vlms on GitHub; StatA: StatA_solver of MaxZanella/StatA; OGA:
GaussAdapt of cfuchs2023/OGA in single precision, in batches of 40; ZLaP: do_transductive_lp and do_inductive_lp of
vladan-stojnic/ZLaP, with NumPy and SciPy in place of their GPU versions; DMN: DualMem of YBZh/DMN, image by image.
"""
Z = STORED["embeddings"]
TRANSDUCTIVE = ("transclip", "stata", "zlap", "gmm")
RIVALS = (*TRANSDUCTIVE, "oga", "dmn")


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE))


def run(name: str, task: Task, z: Tensor = Z, size: int = len(Z), **options: Any) -> Tensor:
    kind: Any = base_method(name)
    method = kind(task, **options)
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def zero_shot(task: Task) -> Tensor:
    return task.classifier.predict_proba(Z)


@pytest.mark.parametrize(
    ("stored", "size", "options"),
    [
        ("transclip", 120, {}),
        ("stata", 120, {}),
        ("stata_soft", 120, {"soft_counts": True, "anchor_strength": 3.0}),
        ("oga", 40, {"divide_by": "capacity"}),
        ("oga_small", 40, {"divide_by": "capacity", "shots": 3}),
    ],
)
def test_probabilities_are_the_original_ones(task: Task, stored: str, size: int, options: dict[str, Any]) -> None:
    found = run(stored.split("_")[0], task, size=size, **options).softmax(dim=1)
    torch.testing.assert_close(found, STORED[stored], atol=1e-5, rtol=0)
    assert (STORED[stored] - zero_shot(task)).abs().max() > 0.1  # there is something to agree on


@pytest.mark.parametrize(("stored", "size", "shots"), [("dmn", 120, 50), ("dmn", 13, 50), ("dmn_small", 50, 4)])
def test_dmn_adds_the_original_memory_s_prediction_whatever_the_batches(
    task: Task, stored: str, size: int, shots: int
) -> None:
    found = run("dmn", task, size=size, memory_shots=shots).exp()
    torch.testing.assert_close(found, STORED[stored], atol=2e-5, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.full((120,), 2.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("stored", "options"), [("zlap", {}), ("zlap_far", {"graph_k": 8, "text_power": 3.0, "propagation": 0.9})]
)
def test_zlap_s_scores_are_the_original_ones(task: Task, stored: str, options: dict[str, Any]) -> None:
    torch.testing.assert_close(run("zlap", task, **options).exp(), STORED[stored], atol=1e-6, rtol=1e-5)


def test_new_rows_get_zlap_s_original_inductive_scores(task: Task) -> None:
    kind: Any = base_method("zlap")
    method = kind(task)
    method(Z[:60])
    torch.testing.assert_close(method.predict(Z[60:])[1].exp(), STORED["zlap_inductive"], atol=1e-6, rtol=1e-5)


def test_gmm_is_scikit_learn_s_from_the_same_start(task: Task) -> None:
    z = torch.nn.functional.normalize(Z.double(), dim=1)
    predicted = task.classifier.predict(Z)
    means = torch.stack([z[predicted == c].mean(dim=0) for c in range(6)])
    method = GMM(task)
    clusters = method._clusters(z, predicted, means)
    centred = z - torch.stack([z[clusters == c].mean(dim=0) for c in range(6)])[clusters]
    covariance = centred.T @ centred / len(z) + 1e-6 * torch.eye(z.shape[1])
    theirs = GaussianMixture(
        6,
        covariance_type="tied",
        means_init=means.numpy(),
        weights_init=(torch.bincount(clusters, minlength=6).double() / len(z)).numpy(),
        precisions_init=covariance.inverse().numpy(),
        random_state=0,
    ).fit(z.numpy())
    logits = method(Z.double())[1]
    expected = torch.from_numpy(theirs.predict_proba(z.numpy()))
    torch.testing.assert_close(logits.softmax(dim=1), expected, atol=1e-6, rtol=0)
    assert (expected.argmax(dim=1) != predicted).any()


def test_k_means_leaves_no_embedding_nearer_to_another_centre(task: Task) -> None:
    z, start = torch.nn.functional.normalize(Z.double(), dim=1), task.classifier.predict(Z)
    method = GMM(task)
    centres = method._centres(z, start, task.classifier.text.double())
    labels = method._clusters(z, start, centres)
    found = torch.stack([z[labels == c].mean(dim=0) for c in range(6)])
    assert torch.equal(torch.cdist(z, found).argmin(dim=1), labels)


def test_the_mean_of_oga_s_cache_is_not_shortened_where_few_are_cached(task: Task) -> None:
    kind: Any = base_method("oga")
    for divide_by, length in (("cached", 1.0), ("capacity", 2 / 8)):
        method = kind(task, divide_by=divide_by)
        method(Z[:1].repeat(2, 1))
        cached = int(method.labels_[0])
        assert float(method.means_[cached].norm()) == pytest.approx(length, abs=1e-6)
        others = [c for c in range(6) if c != cached]
        torch.testing.assert_close(method.means_[others].float(), task.classifier.text[others])


@pytest.mark.parametrize("name", RIVALS)
def test_it_says_how_it_sees_the_test_set(name: str, task: Task) -> None:
    kind: Any = base_method(name)
    assert kind.nature == ("transductive" if name in TRANSDUCTIVE else "online")
    method, fresh = kind(task), kind(task)
    method(Z[:60])
    later, alone = method(Z[60:])[1], fresh(Z[60:])[1]
    assert torch.equal(later, alone) == (name in TRANSDUCTIVE)
    method.reset()
    assert torch.equal(method(Z[60:])[1], alone)


@pytest.mark.parametrize("name", RIVALS)
def test_predict_uses_the_state_and_leaves_it(name: str, task: Task) -> None:
    kind: Any = base_method(name)
    method, other = kind(task), kind(task)
    start = method.predict(Z)[1]
    method(Z[:80]), other(Z[:80])
    z, logits = method.predict(Z[80:])
    torch.testing.assert_close(z, torch.nn.functional.normalize(Z[80:], dim=1))
    single = torch.cat([method.predict(row[None])[1] for row in Z[80:]])
    torch.testing.assert_close(single, logits, atol=1e-4, rtol=1e-4)
    assert (logits.softmax(dim=1) - start[80:].softmax(dim=1)).abs().max() > 0.01
    assert torch.equal(method(Z[80:])[1], other(Z[80:])[1])


@pytest.mark.parametrize("name", RIVALS)
def test_any_number_of_rows_is_solved(name: str, task: Task) -> None:
    for n in (1, 2, 3, 9):
        logits = run(name, task, Z[:n])
        assert logits.shape == (n, 6)
        assert logits.isfinite().all()
    same = run(name, task, Z[:1].repeat(70, 1))  # no spread at all
    assert same.isfinite().all()


@pytest.mark.parametrize("name", RIVALS)
def test_dtypes_and_inference_mode(name: str, task: Task) -> None:
    expected = run(name, task)
    for dtype in (torch.float16, torch.float64):
        logits = run(name, task, (2 * Z).to(dtype))
        assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        agree = (logits.argmax(dim=1) == expected.argmax(dim=1)).double().mean()
        assert agree > 0.95
    with torch.inference_mode():
        kind: Any = base_method(name)
        method = kind(Task(ZeroShotClassifier(STORED["text"].clone(), SCALE)))
        logits = method(Z.clone())[1]
    assert not logits.is_inference()
    assert not logits.requires_grad
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    method(Z)


@pytest.mark.parametrize("name", RIVALS)
def test_a_large_set_is_compared_in_blocks(name: str, task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    z = Z.repeat(10, 1) + 0.02 * torch.randn(1200, Z.shape[1], generator=generator)
    logits = run(name, task, z, size=1200)
    assert logits.isfinite().all()
    repeated = logits.argmax(dim=1).reshape(10, 120)
    assert (repeated == repeated.mode(dim=0).values).double().mean() > 0.8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("transclip", {"neighbours": -1}, "neighbours: -1; allowed are whole numbers of at least 0"),
        ("transclip", {"start_shots": 0}, "start_shots: 0"),
        ("transclip", {"text_weight": "much"}, "text_weight: 'much'; allowed are numbers"),
        ("stata", {"soft_counts": "yes"}, "soft_counts: 'yes'; allowed are true and false"),
        ("stata", {"anchor_strength": -1.0}, "anchor_strength: -1.0"),
        ("stata", {"rounds": 0}, "rounds: 0"),
        ("zlap", {"propagation": 1.0}, "propagation: 1.0; allowed are numbers from 0 to 0.99"),
        ("zlap", {"graph_k": 0}, "graph_k: 0"),
        ("oga", {"divide_by": "8"}, "divide_by: '8'; allowed are cached, capacity"),
        ("oga", {"shots": 0}, "shots: 0"),
        ("dmn", {"memory_weight": -1}, "memory_weight: -1"),
        ("dmn", {"memory_shots": 0.5}, "memory_shots: 0.5"),
        ("gmm", {"ridge": 0}, "ridge: 0; allowed are numbers above 0"),
        ("gmm", {"em_rounds": 0}, "em_rounds: 0"),
    ],
)
def test_bad_options_are_named(task: Task, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        run(name, task, **options)


def test_options_that_turn_everything_off_give_zero_shot(task: Task) -> None:
    expected = zero_shot(task)
    off: dict[str, dict[str, Any]] = {
        "transclip": {"neighbours": 0, "likelihood_weight": 0.0},
        "stata": {"neighbours": 0, "likelihood_weight": 0.0},
        "oga": {"likelihood_power": 0.0},
        "dmn": {"memory_weight": 0.0},
    }
    for name, options in off.items():
        torch.testing.assert_close(run(name, task, **options).softmax(dim=1), expected, atol=1e-4, rtol=0)


def test_without_an_anchor_s_weight_a_class_without_images_stays_finite(task: Task) -> None:
    logits = run("stata", task, Z[:9], anchor_strength=0.0)
    assert logits.isfinite().all()


def test_raw_features_of_a_head_are_compared_by_direction() -> None:
    head = LinearClassifier(7 * STORED["text"] / STORED["text"].norm(dim=1, keepdim=True), torch.full((6,), 0.3))
    for name in RIVALS:
        kind: Any = base_method(name)
        z, logits = kind(Task(head))(3 * Z)
        torch.testing.assert_close(z, 3 * Z)
        assert logits.isfinite().all()


def test_the_graph_counts_edges_both_ways() -> None:
    graph = Graph(torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.5]]), torch.tensor([[1, 2], [0, 2], [0, 1]]))
    w = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 1.0]])
    torch.testing.assert_close(graph @ x, (w + w.T) @ x)


def test_nearest_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.sqrt(0.5), math.sqrt(0.5)]])
    cosine, index = nearest(z, z, 2)
    assert index[:, 0].tolist() == [0, 1, 2]
    cosine, index = nearest(z, z, 1, itself=False)
    assert index.tolist()[:2] == [[2], [2]]
    assert cosine[0, 0].item() == pytest.approx(math.sqrt(0.5))
    assert nearest(z, z, 9, itself=False)[1].shape == (3, 2)


def test_members_are_listed_by_class() -> None:
    assert by_class(torch.tensor([2, 0, 2, 2]), 4).tolist() == [[1, -1, -1], [-1, -1, -1], [0, 2, 3], [-1, -1, -1]]
    assert most_certain(torch.tensor([0, 0, 0, 1]), torch.tensor([0.2, 0.1, 0.1, 0.9]), 2).tolist() == [1, 2, 3]
