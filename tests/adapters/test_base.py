"""The contract that LinearTCA, MLPTCA and ConditionalTCA share, scikit-learn's among it."""

from __future__ import annotations

import logging
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
from clip_tca.adapters.base import share_vector
from clip_tca.adapters.registry import ADAPTERS

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


@every
def test_logits_are_g_of_the_adapted_embeddings(kind, shifted):
    """Up to a constant for each row, which no probability notices."""
    adapter = kind(shifted.g).fit(shifted.z)
    expected = shifted.g.predict_proba(adapter.transform(shifted.z))
    torch.testing.assert_close(adapter.predict_proba(shifted.z), expected, rtol=0, atol=1e-4)


@every
def test_rows_are_adapted_one_by_one(kind, shifted):
    """What a row becomes does not depend on the rows beside it, nor on how many there are."""
    adapter = kind(shifted.g).fit(shifted.z)
    many = shifted.z.repeat(10, 1)
    torch.testing.assert_close(adapter.logits(many)[-240:], adapter.logits(shifted.z), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(adapter.transform(shifted.z[7:8]), adapter.transform(shifted.z)[7:8])


@pytest.mark.parametrize("name", [name for name, registered in ADAPTERS.items() if not registered.oracle])
def test_true_labels_reach_no_method(name, shifted):
    plain, told, lied = (
        ADAPTERS[name].build(shifted.g).fit(shifted.z, labels=labels).transform(shifted.z)
        for labels in (None, shifted.y, shifted.y.flip(0))
    )
    assert torch.equal(plain, told)
    assert torch.equal(plain, lied)


@every
def test_numbers_of_any_size_are_the_same_directions(kind, shifted):
    z = shifted.z.double()
    expected = kind(shifted.g).fit(z).predict(z)
    for factor in (1e200, 1e-200):
        assert torch.equal(kind(shifted.g).fit(z * factor).predict(z * factor), expected)


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
def test_a_fit_that_fails_or_is_interrupted_leaves_the_earlier_one(kind, shifted):
    class Stopped(kind):
        stops = False

        def _solve(self, observed):
            if self.stops:
                raise KeyboardInterrupt
            return super()._solve(observed)

    def broken():
        yield shifted.z[:50]
        raise OSError("the disk is gone")

    adapter = Stopped(shifted.g).fit(shifted.z)
    before = adapter.logits(shifted.z)
    with pytest.raises(ValueError, match="dimension"):
        adapter.fit(torch.randn(9, 3))
    with pytest.raises(OSError, match="the disk is gone"):
        adapter.fit(broken())
    with pytest.raises(ValueError, match="there are 50 embeddings"):
        adapter.fit(shifted.z[:50], labels=[0])
    adapter.stops = True
    with pytest.raises(KeyboardInterrupt):
        adapter.fit(shifted.z[:50])
    adapter.stops = False
    assert adapter.n_seen_ == len(shifted.z)
    assert torch.equal(adapter.logits(shifted.z), before)
    assert torch.equal(adapter.solve().logits(shifted.z), before)


@every
def test_an_earlier_fit_is_forgotten(kind, shifted):
    adapter = kind(shifted.g).fit(shifted.z[:100]).fit(shifted.z[100:])
    assert adapter.n_seen_ == 140
    assert torch.equal(adapter.logits(shifted.z), kind(shifted.g).fit(shifted.z[100:]).logits(shifted.z))


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_number_of_threads_is_left_as_it_was(name, shifted):
    before, z, y = torch.get_num_threads(), shifted.z[:30], shifted.y[:30]
    try:
        torch.set_num_threads(2)
        ADAPTERS[name].build(shifted.g, **({"steps": 1} if "mlp" in name else {})).fit(z, labels=y).predict(z)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_identical_images_are_logged(shifted, caplog):
    with caplog.at_level(logging.WARNING, "clip_tca"):
        ConditionalTCA(shifted.g).fit(shifted.z[:1].repeat(200, 1))
    assert "all 200 embeddings are identical" in caplog.text


# -- errors ------------------------------------------------------------------------------------------------------------


@every
def test_bad_rows_are_named(kind, shifted):
    z = shifted.z.clone()
    z[3, 1], z[8, 0] = float("nan"), float("inf")
    for call in (kind(shifted.g).fit, kind(shifted.g).partial_fit, kind(shifted.g).fit(shifted.z).transform):
        with pytest.raises(ValueError, match=r"2 of 240 rows hold NaN or infinity \(rows 3, 8\)"):
            call(z)


@every
def test_wrong_shapes_are_named(kind, shifted):
    adapter = kind(shifted.g)
    for call in (adapter.fit, adapter.partial_fit):
        with pytest.raises(ValueError, match="dimension 5, but the classifier has 24"):
            call(torch.randn(10, 5))
        with pytest.raises(ValueError, match="empty"):
            call(torch.randn(0, 24))
        with pytest.raises(ValueError, match=r"got shape \(24,\)"):
            call(torch.randn(24))
        with pytest.raises(TypeError, match="float16, float32 or float64"):
            call(np.ones((4, 24), dtype=np.int32))
    for few, rows in ((shifted.z[:1], "1 row"), ([], "0 rows"), (iter([shifted.z[:1]]), "1 row")):
        with pytest.raises(ValueError, match=f"{rows}; fit needs at least 2"):
            adapter.fit(few)


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
    with pytest.raises(ValueError, match="an iterable of batches goes without labels and logits"):
        kind(shifted.g).fit(iter([shifted.z]), labels=shifted.y)


@every
def test_using_before_fitting_says_what_to_do(kind, shifted, tmp_path):
    adapter = kind(shifted.g)
    uses = (adapter.transform, adapter.logits, adapter.predict, adapter.predict_proba, adapter.adapt)
    for call in (*(lambda use=use: use(shifted.z) for use in uses), adapter.solve, adapter.explain):
        with pytest.raises(ValueError, match=rf"{kind.__name__} is not fitted yet; call fit\(z\) or partial_fit"):
            call()
    assert not hasattr(adapter, "W_")
    assert not hasattr(adapter, "n_seen_")


def test_a_first_batch_that_is_refused_was_never_seen(shifted):
    adapter = ConditionalTCA(shifted.g)
    with pytest.raises(ValueError, match="use LinearTCA"):
        adapter.partial_fit(shifted.z, logits=shifted.g.logits(shifted.z))
    with pytest.raises(ValueError, match="is not fitted yet"):
        adapter.predict(shifted.z)
    assert adapter.partial_fit(shifted.z).n_seen_ == len(shifted.z)


@every
def test_a_stream_that_is_interrupted_before_its_first_solution_is_not_fitted(kind, shifted):
    class Stopped(kind):
        stops = True

        def _solve(self, observed):
            if self.stops:
                raise KeyboardInterrupt
            return super()._solve(observed)

    adapter = Stopped(shifted.g)
    with pytest.raises(KeyboardInterrupt):
        adapter.partial_fit(shifted.z)
    with pytest.raises(ValueError, match="is not fitted yet"):
        adapter.predict(shifted.z)
    adapter.stops = False
    assert adapter.set_params(shares="uniform").partial_fit(shifted.z).n_seen_ == len(shifted.z)


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (LinearTCA, {"k": 0}, "k: 0; allowed are 'auto' or whole numbers of at least 1"),
        (LinearTCA, {"k": 2.5}, "k: 2.5"),
        (LinearTCA, {"shares": "fair"}, "shares: 'fair'; allowed are estimated, uniform, predicted, global, oracle"),
        (LinearTCA, {"shares": [0.5, 0.5]}, "shares: 2 numbers for 4 classes"),
        (LinearTCA, {"shares": [1, -1, 0, 0]}, "shares: -1; a number ≥ 0"),
        (LinearTCA, {"shares": [0, 0, 0, 0.0]}, "shares: all are 0"),
        (LinearTCA, {"shares": {"dog": 1}}, "the classifier has none; give classes="),
        (ConditionalTCA, {"shares": "global"}, "shares: 'global'; allowed are estimated, uniform, predicted, a number"),
        (LinearTCA, {"uncertainty": "margin"}, "allowed are distance, entropy"),
        (LinearTCA, {"solver": "svd"}, "'svd'; allowed are monge, coral, gradient, mean"),
        (LinearTCA, {"shrinkage": 1.5}, "shrinkage: 1.5; allowed are 'auto' or numbers from 0 to 1"),
        (LinearTCA, {"steps": -1}, "steps: -1"),
        (LinearTCA, {"lr": 0}, "lr: 0"),
        (LinearTCA, {"refresh": 0}, "refresh: 0"),
        (LinearTCA, {"normalize": "no"}, "normalize: 'no'; allowed are true and false"),
        (MLPTCA, {"layers": 4}, "layers: 4; allowed are whole numbers from 2 to 3"),
        (MLPTCA, {"layers": 2.0}, "layers: 2.0; allowed are whole numbers from 2 to 3"),
        (MLPTCA, {"seed": 1.5}, "seed: 1.5"),
        (MLPTCA, {"hidden": 0}, "hidden: 0"),
        (MLPTCA, {"memory": 1}, "memory: 1"),
        (ConditionalTCA, {"rounds": 0}, "rounds: 0"),
        (ConditionalTCA, {"anchor": -1}, "anchor: -1"),
        (ConditionalTCA, {"shrinkage": "ledoit"}, "shrinkage: 'ledoit'"),
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
        ([1.0, float("nan")], "nan; a number"),
        (["1", 2], "'1'; a number"),
    ],
)
def test_shares_that_do_not_fit_are_named(shares, says):
    with pytest.raises(ValueError, match=says):
        share_vector(shares, ZeroShotClassifier(torch.eye(2), classes=["a", "b"]))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_list_of_numpy_s_numbers_are_shares(dtype):
    given = list(np.array([3, 1], dtype=dtype))
    assert share_vector(given, ZeroShotClassifier(torch.eye(2))).tolist() == [0.75, 0.25]


