"""Adapters behave as scikit-learn's own estimators do: clone, pipelines, searches, and the checks that make sense."""

from __future__ import annotations

import pickle
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
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted

from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier, label_free_score

KINDS = [LinearTCA, MLPTCA, ConditionalTCA]
NAMES = ["cat", "dog", "horse", "house"]
every = pytest.mark.parametrize("kind", KINDS)

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


@pytest.fixture
def g(shifted) -> ZeroShotClassifier:
    return shifted.g.named(NAMES)


@pytest.fixture
def z(shifted) -> np.ndarray:
    return shifted.z.numpy()


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
def test_a_clone_has_the_options_and_nothing_learned(kind, g, z):
    adapter = kind(g, shares="uniform", normalize=None).fit(z)
    copy = clone(adapter)
    assert copy.get_params() == adapter.get_params()
    assert copy.get_params()["classifier"] is g
    assert copy.get_params()["normalize"] is None
    check_is_fitted(adapter)
    for use in (check_is_fitted, lambda copy: copy.predict(z), lambda copy: copy.n_features_in_):
        with pytest.raises(NotFittedError):
            use(copy)
    assert clone(kind(g, shares=torch.tensor([0.1, 0.2, 0.3, 0.4]))).shares == pytest.approx([0.1, 0.2, 0.3, 0.4])


@every
def test_fit_changes_no_parameter(kind, g, z):
    adapter = kind(g)
    before, weight = adapter.get_params(), g.weight.clone()
    adapter.fit(z)
    assert all(adapter.get_params()[name] is value for name, value in before.items())
    assert torch.equal(g.weight, weight)


def test_set_params_counts_from_the_next_fit(g, z):
    adapter = LinearTCA(g).fit(z)
    assert adapter.set_params() is adapter
    assert adapter.predict(z) is not None  # nothing was changed
    adapter.set_params(k=7, shares="uniform")
    with pytest.raises(NotFittedError, match="is not fitted yet; call fit"):
        adapter.predict(z)
    np.testing.assert_array_equal(adapter.fit(z).transform(z), LinearTCA(g, k=7, shares="uniform").fit(z).transform(z))
    with pytest.raises(ValueError, match=r"^LinearTCA: no parameter 'speed'; allowed are classifier, normalize, .*k, "):
        adapter.set_params(speed=11)
    assert adapter.set_params(balance="predicted").shares == "predicted"  # its name in version 0.1


def test_another_classifier_decides_about_lengths_anew(g):
    adapter = LinearTCA(g)
    assert adapter.normalize is True
    assert adapter.set_params(classifier=LinearClassifier(g.weight)).normalize is False
    assert LinearTCA(g, normalize=True).set_params(classifier=LinearClassifier(g.weight)).normalize is True


def test_repr_says_which_classifier_and_what_was_changed(g):
    assert repr(LinearTCA(g, k=12)) == (
        "LinearTCA(ZeroShotClassifier(4 classes of 24 dimensions: cat, dog, horse, …), normalize=True, k=12)"
    )
    assert (
        repr(ConditionalTCA(head(5))) == "ConditionalTCA(LinearClassifier(3 classes of 5 dimensions), normalize=False)"
    )


@every
def test_y_is_never_looked_at(kind, g, z, shifted):
    plain = kind(g).fit(z).transform(z)
    for y in (shifted.y, shifted.y.flip(0), ["anything"], object()):
        np.testing.assert_array_equal(kind(g).fit(z, y).transform(z), plain)
        np.testing.assert_array_equal(kind(g).fit_transform(z, y), plain)
    np.testing.assert_array_equal(kind(g).partial_fit(z, shifted.y).transform(z), plain)


def test_not_even_the_oracle_takes_its_labels_from_y(g, z, shifted):
    with pytest.raises(ValueError, match=r"'oracle' counts the true labels .*call fit\(z, labels=…\)"):
        LinearTCA.reference(g).fit(z, shifted.y)


