"""Methods on embeddings: the outputs of their authors' code, and what holds for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.mixture import GaussianMixture
from torch import Tensor

from clip_tca.adapters.linear import certain_rows
from clip_tca.classifier import LinearClassifier, ZeroShotClassifier
from clip_tca.methods import adanpc
from clip_tca.methods.base import Task
from clip_tca.methods.certain_images import Cache
from clip_tca.methods.gmm import GMM
from clip_tca.methods.registry import base_method
from clip_tca.methods.tda import ROWS_AT_ONCE

SCALE = 100.0
REFERENCES = Path(__file__).parent / "references"
STORED = load_file(REFERENCES / "rivals.safetensors")
"""Texts, embeddings, and what the authors' code returns for them: class probabilities, or the scores of ZLaP.

TransCLIP: TransCLIP_solver of MaxZanella/transduction-for-vlms on GitHub; StatA: StatA_solver of MaxZanella/StatA; OGA:
GaussAdapt of cfuchs2023/OGA in single precision, in batches of 40; ZLaP: do_transductive_lp and do_inductive_lp of
vladan-stojnic/ZLaP, with NumPy and SciPy in place of their GPU versions; DMN: DualMem of YBZh/DMN, image by image.
"""
NEWER = load_file(REFERENCES / "newer_rivals.safetensors")
"""What the authors' code returns for the same texts and embeddings, image by image: logits.

DOTA: the class of skylineeeeen/DOTA in single precision; DPE: run_test_dpe of zhangce01/DPE-CLIP in single precision;
ECALP: the scores F of iterative_label_propagation of Yushu-Li/ECALP for all images at once, texts and embeddings moved
by 0.5 in every dimension, so that cosines are positive as CLIP's are.
"""
Z = STORED["embeddings"]
TRANSDUCTIVE = ("transclip", "stata", "zlap", "gmm")
RIVALS = (*TRANSDUCTIVE, "oga", "dmn", "t3a", "adanpc", "tda", "dota", "bca", "ecalp", "dpe")
OWN = {name: load_file(REFERENCES / f"{name}.safetensors") for name in ("t3a", "adanpc", "tda")}
"""Texts, embeddings, and what the authors' code returns for them.