def test_texts_must_be_wrapped(shifted):
    with pytest.raises(TypeError, match=r"expected a LinearClassifier, got Tensor; use ZeroShotClassifier\(text\)"):
        LinearTCA(shifted.g.text).fit(shifted.z)


# -- options -----------------------------------------------------------------------------------------------------------


@every
def test_the_constructor_only_stores(kind, shifted):
    adapter = kind(shifted.g)
    assert set(vars(adapter)) == set(adapter.get_params())
    shares = np.array([1.0, 2.0, 3.0, 4.0])
    assert kind(shifted.g, shares=shares).shares is shares
    kind("no classifier", refresh="never")  # nothing is looked at


@every
def test_fit_changes_no_option_and_not_the_classifier(kind, g, z):
    adapter = kind(g)
    before, weight = adapter.get_params(), g.weight.clone()
    adapter.fit(z)
    assert all(adapter.get_params()[name] is value for name, value in before.items())
    assert torch.equal(g.weight, weight)


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


@every
def test_set_params_forgets_what_was_learned(kind, g, z):
    adapter = kind(g).fit(z).set_params(shares="uniform")
    assert not hasattr(adapter, "W_")
    assert not hasattr(adapter, "n_seen_")


def test_the_published_settings_are_plain_options(shifted):
    paper, code = (ADAPTERS[f"linear-tca:{name}"].build(shifted.g) for name in ("paper", "reference"))
    assert repr(paper) == repr(LinearTCA(shifted.g, k=20, shares="global", solver="gradient"))
    assert repr(code) == repr(LinearTCA(shifted.g, k=20, shares="oracle", uncertainty="entropy", solver="gradient"))
    assert (paper.uncertainty, paper.steps, paper.lr) == ("distance", 20, 1e-3)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_registered_name_says_whether_it_needs_labels_and_what_it_sets(name, shifted):
    registered = ADAPTERS[name]
    adapter = registered.build(shifted.g, refresh=7)
    assert adapter.uses_labels == registered.oracle
    assert adapter.get_params().items() >= {**registered.options, "refresh": 7}.items()
    fitted = adapter.fit(shifted.z, labels=shifted.y)
    assert hasattr(fitted, "weight_") == fitted.linear