@every
def test_predictions_probabilities_and_score_agree(kind, g, z, shifted):
    adapter = kind(g).fit(z)
    predicted, p = adapter.predict(z), adapter.predict_proba(z)
    np.testing.assert_array_equal(kind(g).fit_predict(z), predicted)
    np.testing.assert_array_equal(adapter.classes_[p.argmax(axis=1)], predicted)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(adapter.predict(z, names=True), np.array(NAMES)[predicted])
    right = accuracy_score(shifted.y, predicted)
    truth = [NAMES[label] for label in shifted.y]
    assert [adapter.score(z, y) for y in (shifted.y, shifted.y.tolist(), truth, np.array(truth))] == [right] * 4
    assert adapter.score(shifted.z, shifted.y) == right
    assert adapter.n_features_in_ == 24


def test_truth_that_fits_no_class_is_refused(g, z, shifted):
    adapter = ConditionalTCA(g).fit(z)
    with pytest.raises(ValueError, match="y: 'mouse' is no class; the classes are cat, dog"):
        adapter.score(z, ["mouse"] * len(z))
    with pytest.raises(ValueError, match="there are 240 embeddings; one label for each"):
        adapter.score(z, shifted.y[:-1])
    with pytest.raises(
        ValueError, match=r"names: the classifier has none; give it names: ZeroShotClassifier\(text, cl"
    ):
        ConditionalTCA(shifted.g).fit(z).predict(z, names=True)


def test_a_pipeline_prepares_adapts_and_scores(g, z, shifted):
    double = FunctionTransformer(lambda rows: rows.astype(np.float64))
    pipeline = make_pipeline(double, Normalizer(), ConditionalTCA(g)).fit(z, shifted.y)
    alone = ConditionalTCA(g).fit(z.astype(np.float64))
    np.testing.assert_array_equal(pipeline.predict(z), alone.predict(z.astype(np.float64)))
    assert pipeline.score(z, shifted.y) == alone.score(z, shifted.y)
    moved = make_pipeline(LinearTCA(g), Normalizer()).fit_transform(z, shifted.y)
    np.testing.assert_allclose(moved, LinearTCA(g).fit(z).transform(z, unit=True), rtol=1e-5, atol=1e-6)


def test_cross_validation_knows_a_classifier(g, z, shifted):
    assert is_classifier(LinearTCA(g))
    y, (train, test) = shifted.y.numpy(), np.split(np.arange(len(z)), 2)
    loss = log_loss(y[test], ConditionalTCA(g).fit(z[train]).predict_proba(z[test]))
    given = cross_val_score(ConditionalTCA(g), z, y, cv=[(train, test)], scoring="neg_log_loss")
    assert given == pytest.approx([-loss], rel=1e-6)


def test_a_grid_search_chooses_without_labels(g, z):
    search = GridSearchCV(
        LinearTCA(g), {"shares": ["estimated", "global"], "k": [3, 10]}, scoring=label_free_score, cv=2
    )
    search.fit(z)
    assert search.best_params_["shares"] == "estimated"
    np.testing.assert_array_equal(search.predict(z), LinearTCA(g, **search.best_params_).fit(z).predict(z))
    pipeline = make_pipeline(Normalizer(), ConditionalTCA(g))
    search = GridSearchCV(pipeline, {"conditionaltca__anchor": [0.5, 1.0]}, scoring=label_free_score, cv=2).fit(z)
    assert set(search.best_params_) == {"conditionaltca__anchor"}


@every
def test_a_fitted_adapter_survives_a_pickle(kind, g, z):
    adapter = kind(g).fit(z)
    again = pickle.loads(pickle.dumps(adapter))  # noqa: S301 (our own)
    np.testing.assert_array_equal(again.predict(z), adapter.predict(z))
    assert again.partial_fit(z[:9]).n_seen_ == len(z) + 9


@every
def test_unit_rows_are_of_length_one_and_of_the_same_direction(kind, g, shifted):
    for rows in (shifted.z, shifted.z.double(), shifted.z.half()):
        adapter = kind(g).fit(rows)
        unit, moved = adapter.transform(rows, unit=True), adapter.transform(rows)
        assert unit.dtype == rows.dtype
        close = {"rtol": 0, "atol": 2e-3 if rows.dtype == torch.float16 else 1e-6}
        torch.testing.assert_close(unit.norm(dim=1), torch.ones_like(unit[:, 0]), **close)
        torch.testing.assert_close(unit, torch.nn.functional.normalize(moved, dim=1), **close)


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
        "(60,) ConditionalTCA(ZeroShotClassifier(2 classes of 4 dimensions), normalize=True, anchor=2.0) True",
    ]
