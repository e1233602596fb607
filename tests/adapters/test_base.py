"""The contract that LinearTCA, MLPTCA and ConditionalTCA share, scikit-learn's among it."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from unittest import SkipTest

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.utils.estimator_checks import estimator_checks_generator

import clip_tca
from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier, label_free_score
from clip_tca.adapters.base import share_vector
from clip_tca.methods.registry import ADAPTERS

KINDS = [LinearTCA, MLPTCA, ConditionalTCA]
every = pytest.mark.parametrize("kind", KINDS)
NAMES = ["cat", "dog", "horse", "house"]


@pytest.fixture
def g(shifted) -> ZeroShotClassifier:
    return shifted.g.named(NAMES)


@pytest.fixture
def z(shifted) -> np.ndarray:
    return shifted.z.numpy()


# -- fitting and using -------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_come_back_as_they_came(kind, dtype, shifted):
    z = shifted.z.to(dtype)
    adapter = kind(shifted.g).fit(z)
    moved, logits = adapter.adapt(z)
    assert moved.dtype == adapter.transform(z).dtype == dtype
    assert logits.dtype == adapter.logits(z).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(moved, adapter.transform(z))
    assert torch.equal(logits, adapter.logits(z))
    assert adapter.predict(z).dtype == torch.int64
    exact, tolerance = kind(shifted.g).fit(shifted.z).predict_proba(shifted.z), 0.15 if dtype.itemsize < 4 else 0.01
    torch.testing.assert_close(adapter.predict_proba(z).float(), exact, rtol=0, atol=tolerance)


@every
def test_numpy_in_numpy_out(kind, shifted):
    array, tensor = shifted.z.numpy(), kind(shifted.g).fit(shifted.z)
    adapter = kind(shifted.g).fit(array)
    for name in ("transform", "logits", "predict_proba", "predict"):
        found = getattr(adapter, name)(array)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, getattr(tensor, name)(shifted.z).numpy())
    frozen = array.astype(">f4")
    frozen.setflags(write=False)
    np.testing.assert_array_equal(kind(shifted.g).fit(frozen).predict(frozen), adapter.predict(array))


@pytest.mark.parametrize("name", [name for name, registered in ADAPTERS.items() if not registered.oracle])
def test_true_labels_reach_no_method_and_y_is_never_looked_at(name, shifted):
    def adapted(*y, **labels):
        return ADAPTERS[name].build(shifted.g).fit(shifted.z, *y, **labels).transform(shifted.z)

    plain = adapted()
    for truth in (shifted.y, shifted.y.flip(0)):
        assert torch.equal(adapted(labels=truth), plain)
    for y in (shifted.y, ["anything"], object()):
        assert torch.equal(adapted(y), plain)


@pytest.mark.parametrize("name", [name for name, registered in ADAPTERS.items() if not registered.oracle])
def test_strange_but_legal_data_stay_finite(name, shifted):
    z = shifted.z
    cases = {
        "identical rows": z[:1].repeat(40, 1),
        "two rows": z[:2],
        "duplicates": z[:20].repeat(3, 1),
        "fewer rows than dimensions": z[:10],
        "one class only": z[shifted.y == 0],
        "zero rows": torch.cat([z[:40], torch.zeros(3, z.shape[1])]),
        "huge": z * 1e30,
        "tiny": z * 1e-30,
    }
    if name == "conditional-tca":
        del cases["zero rows"]  # it refuses them: tests/adapters/test_conditional.py
    for case, rows in cases.items():
        adapter = ADAPTERS[name].build(shifted.g).fit(rows)
        assert torch.isfinite(adapter.transform(rows)).all(), case
        assert torch.isfinite(adapter.logits(rows)).all(), case


@every
def test_what_is_learned_inside_inference_mode_goes_on_outside(kind, shifted):
    with torch.inference_mode():
        adapter = kind(shifted.g).fit(shifted.z[:100].clone())
        adapter.predict(shifted.z)
        adapter.partial_fit(shifted.z[100:150].clone())
    adapter.partial_fit(shifted.z[150:]).solve()
    torch.testing.assert_close(adapter.W_, kind(shifted.g).fit(shifted.z).W_, rtol=0, atol=1e-6)
    assert not adapter.W_.is_inference()


@every
def test_a_fit_that_fails_leaves_the_earlier_one_and_one_that_succeeds_forgets_it(kind, shifted):
    def broken():
        yield shifted.z[:50]
        raise OSError("the disk is gone")

    adapter = kind(shifted.g).fit(shifted.z)
    before = adapter.logits(shifted.z)
    for error, rows, labels in (
        (ValueError, torch.randn(9, 3), None),
        (OSError, broken(), None),
        (ValueError, shifted.z[:50], [0]),
    ):
        with pytest.raises(error):
            adapter.fit(rows, labels=labels)
    assert adapter.n_seen_ == len(shifted.z)
    assert torch.equal(adapter.solve().logits(shifted.z), before)
    again = adapter.fit(shifted.z[100:])
    assert again.n_seen_ == 140
    assert torch.equal(again.logits(shifted.z), kind(shifted.g).fit(shifted.z[100:]).logits(shifted.z))


# -- errors ------------------------------------------------------------------------------------------------------------


@every
def test_rows_that_do_not_fit_are_named(kind, shifted):
    bad = shifted.z.clone()
    bad[3, 1], bad[8, 0] = float("nan"), float("inf")
    for call in (kind(shifted.g).fit, kind(shifted.g).partial_fit, kind(shifted.g).fit(shifted.z).transform):
        for rows, error, says in (
            (bad, ValueError, r"2 of 240 rows hold NaN or infinity \(rows 3, 8\)"),
            (torch.randn(10, 5), ValueError, "dimension 5, but the classifier has 24"),
            (torch.randn(24), ValueError, r"got shape \(24,\)"),
            (np.ones((4, 24), dtype=np.int32), TypeError, "float16, float32 or float64"),
        ):
            with pytest.raises(error, match=says):
                call(rows)
    for few, says in ((shifted.z[:1], "1 row;"), ([], "0 rows;"), (iter([shifted.z[:1]]), "1 row;")):
        with pytest.raises(ValueError, match=f"{says} fit needs at least 2"):
            kind(shifted.g).fit(few)


@every
def test_labels_are_checked_even_where_they_are_not_used(kind, shifted):
    for labels, says in (
        (shifted.y[:-1], "there are 240 embeddings"),
        (shifted.y + 1, "allowed are 0 to 3"),
        (shifted.y.float(), "whole numbers"),
        (["dog"] * 240, "not a vector of numbers"),
    ):
        with pytest.raises(ValueError, match=says):
            kind(shifted.g).fit(shifted.z, labels=labels)
    with pytest.raises(ValueError, match="labels and logits need one matrix, not an iterable of batches"):
        kind(shifted.g).fit(iter([shifted.z]), labels=shifted.y)


@every
def test_class_embeddings_stand_for_a_zero_shot_classifier_of_scale_100(kind, shifted, tmp_path):
    text = shifted.g.text
    adapter, expected = kind(text.numpy()).fit(shifted.z), kind(ZeroShotClassifier(text, 100)).fit(shifted.z)
    assert torch.equal(adapter.logits(shifted.z), expected.logits(shifted.z))
    adapter.save(tmp_path / "state.safetensors")
    assert torch.equal(
        clip_tca.from_pretrained(tmp_path / "state.safetensors").logits(shifted.z), expected.logits(shifted.z)
    )
    for wrong in ("ViT-B-16", torch.nn.Linear(3, 3)):
        with pytest.raises(
            TypeError, match=r"^classifier: \w+; use class embeddings \(classes, d\), ZeroShotClassifier"
        ):
            kind(wrong).fit(shifted.z)


@every
def test_using_before_fitting_says_what_to_do(kind, shifted, tmp_path):
    adapter = kind(shifted.g)
    uses = (adapter.transform, adapter.logits, adapter.predict, adapter.predict_proba, adapter.adapt)
    for call in (*(lambda use=use: use(shifted.z) for use in uses), adapter.solve, adapter.explain):
        with pytest.raises(ValueError, match=rf"{kind.__name__} is not fitted yet; call fit\(z\) or partial_fit"):
            call()
    assert not hasattr(adapter, "W_")
    assert not hasattr(adapter, "n_seen_")


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (LinearTCA, {"k": 0}, "k: 0; allowed are 'auto' or whole numbers of at least 1"),
        (LinearTCA, {"shares": "fair"}, "shares: 'fair'; allowed are estimated, uniform, predicted, global, oracle"),
        (LinearTCA, {"shares": [0.5, 0.5]}, "shares: 2 numbers for 4 classes"),
        (LinearTCA, {"shares": [1, -1, 0, 0]}, "shares: -1; allowed are numbers of at least 0"),
        (LinearTCA, {"shares": [0, 0, 0, 0.0]}, "shares: all are 0"),
        (LinearTCA, {"shares": {"dog": 1}}, "the classifier has none; give classes="),
        (ConditionalTCA, {"shares": "global"}, "shares: 'global'; allowed are estimated, uniform, predicted, a number"),
        (LinearTCA, {"uncertainty": "margin"}, "allowed are distance, entropy"),
        (LinearTCA, {"solver": "svd"}, "'svd'; allowed are monge, coral, gradient, mean"),
        (LinearTCA, {"shrinkage": 1.5}, "shrinkage: 1.5; allowed are 'auto' or numbers from 0 to 1"),
        (LinearTCA, {"lr": 0}, "lr: 0"),
        (LinearTCA, {"refresh": 0}, "refresh: 0"),
        (LinearTCA, {"normalize": "no"}, "normalize: 'no'; allowed are true and false"),
        (MLPTCA, {"layers": 4}, "layers: 4; allowed are whole numbers from 2 to 3"),
        (MLPTCA, {"seed": 1.5}, "seed: 1.5"),
        (ConditionalTCA, {"rounds": 0}, "rounds: 0"),
        (ConditionalTCA, {"anchor": -1}, "anchor: -1"),
        (ConditionalTCA, {"memory": 0}, "memory: 0"),
    ],
)
def test_options_are_checked_when_fitting(kind, options, says, shifted):
    adapter = kind(shifted.g, **options)
    for call in (adapter.fit, adapter.partial_fit):
        with pytest.raises(ValueError, match=says):
            call(shifted.z)
    assert not hasattr(adapter, "W_")


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"a": 1.0}, "none for 'b'"),
        ({"a": 1.0, "b": 1.0, "x": 1.0}, "'x' is no class"),
        ([1.0, float("nan")], "shares: nan; allowed are numbers"),
        (["1", 2], "shares: '1'; allowed are numbers"),
    ],
)
def test_shares_that_do_not_fit_are_named(shares, says):
    with pytest.raises(ValueError, match=says):
        share_vector(shares, ZeroShotClassifier(torch.eye(2), classes=["a", "b"]))


# -- options -----------------------------------------------------------------------------------------------------------


@every
def test_set_params_forgets_the_fit(kind, g, z):
    adapter = kind(g).fit(z)
    assert adapter.set_params() is adapter
    assert adapter.predict(z) is not None  # nothing was changed
    adapter.set_params(shares="uniform")
    with pytest.raises(NotFittedError, match="is not fitted yet; call fit"):
        adapter.predict(z)
    np.testing.assert_array_equal(adapter.fit(z).transform(z), kind(g, shares="uniform").fit(z).transform(z))
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: no parameter 'speed'; allowed are classifier, "):
        adapter.set_params(speed=11)
    assert adapter.predict(z) is not None


def test_the_published_settings_are_plain_options(shifted):
    paper, code = (ADAPTERS[f"linear-tca:{name}"].build(shifted.g) for name in ("paper", "reference"))
    assert repr(paper) == repr(LinearTCA(shifted.g, k=20, shares="global", solver="gradient"))
    assert repr(code) == repr(LinearTCA(shifted.g, k=20, shares="oracle", uncertainty="entropy", solver="gradient"))
    assert (paper.uncertainty, paper.steps, paper.lr) == ("distance", 20, 1e-3)


# -- scikit-learn ------------------------------------------------------------------------------------------------------

OWN_WORDS = "it is refused, but in words of our own"
UNSEEN = "y is never looked at, and so never refused: true labels reach no method"
INTEGERS = "whole numbers are no embeddings: they are refused with the line that converts them"
EXPECTED = {
    "check_estimators_overwrite_params": "joblib hashes a tensor and its copy differently",
    "check_estimators_dtypes": INTEGERS,
    "check_classifier_data_not_an_array": INTEGERS,
    "check_complex_data": OWN_WORDS,
    "check_n_features_in_after_fitting": OWN_WORDS,
    "check_estimators_empty_data_messages": OWN_WORDS,
    "check_fit2d_1sample": OWN_WORDS,
    "check_fit2d_predict1d": OWN_WORDS,
    "check_classifiers_classes": "the classes are those of g, whatever y holds",
    "check_classifiers_train": UNSEEN,
    "check_classifiers_regression_target": UNSEEN,
    "check_supervised_y_2d": UNSEEN,
    "check_estimators_partial_fit_n_features": "it gives classes= to partial_fit; they are those of g",
}
"""Checks of scikit-learn that can't pass, and why."""