def test_repr_says_which_classifier_and_what_was_changed(g):
    assert repr(LinearTCA(g, k=12)) == (
        "LinearTCA(ZeroShotClassifier(4 classes of 24 dimensions: cat, dog, horse, …), k=12)"
    )
    assert repr(ConditionalTCA(head(5))) == "ConditionalTCA(LinearClassifier(3 classes of 5 dimensions))"


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
def test_a_clone_has_the_options_and_nothing_learned(kind, g, z):
    adapter = kind(g, shares="uniform", normalize=None).fit(z)
    copy = clone(adapter)
    assert copy.get_params() == adapter.get_params()
    assert copy.get_params()["classifier"] is g
    check_is_fitted(adapter)
    for use in (check_is_fitted, lambda copy: copy.predict(z), lambda copy: copy.n_features_in_):
        with pytest.raises(NotFittedError):
            use(copy)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.equal(clone(kind(g, shares=shares)).shares, shares)


@every
def test_y_is_never_looked_at(kind, g, z, shifted):
    plain = kind(g).fit(z).transform(z)
    for y in (shifted.y, shifted.y.flip(0), ["anything"], object()):
        np.testing.assert_array_equal(kind(g).fit(z, y).transform(z), plain)
        np.testing.assert_array_equal(kind(g).fit_transform(z, y), plain)
    np.testing.assert_array_equal(kind(g).partial_fit(z, shifted.y).transform(z), plain)


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
    with pytest.raises(ValueError, match=r"names: the classifier has none; give it names: ZeroShotClassifier"):
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
    options = {"shares": ["estimated", "global"], "k": [3, 10]}
    search = GridSearchCV(LinearTCA(g), options, scoring=label_free_score, cv=2).fit(z)
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
        "(60,) ConditionalTCA(ZeroShotClassifier(2 classes of 4 dimensions), anchor=2.0) True",
    ]