T3A: the class of github.com/matsuolab/T3A, in batches of 32; AdaNPC: the votes of the class of yfzhang114/AdaNPC, in
batches of 32, with the texts in its memory in place of source data (``zero-shot``: with the batch added under the
classes of the text classifier before it was predicted); TDA: run_test_tda of kdiAAA/TDA.
"""
OWN_SCALE = 30.0


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["text"], SCALE))


def run(name: str, task: Task, z: Tensor = Z, size: int = len(Z), **options: Any) -> Tensor:
    kind: Any = base_method(name)
    method = kind(task, **options)
    return torch.cat([method(batch)[1] for batch in z.split(size)])


def zero_shot(task: Task) -> Tensor:
    return task.classifier.predict_proba(Z)


def own_task(name: str) -> Task:
    return Task(ZeroShotClassifier(OWN[name]["text"], OWN_SCALE))


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


@pytest.mark.parametrize(
    ("stored", "options"),
    [
        ("dota", {"rows_at_once": 1}),
        (
            "dota_strong",
            {
                "rows_at_once": 1,
                "shrinkage": 0.002,
                "variance_start": 0.004,
                "largest_weight": 0.8,
                "weight_growth": 0.03,
            },
        ),
        ("dpe", {}),
        ("dpe_fast", {"image_weight": 3.0, "image_sharpness": 8.0, "learning_rate": 5e-3, "alignment": 0.2}),
    ],
)
def test_newer_methods_predict_as_their_authors_do(task: Task, stored: str, options: dict[str, Any]) -> None:
    name = stored.split("_")[0]
    for size in (len(Z), 50):
        found = run(name, task, size=size, **options).softmax(dim=1)
        torch.testing.assert_close(found, NEWER[stored].softmax(dim=1), atol=3e-4, rtol=0)
    assert (NEWER[stored].softmax(dim=1) - zero_shot(task)).abs().max() > 0.02


@pytest.mark.parametrize(
    ("stored", "options"), [("ecalp", {}), ("ecalp_short", {"text_neighbours": 2, "image_neighbours": 4, "rounds": 5})]
)
def test_ecalp_s_scores_are_the_original_ones(task: Task, stored: str, options: dict[str, Any]) -> None:
    moved = Task(ZeroShotClassifier(task.classifier.text + 0.5, SCALE))
    z = torch.nn.functional.normalize(Z, dim=1) + 0.5
    found = run("ecalp", moved, z, **options).exp()
    torch.testing.assert_close(found, NEWER[stored], atol=1e-6, rtol=1e-4)
    assert (found.argmax(dim=1) != moved.classifier.predict(z)).any()


def test_images_that_ecalp_has_seen_start_at_a_fifth_of_their_score(task: Task) -> None:
    kind: Any = base_method("ecalp")
    method = kind(task)
    scores = method(Z[:60])[1].exp()
    assert torch.equal(method.starts_.argmax(dim=1), scores.argmax(dim=1))
    torch.testing.assert_close(method.starts_.sum(dim=1), scores.amax(dim=1) / 5)
    assert (run("ecalp", task, size=60)[60:] - run("ecalp", task)[60:]).abs().max() > 0.01
    method.starts_.zero_()  # then it does not matter when they joined
    torch.testing.assert_close(method(Z[60:])[1], run("ecalp", task)[60:], atol=1e-4, rtol=1e-4)


def test_bca_follows_its_equations(task: Task) -> None:
    options = {"embedding_threshold": 0.3, "embedding_count": 4.0, "prior_threshold": 0.65, "prior_count": 1.0}
    means, prior = [row.clone() for row in task.classifier.text.double()], torch.eye(6).double()
    moved, noted, expected = [4.0] * 6, [1.0] * 6, []
    for z in torch.nn.functional.normalize(Z.double(), dim=1):
        p = torch.stack([SCALE * z @ mean for mean in means]).softmax(dim=0) @ prior
        expected.append(p)
        s = int(p.argmax())
        if p[s] > 0.3:
            mean = moved[s] * means[s] + z
            means[s], moved[s] = mean / mean.norm(), moved[s] + 1
        if p[s] > 0.65:
            prior[s], noted[s] = (noted[s] * prior[s] + p) / (noted[s] + 1), noted[s] + 1
    found = run("bca", task, size=50, **options).softmax(dim=1)
    torch.testing.assert_close(found, torch.stack(expected).float(), atol=1e-5, rtol=0)
    assert (found - zero_shot(task)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "stored", "size", "options"),
    [
        ("t3a", "k1", 32, {"filter_k": 1}),
        ("t3a", "k3", 32, {"filter_k": 3}),
        ("t3a", "k100", 32, {"filter_k": 100}),
        ("t3a", "k3.batch1", 1, {"filter_k": 3}),
        ("adanpc", "votes", 32, {"labels": "votes", "k": 6, "threshold": 0.2}),
        ("adanpc", "votes.sharp", 32, {"labels": "votes", "k": 4, "temperature": 0.01, "threshold": 0.3}),
        ("adanpc", "zero-shot", 32, {"k": 20, "threshold": 0.5}),
        ("adanpc", "zero-shot.broad", 32, {"k": 30, "temperature": 0.2}),
        ("tda", "default", 40, {}),
        ("tda", "default", 7, {}),
        ("tda", "default", 96, {}),
        ("tda", "positive", 40, {"negative_shots": 0}),
        ("tda", "negative", 40, {"positive_shots": 0, "negative_alpha": 1.7}),
        ("tda", "sketch", 40, {"positive_alpha": 2.363, "positive_beta": 7.45, "negative_shots": 1}),
    ],
)
def test_logits_are_the_original_ones(name: str, stored: str, size: int, options: dict[str, Any]) -> None:
    found = run(name, own_task(name), OWN[name]["embeddings"], size, **options)
    theirs = OWN[name][stored]
    expected = {"t3a": OWN_SCALE * theirs, "adanpc": theirs.log(), "tda": theirs}[name]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("transclip", {"neighbours": -1}, "neighbours: -1; allowed are whole numbers of at least 0"),
        ("transclip", {"text_weight": "much"}, "text_weight: 'much'; allowed are numbers"),
        ("stata", {"soft_counts": "yes"}, "soft_counts: 'yes'; allowed are true and false"),
        ("zlap", {"propagation": 1.0}, "propagation: 1.0; allowed are numbers from 0 to 0.99"),
        ("oga", {"divide_by": "8"}, "divide_by: '8'; allowed are cached, capacity"),
        ("dmn", {"memory_weight": -1}, "memory_weight: -1"),
        ("dmn", {"memory_shots": 0.5}, "memory_shots: 0.5"),
        ("gmm", {"ridge": 0}, "ridge: 0; allowed are numbers above 0"),
        ("gmm", {"em_rounds": 0}, "em_rounds: 0"),
        ("dota", {"rows_at_once": 0}, "rows_at_once: 0"),
        ("dota", {"shrinkage": 0}, "shrinkage: 0; allowed are numbers above 0, up to 1"),
        ("bca", {"prior_threshold": 65}, "prior_threshold: 65"),
        ("ecalp", {"rounds": 0}, "rounds: 0"),
        ("dpe", {"learning_rate": -1}, "learning_rate: -1"),
        ("t3a", {"filter_k": 2.5}, "filter_k: 2.5; allowed are None or whole numbers of at least 1"),
        ("adanpc", {"temperature": 0}, "temperature: 0; allowed are numbers above 0"),
        ("adanpc", {"labels": "truth"}, "labels: 'truth'; allowed are zero-shot, votes"),
        ("tda", {"positive_shots": -1}, "positive_shots: -1; allowed are whole numbers"),
        ("tda", {"negative_alpha": float("nan")}, "negative_alpha: nan"),
        ("tda", {"entropy_low": 0.6}, "entropy_low, entropy_high: 0.6, 0.5; the first must be below"),
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
        "tda": {"positive_shots": 0, "negative_shots": 0},
        "dota": {"largest_weight": 0.0},
        "bca": {"embedding_threshold": 1.0, "prior_threshold": 1.0},
        "dpe": {"image_weight": 0.0, "learning_rate": 0.0},
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


# -- supports, memory and caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "state"),
    [("t3a", {"filter_k": 4}, ("supports_", "labels_")), ("adanpc", {}, ("memory_", "memory_labels_"))],
)
def test_what_is_kept_does_not_depend_on_the_batches(
    name: str, options: dict[str, Any], state: tuple[str, ...]
) -> None:
    kind: Any = base_method(name)
    together, single, z = kind(own_task(name), **options), kind(own_task(name), **options), OWN[name]["embeddings"]
    last = together(z)[1][-1]
    for row in z:
        logits = single(row[None])[1]
    torch.testing.assert_close(logits[0], last)
    assert all(torch.equal(getattr(together, part), getattr(single, part)) for part in state)


def test_t3a_s_sets_hold_the_most_certain_of_each_class() -> None:
    kind: Any = base_method("t3a")
    some, everything, z = (
        kind(own_task("t3a"), filter_k=4),
        kind(own_task("t3a"), filter_k=None),
        OWN["t3a"]["embeddings"],
    )
    some(z), everything(z)
    assert len(everything.supports_) == 6 + len(z)
    for c in range(6):
        kept = some.entropy_[some.labels_ == c].sort().values
        assert torch.equal(kept, everything.entropy_[everything.labels_ == c].sort().values[:4])


def test_of_equal_rows_the_first_come_stay() -> None:
    labels, entropy = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0.5, 0.1, 0.5, 0.5, 0.0])
    assert certain_rows(entropy, labels, torch.tensor([2, 2])).tolist() == [0, 1, 2, 4]
    assert certain_rows(entropy, labels, torch.tensor([1, 1])).tolist() == [0, 4]


def test_only_confident_images_join_adanpc_s_memory() -> None:
    kind: Any = base_method("adanpc")
    task, z = own_task("adanpc"), OWN["adanpc"]["embeddings"]
    method = kind(task, threshold=0.9)
    method(z)
    torch.testing.assert_close(method.memory_[6:], z[task.classifier.predict_proba(z).amax(dim=1) >= 0.9])
    assert 6 < len(method.memory_) < 6 + len(z)
    for options in ({"threshold": 1.1}, {"k": 1, "threshold": 0}):  # texts alone; the image itself is the nearest
        assert torch.equal(run("adanpc", task, z, **options).argmax(dim=1), task.classifier.predict(z))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    z = OWN["tda"]["embeddings"].repeat(4, 1)[: ROWS_AT_ONCE + 50]
    whole = run("tda", own_task("tda"), z, size=len(z))
    torch.testing.assert_close(run("tda", own_task("tda"), z, size=64), whole, atol=1e-4, rtol=0)
    z = OWN["adanpc"]["embeddings"]
    expected = run("adanpc", own_task("adanpc"), z)
    monkeypatch.setattr(adanpc, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(run("adanpc", own_task("adanpc"), z), expected)


def test_tda_s_cache_keeps_the_most_certain_and_of_equals_the_first() -> None:
    cache, z = Cache(2), torch.eye(4)
    votes = cache.visit(z, torch.eye(4), [0, 0, 0, 1], [0.5, 0.3, 0.4, None], beta=0.0)
    assert cache.keys is not None
    assert sorted(cache.keys.argmax(dim=1).tolist()) == [1, 2]  # the third took the place of the first
    assert votes.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]]
    cache.visit(z[3:], torch.eye(4)[3:], [0], [0.4], beta=0.0)  # as certain as the least certain there
    assert sorted(cache.keys.argmax(dim=1).tolist()) == [1, 2]
    cache = Cache(2)
    cache.visit(z, torch.eye(4), [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.3], beta=0.0)
    assert cache.keys.argmax(dim=1).tolist() == [3, 0]


def test_an_image_sees_itself_in_tda_s_cache() -> None:
    task, z = own_task("tda"), OWN["tda"]["embeddings"][:1]
    gap = run("tda", task, z, negative_shots=0) - task.classifier.logits(z)
    assert gap.max().item() == pytest.approx(2.0, abs=1e-4)  # alpha · exp(0) for its own class
    assert gap.min().item() == pytest.approx(0.0, abs=1e-4)
