"""Methods on embeddings: the outputs of their authors' code, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.nn.functional import normalize

from clip_tca.adapters.linear import certain_rows
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods import caches
from clip_tca.methods.base import Task
from clip_tca.methods.caches import ClassCache
from clip_tca.methods.gaussians import GMM, OGA
from clip_tca.methods.graphs import ECALP, ZLaP
from clip_tca.methods.registry import EMBEDDING_BASES, base_method
from clip_tca.methods.weights import T3A
from tests.methods.small import REFERENCES

SCALE = 100.0
OWN_SCALE = 30.0
STORED = {
    name: load_file(REFERENCES / f"{name}.safetensors") for name in ("rivals", "newer_rivals", "t3a", "adanpc", "tda")
}
"""Texts, embeddings, and what the authors' code returns for them.

rivals: class probabilities, or the scores of ZLaP. TransCLIP: TransCLIP_solver of MaxZanella/transduction-for-vlms on
GitHub; StatA: StatA_solver of MaxZanella/StatA; OGA: GaussAdapt of cfuchs2023/OGA in single precision, in batches of
40; ZLaP: do_transductive_lp and do_inductive_lp of vladan-stojnic/ZLaP, with NumPy and SciPy in place of their GPU
versions; DMN: DualMem of YBZh/DMN, image by image.

newer_rivals: logits for the same texts and embeddings, image by image. DOTA: the class of skylineeeeen/DOTA in single
precision; DPE: run_test_dpe of zhangce01/DPE-CLIP in single precision; ECALP: the scores F of
iterative_label_propagation of Yushu-Li/ECALP for all images at once, texts and embeddings moved by 0.5 in every
dimension, so that cosines are positive as CLIP's are.