def head(dim: int) -> LinearClassifier:
    return LinearClassifier(np.random.default_rng(0).normal(size=(3, dim)))


def outcome(check, make) -> BaseException | None:
    """What a check raises with a g of the dimension that its data have; None if it passes."""
    dims, tried = [10], set()
    while dims:
        tried.add(dim := dims.pop())
        try:
            check(make(head(dim)))
        except SkipTest:
            return None
        except Exception as error:
            failure, chain = error, []
            while error is not None:
                chain.append(str(error))
                error = error.__cause__ or error.__context__
            wanted = re.findall(r"dimension (\d+), but the classifier has", " ".join(chain))
            dims = [int(other) for other in wanted if int(other) not in tried][:1]
        else:
            return None
    return failure


@pytest.mark.parametrize("make", [LinearTCA, ConditionalTCA], ids=["linear", "conditional"])
def test_all_checks_of_scikit_learn_pass_but_those_that_can_t(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = [check for _, check in estimator_checks_generator(make(head(10)))]
        names = [getattr(check, "func", check).__name__ for check in checks]
        failed = {name for name, check in zip(names, checks, strict=True) if outcome(check, make) is not None}
    assert len(names) > 40
    assert failed == set(EXPECTED) & set(names)


@every
def test_predictions_probabilities_and_score_agree(kind, g, z, shifted):
    adapter = kind(g).fit(z)
    predicted, p = adapter.predict(z), adapter.predict_proba(z)
    np.testing.assert_array_equal(kind(g).fit_predict(z), predicted)
    np.testing.assert_allclose(np.linalg.norm(adapter.transform(z, unit=True), axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(adapter.classes_[p.argmax(axis=1)], predicted)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(adapter.predict(z, names=True), np.array(NAMES)[predicted])
    right = accuracy_score(shifted.y, predicted)
    truth = [NAMES[label] for label in shifted.y]
    assert [adapter.score(z, y) for y in (shifted.y, shifted.y.tolist(), truth, np.array(truth))] == [right] * 4
    assert adapter.score(shifted.z, shifted.y) == right
    assert adapter.n_features_in_ == 24


def test_a_pipeline_prepares_adapts_and_scores(g, z, shifted):
    double = FunctionTransformer(lambda rows: rows.astype(np.float64))
    assert is_classifier(LinearTCA(g))
    assert torch.equal(clone(LinearTCA(g, shares=shifted.y[:4])).shares, shifted.y[:4])
    pipeline = make_pipeline(double, Normalizer(), ConditionalTCA(g)).fit(z, shifted.y)
    alone = ConditionalTCA(g).fit(z.astype(np.float64))
    np.testing.assert_array_equal(pipeline.predict(z), alone.predict(z.astype(np.float64)))
    assert pipeline.score(z, shifted.y) == alone.score(z, shifted.y)
    moved = make_pipeline(LinearTCA(g), Normalizer()).fit_transform(z, shifted.y)
    np.testing.assert_allclose(moved, LinearTCA(g).fit(z).transform(z, unit=True), rtol=1e-5, atol=1e-6)


def test_a_grid_search_chooses_without_labels(g, z):
    options = {"shares": ["estimated", "global"], "k": [3, 10]}
    search = GridSearchCV(LinearTCA(g), options, scoring=label_free_score, cv=2).fit(z)
    assert search.best_params_["shares"] == "estimated"
    np.testing.assert_array_equal(search.predict(z), LinearTCA(g, **search.best_params_).fit(z).predict(z))


def test_it_works_where_scikit_learn_is_not_installed():
    program = """
import sys; sys.modules["sklearn"] = None
import numpy as np, clip_tca
g = clip_tca.ZeroShotClassifier(np.eye(4)[:2] + 0.1)
z = np.random.default_rng(0).normal(size=(60, 4))
adapter = clip_tca.ConditionalTCA(g)
assert not hasattr(adapter, "n_features_in_")
try: adapter.predict(z)
except ValueError as error: print(type(error).__name__)
print(adapter.fit_predict(z).shape, adapter.set_params(anchor=2.0), clip_tca.label_free_score(adapter.fit(z), z) >= 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "NotFittedError",
        "(60,) ConditionalTCA(ZeroShotClassifier(2 classes of 4 dimensions), anchor=2.0) True",
    ]