T3A: the class of github.com/matsuolab/T3A, in batches of 32; AdaNPC: the votes of the class of yfzhang114/AdaNPC, in
batches of 32, with the texts in its memory in place of source data (``zero-shot``: with the batch added under the
classes of the text classifier before it was predicted); TDA: run_test_tda of kdiAAA/TDA.
"""
Z = STORED["rivals"]["embeddings"]
TRANSDUCTIVE = ("transclip", "stata", "zlap", "gmm")
STRONG: dict[str, dict[str, Any]] = {"plc": {"lr": 0.01, "threshold": 0.5}}
"""Larger steps than the published ones, so that something happens."""


@pytest.fixture
def task() -> Task:
    return Task(ZeroShotClassifier(STORED["rivals"]["text"], SCALE))


def own_task(name: str) -> Task:
    return Task(ZeroShotClassifier(STORED[name]["text"], OWN_SCALE))


def make(name: str, task: Task, **options: Any) -> Any:
    kind: Any = base_method(name)
    return kind(task, **{**STRONG.get(name, {}), **options})


def run(name: str, task: Task, z: Tensor = Z, size: int = len(Z), **options: Any) -> Tensor:
    method = make(name, task, **options)
    return torch.cat([method(batch)[1] for batch in z.split(size)])


# -- the authors' outputs ----------------------------------------------------------------------------------------------


def same(x: Tensor) -> Tensor:
    return x


def probabilities(logits: Tensor) -> Tensor:
    return logits.softmax(dim=1)


COMPARED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], float, float]] = {
    "transclip": (probabilities, same, 1e-5, 0),
    "stata": (probabilities, same, 1e-5, 0),
    "oga": (probabilities, same, 1e-5, 0),
    "dmn": (torch.exp, same, 2e-5, 0),
    "zlap": (torch.exp, same, 1e-6, 1e-5),
    "dota": (probabilities, probabilities, 3e-4, 0),
    "dpe": (probabilities, probabilities, 3e-4, 0),
    "ecalp": (torch.exp, same, 1e-6, 1e-4),
    "t3a": (same, lambda weights: OWN_SCALE * weights, 1e-4, 0),
    "adanpc": (same, torch.log, 1e-4, 0),
    "tda": (same, same, 1e-4, 0),
}
"""What is compared: of our logits, of what is stored, with which tolerances."""

BOLD_DOTA = {"shrinkage": 0.002, "variance_start": 0.004, "largest_weight": 0.8, "weight_growth": 0.03}
BOLD_DPE = {"image_weight": 3.0, "image_sharpness": 8.0, "learning_rate": 5e-3, "alignment": 0.2}


@pytest.mark.parametrize(
    ("name", "stored", "sizes", "options"),
    [
        ("transclip", "transclip", (120,), {}),
        ("stata", "stata", (120,), {}),
        ("stata", "stata_soft", (120,), {"soft_counts": True, "anchor_strength": 3.0}),
        ("oga", "oga", (40,), {"divide_by": "capacity"}),
        ("oga", "oga_small", (40,), {"divide_by": "capacity", "shots": 3}),
        ("dmn", "dmn", (120, 13), {}),
        ("dmn", "dmn_small", (50,), {"memory_shots": 4}),
        ("zlap", "zlap", (120,), {}),
        ("zlap", "zlap_far", (120,), {"graph_k": 8, "text_power": 3.0, "propagation": 0.9}),
        ("dota", "dota", (120, 50), {"rows_at_once": 1}),
        ("dota", "dota_strong", (120, 50), {"rows_at_once": 1, **BOLD_DOTA}),
        ("dpe", "dpe", (120, 50), {}),
        ("dpe", "dpe_fast", (120, 50), BOLD_DPE),
        ("ecalp", "ecalp", (120,), {}),
        ("ecalp", "ecalp_short", (120,), {"text_neighbours": 2, "image_neighbours": 4, "rounds": 5}),
        ("t3a", "k1", (32,), {"filter_k": 1}),
        ("t3a", "k3", (32,), {"filter_k": 3}),
        ("t3a", "k100", (32,), {"filter_k": 100}),
        ("t3a", "k3.batch1", (1,), {"filter_k": 3}),
        ("adanpc", "votes", (32,), {"labels": "votes", "k": 6, "threshold": 0.2}),
        ("adanpc", "votes.sharp", (32,), {"labels": "votes", "k": 4, "temperature": 0.01, "threshold": 0.3}),
        ("adanpc", "zero-shot", (32,), {"k": 20, "threshold": 0.5}),
        ("adanpc", "zero-shot.broad", (32,), {"k": 30, "temperature": 0.2}),
        ("tda", "default", (40, 7, 96), {}),
        ("tda", "positive", (40,), {"negative_shots": 0}),
        ("tda", "negative", (40,), {"positive_shots": 0, "negative_alpha": 1.7}),
        ("tda", "sketch", (40,), {"positive_alpha": 2.363, "positive_beta": 7.45, "negative_shots": 1}),
    ],
)
def test_outputs_are_the_original_ones(
    name: str, stored: str, sizes: tuple[int, ...], options: dict[str, Any], task: Task
) -> None:
    z = Z
    if name in STORED:
        task, z = own_task(name), STORED[name]["embeddings"]
    if name == "ecalp":
        task, z = Task(ZeroShotClassifier(task.classifier.text + 0.5, SCALE)), normalize(Z, dim=1) + 0.5
    file = name if name in STORED else next(file for file in ("rivals", "newer_rivals") if stored in STORED[file])
    ours, theirs, atol, rtol = COMPARED[name]
    for size in sizes:
        logits = run(name, task, z, size, **options)
        torch.testing.assert_close(ours(logits), theirs(STORED[file][stored]), atol=atol, rtol=rtol)
        gap = (probabilities(logits) - task.classifier.predict_proba(z)).abs().max()
        assert gap > 0.02 or stored == "k1", "there is something to agree on"


def test_images_that_ecalp_has_seen_start_at_a_fifth_of_their_score(task: Task) -> None:
    method = ECALP(task)
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
    for z in normalize(Z.double(), dim=1):
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
    assert (found - task.classifier.predict_proba(Z)).abs().max() > 0.1


def test_new_rows_get_zlap_s_original_inductive_scores(task: Task) -> None:
    method, theirs = ZLaP(task), STORED["rivals"]["zlap_inductive"]
    method(Z[:60])
    torch.testing.assert_close(method.predict(Z[60:])[1].exp(), theirs, atol=1e-6, rtol=1e-5)


def test_gmm_is_scikit_learn_s_from_the_same_start(task: Task) -> None:
    z = normalize(Z.double(), dim=1)
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
    for divide_by, length in (("cached", 1.0), ("capacity", 2 / 8)):
        method = OGA(task, divide_by=divide_by)
        method(Z[:1].repeat(2, 1))
        cached = int(method.cache_.labels[0])
        assert float(method.means_[cached].norm()) == pytest.approx(length, abs=1e-6)
        others = [c for c in range(6) if c != cached]
        torch.testing.assert_close(method.means_[others].float(), task.classifier.text[others])


# -- what holds for all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EMBEDDING_BASES)
class TestContract:
    def test_it_says_how_it_sees_the_test_set(self, name: str, task: Task) -> None:
        method, fresh = make(name, task), make(name, task)
        assert method.nature == ("transductive" if name in TRANSDUCTIVE else "online")
        method(Z[:60])
        later, alone = method(Z[60:])[1], fresh(Z[60:])[1]
        assert torch.equal(later, alone) == (name in TRANSDUCTIVE)
        method.reset()
        assert torch.equal(method(Z[60:])[1], alone)

    def test_predict_uses_the_state_and_leaves_it(self, name: str, task: Task) -> None:
        method, other = make(name, task), make(name, task)
        start = method.predict(Z)[1]
        method(Z[:80]), other(Z[:80])
        z, logits = method.predict(Z[80:])
        torch.testing.assert_close(z, normalize(Z[80:], dim=1))
        single = torch.cat([method.predict(row[None])[1] for row in Z[80:]])
        torch.testing.assert_close(single, logits, atol=1e-4, rtol=1e-4)
        assert (probabilities(logits) - probabilities(start[80:])).abs().max() > 0.01
        assert torch.equal(method(Z[80:])[1], other(Z[80:])[1])

    def test_any_number_of_rows_is_solved(self, name: str, task: Task) -> None:
        for n in (1, 2, 3, 9):
            logits = run(name, task, Z[:n])
            assert logits.shape == (n, 6)
            assert logits.isfinite().all()
        assert run(name, task, Z[:1].repeat(70, 1)).isfinite().all()  # no spread at all

    def test_dtypes_and_inference_mode(self, name: str, task: Task) -> None:
        expected = run(name, task)
        for dtype in (torch.float16, torch.float64):
            logits = run(name, task, (2 * Z).to(dtype))
            assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert (logits.argmax(dim=1) == expected.argmax(dim=1)).double().mean() > 0.95
        with torch.inference_mode():
            method = make(name, Task(ZeroShotClassifier(STORED["rivals"]["text"].clone(), SCALE)))
            logits = method(Z.clone())[1]
        assert not logits.is_inference()
        assert not logits.requires_grad
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        method(Z)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transclip", {"neighbours": 0, "likelihood_weight": 0.0}),
        ("stata", {"neighbours": 0, "likelihood_weight": 0.0}),
        ("oga", {"likelihood_power": 0.0}),
        ("dmn", {"memory_weight": 0.0}),
        ("tda", {"positive_shots": 0, "negative_shots": 0}),
        ("dota", {"largest_weight": 0.0}),
        ("bca", {"embedding_threshold": 1.0, "prior_threshold": 1.0}),
        ("dpe", {"image_weight": 0.0, "learning_rate": 0.0}),
    ],
)
def test_options_that_turn_everything_off_give_zero_shot(name: str, options: dict[str, Any], task: Task) -> None:
    expected = task.classifier.predict_proba(Z)
    torch.testing.assert_close(probabilities(run(name, task, **options)), expected, atol=1e-4, rtol=0)


def test_without_an_anchor_s_weight_a_class_without_images_stays_finite(task: Task) -> None:
    assert run("stata", task, Z[:9], anchor_strength=0.0).isfinite().all()


# -- memories ----------------------------------------------------------------------------------------------------------


def test_the_cache_is_that_of_offering_one_row_after_another() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.arange(60.0)[:, None], torch.randint(4, (60,), generator=generator)
    entropy = torch.randint(8, (60,), generator=generator) / 8  # with ties: the first come stay
    entropy[::7] = torch.inf  # these stay out
    kept: list[int] = []
    expected = torch.zeros(60, 60, dtype=torch.bool)
    for turn in range(60):
        kept += [turn] if entropy[turn] < torch.inf else []
        of_class = sorted((row for row in kept if labels[row] == labels[turn]), key=lambda row: (entropy[row], row))
        kept = [row for row in kept if row not in of_class[3:]]
        expected[turn, kept] = True
    whole, single, parts = (ClassCache(3, rows) for _ in range(3))
    assert torch.equal(whole.visit(rows, labels, entropy)[2], expected)
    for first in range(0, 60, 13):
        block = slice(first, first + 13)
        offered = parts.visit(rows[block], labels[block], entropy[block])
        for turn, present in enumerate(offered[2], start=first):
            assert offered[0][present, 0].tolist() == expected[turn].nonzero()[:, 0].tolist()
            assert torch.equal(offered[1][present], labels[expected[turn]])
    finite = entropy < torch.inf
    changed = [single.add(*offer) for offer in zip(*(x[finite].split(1) for x in (rows, labels, entropy)), strict=True)]
    assert changed == expected.diagonal()[finite].tolist()
    for cache in (whole, single, parts):
        assert cache.rows[:, 0].tolist() == kept
        assert torch.equal(cache.labels, labels[kept])
        assert torch.equal(cache.entropy, entropy[kept])
    chosen = certain_rows(entropy[finite], labels[finite], torch.full((4,), 3))  # LinearTCA's choice is the same
    assert finite.nonzero()[chosen, 0].tolist() == kept
    sums = torch.stack([rows[[row for row in kept if labels[row] == c]].sum(dim=0) for c in range(5)])
    assert torch.equal(whole.class_sums(5), sums)


@pytest.mark.parametrize(("name", "options"), [("t3a", {"filter_k": 4}), ("adanpc", {})])
def test_what_is_kept_does_not_depend_on_the_batches(name: str, options: dict[str, Any]) -> None:
    together, single = make(name, own_task(name), **options), make(name, own_task(name), **options)
    z = STORED[name]["embeddings"]
    last = together(z)[1][-1]
    for row in z:
        logits = single(row[None])[1]
    torch.testing.assert_close(logits[0], last)
    memories = [method.supports_.rows if name == "t3a" else method.memory_ for method in (together, single)]
    assert torch.equal(*memories)


def test_without_a_limit_t3a_keeps_all(task: Task) -> None:
    method = T3A(task, filter_k=None)
    method(Z)
    assert len(method.supports_.rows) == 6 + len(Z)


def test_only_confident_images_join_adanpc_s_memory() -> None:
    task, z = own_task("adanpc"), STORED["adanpc"]["embeddings"]
    method = make("adanpc", task, threshold=0.9)
    method(z)
    torch.testing.assert_close(method.memory_[6:], z[task.classifier.predict_proba(z).amax(dim=1) >= 0.9])
    assert 6 < len(method.memory_) < 6 + len(z)
    for options in ({"threshold": 1.1}, {"k": 1, "threshold": 0}):  # texts alone; the image itself is the nearest
        assert torch.equal(run("adanpc", task, z, **options).argmax(dim=1), task.classifier.predict(z))


@pytest.mark.parametrize("name", ["tda", "adanpc"])
def test_blocks_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, z = own_task(name), STORED[name]["embeddings"]
    whole = run(name, task, z)
    monkeypatch.setattr(caches, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(run(name, task, z), whole, atol=1e-4, rtol=0)


def test_an_image_sees_itself_in_tda_s_cache() -> None:
    task, z = own_task("tda"), STORED["tda"]["embeddings"][:1]
    gap = run("tda", task, z, negative_shots=0) - task.classifier.logits(z)
    assert gap.max().item() == pytest.approx(2.0, abs=1e-4)  # alpha · exp(0) for its own class
    assert gap.min().item() == pytest.approx(0.0, abs=1e-4)
