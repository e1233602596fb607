"""The contract that LinearTCA, MLPTCA and ConditionalTCA share."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.state import checksum
from tests.conftest import Shifted

ADAPTERS = {
    "gradient": lambda g: LinearTCA(g, solver="gradient"),
    "coral": lambda g: LinearTCA(g, solver="coral"),
    "monge": lambda g: LinearTCA(g),
    "mean": lambda g: LinearTCA(g, solver="mean"),
    "uniform": lambda g: LinearTCA(g, shares="uniform", k=6),
    "predicted": lambda g: LinearTCA(g, shares="predicted", k=6),
    "paper": lambda g: LinearTCA.paper(g, k=30),
    "mlp2": lambda g: MLPTCA(g, layers=2, steps=5),
    "mlp3": lambda g: MLPTCA(g, layers=3, steps=5, hidden=8),
    "conditional": lambda g: ConditionalTCA(g),
}
every = pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS.keys())


@every
@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_stream_ends_where_one_fit_does(make, size, shifted):
    whole = make(shifted.g).fit(shifted.z)
    stream = make(shifted.g)
    for batch in shifted.z.split(size):
        stream.partial_fit(batch)
    assert stream.n_seen_ == whole.n_seen_ == len(shifted.z)
    torch.testing.assert_close(stream.transform(shifted.z), whole.transform(shifted.z), rtol=0, atol=1e-5)
    torch.testing.assert_close(stream.W_, whole.W_, rtol=0, atol=1e-7)


@every
def test_reading_on_the_way_does_not_change_where_a_stream_ends(make, shifted):
    quiet, read = make(shifted.g), make(shifted.g)
    for batch in shifted.z.split(32):
        quiet.partial_fit(batch)
        read.partial_fit(batch).predict(batch)
    torch.testing.assert_close(read.W_, quiet.W_, rtol=0, atol=1e-7)


@every
def test_one_image_is_enough_for_a_stream(make, shifted):
    first = shifted.z[:1]
    torch.testing.assert_close(make(shifted.g).partial_fit(first).transform(first), first, rtol=0, atol=1e-6)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_come_back_as_they_came(make, dtype, shifted):
    z = shifted.z.to(dtype)
    adapter = make(shifted.g).fit(z)
    assert adapter.transform(z).dtype == dtype
    assert adapter.logits(z).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert adapter.predict(z).dtype == torch.int64
    assert torch.isfinite(adapter.transform(z)).all()


@every
def test_numpy_in_numpy_out(make, shifted):
    array = shifted.z.numpy()
    adapter = make(shifted.g).fit(array)
    for result in (adapter.transform(array), adapter.logits(array), adapter.predict(array)):
        assert isinstance(result, np.ndarray)
    tensor = make(shifted.g).fit(shifted.z)
    np.testing.assert_array_equal(adapter.predict(array), tensor.predict(shifted.z).numpy())
    frozen = array.astype(">f4")
    frozen.setflags(write=False)
    np.testing.assert_array_equal(make(shifted.g).fit(frozen).predict(frozen), adapter.predict(array))


@every
def test_logits_are_g_of_the_adapted_embeddings(make, shifted):
    """Up to a constant for each row, which no probability notices."""
    adapter = make(shifted.g).fit(shifted.z)
    direct = adapter.logits(shifted.z).softmax(dim=1)
    torch.testing.assert_close(direct, shifted.g.probabilities(adapter.transform(shifted.z)), rtol=0, atol=1e-4)


@every
def test_true_labels_reach_no_method(make, shifted):
    plain, told, lied = (
        make(shifted.g).fit(shifted.z, labels=labels).transform(shifted.z)
        for labels in (None, shifted.y, shifted.y.flip(0))
    )
    assert torch.equal(plain, told)
    assert torch.equal(plain, lied)


def test_only_the_oracle_hears_labels(shifted):
    skewed = torch.where(torch.arange(len(shifted.y)) % 2 == 0, 0, shifted.y)
    told, lied = (
        LinearTCA.reference(shifted.g).fit(shifted.z, labels=labels).transform(shifted.z)
        for labels in (shifted.y, skewed)
    )
    assert not torch.equal(told, lied)


@every
def test_save_and_load_go_on_where_they_were(make, shifted, tmp_path):
    half = len(shifted.z) // 2
    adapter = make(shifted.g).partial_fit(shifted.z[:half])
    adapter.save(tmp_path / "x.safetensors")
    loaded = type(adapter).load(tmp_path / "x.safetensors", shifted.g)
    assert loaded.parameters() == adapter.parameters()
    assert loaded.n_seen_ == half
    assert torch.equal(loaded.transform(shifted.z), adapter.transform(shifted.z))
    for one in (adapter, loaded):
        one.partial_fit(shifted.z[half:])
    torch.testing.assert_close(loaded.W_, adapter.W_, rtol=0, atol=1e-9)
    torch.testing.assert_close(loaded.transform(shifted.z), adapter.transform(shifted.z), rtol=0, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_saved_state_that_does_not_fit_is_refused_in_one_line(shifted, tmp_path, caplog):
    path = tmp_path / "x.safetensors"
    LinearTCA(shifted.g).fit(shifted.z).save(path)
    with pytest.raises(ValueError, match=r"holds a LinearTCA; use LinearTCA\.load"):
        ConditionalTCA.load(path, shifted.g)
    with pytest.raises(ValueError, match="made for 4 classes in 24 dimensions, but the classifier has 3 in 24"):
        LinearTCA.load(path, ZeroShotClassifier(shifted.g.text[:3]))
    with caplog.at_level(logging.WARNING, "clip_tca"):
        LinearTCA.load(path, ZeroShotClassifier(shifted.g.text.flip(0), shifted.g.scale))
    assert "other class texts" in caplog.text
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="not a saved clip-tca state, or damaged"):
        LinearTCA.load(path, shifted.g)
    with pytest.raises(FileNotFoundError, match="no such file"):
        LinearTCA.load(tmp_path / "y.safetensors", shifted.g)
    with pytest.raises(FileNotFoundError, match="create it first"):
        LinearTCA(shifted.g).fit(shifted.z).save(tmp_path / "no" / "x.safetensors")


@pytest.mark.parametrize("spoil", ["tensor", "option", "dtype"])
def test_a_saved_state_with_a_part_missing_is_refused_in_one_line(spoil, shifted, tmp_path):
    path = tmp_path / "x.safetensors"
    LinearTCA(shifted.g).fit(shifted.z).save(path)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["clip_tca"])
    if spoil == "tensor":
        del tensors["bank.rows"]
    elif spoil == "option":
        record["options"]["speed"] = 11
    else:
        record["counters"]["dtype"] = "float99"
    text = json.dumps(record)
    save_file(tensors, path, metadata={"clip_tca": text, "checksum": checksum(text, tensors)})
    with pytest.raises(ValueError, match="missing or wrong"):
        LinearTCA.load(path, shifted.g)


def test_a_failed_save_leaves_the_earlier_file(shifted, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    adapter = LinearTCA(shifted.g).fit(shifted.z)
    adapter.save(path)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space"):
        adapter.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@every
def test_bad_rows_are_named(make, shifted):
    z = shifted.z.clone()
    z[3, 1], z[8, 0] = float("nan"), float("inf")
    for call in (make(shifted.g).fit, make(shifted.g).partial_fit, make(shifted.g).fit(shifted.z).transform):
        with pytest.raises(ValueError, match=r"2 of 240 rows hold NaN or infinity \(rows 3, 8\)"):
            call(z)


@every
def test_wrong_shapes_are_named(make, shifted):
    adapter = make(shifted.g)
    with pytest.raises(ValueError, match="dimension 5, but the classifier has 24"):
        adapter.fit(torch.randn(10, 5))
    with pytest.raises(ValueError, match="empty"):
        adapter.fit(torch.randn(0, 24))
    with pytest.raises(ValueError, match="empty"):
        adapter.partial_fit(torch.randn(0, 24))
    with pytest.raises(ValueError, match=r"got shape \(24,\)"):
        adapter.fit(torch.randn(24))
    with pytest.raises(ValueError, match="1 row; fit needs at least 2"):
        adapter.fit(shifted.z[:1])
    with pytest.raises(TypeError, match="float16, float32 or float64"):
        adapter.fit(np.ones((4, 24), dtype=np.int32))


@every
def test_labels_are_checked_even_where_they_are_not_used(make, shifted):
    for labels, says in (
        (shifted.y[:-1], "there are 240 embeddings"),
        (shifted.y + 1, "allowed are 0 to 3"),
        (shifted.y.float(), "whole numbers"),
        (["dog"] * 240, "not a vector of numbers"),
    ):
        with pytest.raises(ValueError, match=says):
            make(shifted.g).fit(shifted.z, labels=labels)


@every
def test_using_before_fitting_says_what_to_do(make, shifted):
    adapter = make(shifted.g)
    for call in (adapter.transform, adapter.logits, adapter.predict):
        with pytest.raises(ValueError, match="is not fitted yet; call fit"):
            call(shifted.z)
    with pytest.raises(ValueError, match="is not fitted yet"):
        _ = adapter.W_
    with pytest.raises(ValueError, match="is not fitted yet"):
        _ = adapter.n_seen_


@pytest.mark.parametrize(
    ("cls", "options", "says"),
    [
        (LinearTCA, {"k": 0}, "k: 0; allowed are 'auto' or whole numbers of at least 1"),
        (LinearTCA, {"k": 2.5}, "k: 2.5"),
        (LinearTCA, {"balance": "fair"}, "shares: 'fair'; allowed are estimated, uniform, predicted, global, oracle"),
        (LinearTCA, {"shares": [0.5, 0.5]}, "shares: 2 numbers for 4 classes"),
        (LinearTCA, {"shares": [1, -1, 0, 0]}, "shares: -1; a number ≥ 0"),
        (LinearTCA, {"shares": [0, 0, 0, 0.0]}, "shares: all are 0"),
        (LinearTCA, {"shares": {"dog": 1}}, "the classifier has none; give classes="),
        (ConditionalTCA, {"shares": "global"}, "shares: 'global'; allowed are estimated, uniform, predicted, a number"),
        (LinearTCA, {"uncertainty": "margin"}, "allowed are distance, entropy"),
        (LinearTCA, {"solver": "svd"}, "'svd'; allowed are gradient, coral, monge, mean"),
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
def test_options_are_checked_when_fitting(cls, options, says, shifted):
    adapter = cls(shifted.g, **options)
    with pytest.raises(ValueError, match=says):
        adapter.fit(shifted.z)
    with pytest.raises(ValueError, match=says):
        adapter.partial_fit(shifted.z)


def test_the_oracle_refuses_to_run_without_labels(shifted):
    for call in (LinearTCA.reference(shifted.g).fit, LinearTCA.reference(shifted.g).partial_fit):
        with pytest.raises(ValueError, match=r"call fit\(z, labels=…\)"):
            call(shifted.z)
    with pytest.raises(ValueError, match="none is 0"):
        LinearTCA.reference(shifted.g).fit(shifted.z, labels=shifted.y.clamp_min(1))


@every
def test_what_is_learned_inside_inference_mode_goes_on_outside(make, shifted):
    with torch.inference_mode():
        adapter = make(shifted.g).fit(shifted.z[:100].clone())
        adapter.transform(shifted.z)
    adapter.partial_fit(shifted.z[100:])
    torch.testing.assert_close(adapter.W_, make(shifted.g).fit(shifted.z).W_, rtol=0, atol=1e-7)


@every
def test_numbers_of_any_size_are_the_same_directions(make, shifted):
    z = shifted.z.double()
    expected = make(shifted.g).fit(z).predict(z)
    for factor in (1e200, 1e-200):
        assert torch.equal(make(shifted.g).fit(z * factor).predict(z * factor), expected)


def test_texts_must_be_wrapped(shifted):
    with pytest.raises(TypeError, match=r"expected a LinearClassifier, got Tensor; use ZeroShotClassifier\(text\)"):
        LinearTCA(shifted.g.text).fit(shifted.z)


def test_numpy_numbers_are_options_too(shifted, tmp_path):
    LinearTCA(shifted.g, k=np.int64(7)).fit(shifted.z).save(tmp_path / "x.safetensors")
    assert LinearTCA.load(tmp_path / "x.safetensors", shifted.g).k == 7


def test_an_oracle_that_selects_nothing_changes_nothing(shifted):
    z = shifted.z[shifted.g.predict(shifted.z) != 0]
    tca = LinearTCA.reference(shifted.g).fit(z, labels=torch.zeros(len(z), dtype=torch.int64))
    torch.testing.assert_close(tca.transform(z), z, rtol=0, atol=1e-6)


@every
def test_a_fit_that_fails_leaves_the_earlier_one(make, shifted, monkeypatch):
    adapter = make(shifted.g).fit(shifted.z)
    before = adapter.transform(shifted.z)
    with pytest.raises(ValueError, match="dimension"):
        adapter.fit(torch.randn(9, 3))
    monkeypatch.setattr(type(adapter), "_solve", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter.fit(shifted.z[:50])
    monkeypatch.undo()
    assert torch.equal(adapter.transform(shifted.z), before)


@every
def test_strange_but_legal_data_stay_finite(make, shifted):
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
    for name, case in cases.items():
        adapter = make(shifted.g).fit(case)
        assert torch.isfinite(adapter.transform(case)).all(), name
        assert torch.isfinite(adapter.logits(case)).all(), name


def test_a_pseudo_source_without_some_classes_is_logged(shifted, caplog):
    """The paper's selection knows no classes: of 3 embeddings at least one of 4 classes has none."""
    with caplog.at_level(logging.WARNING, "clip_tca"):
        tca = LinearTCA.paper(shifted.g, k=3).fit(shifted.z)
    left_out = int((tca.pseudo_source_counts_ == 0).sum())
    assert f"the 3 most certain leave out {left_out} predicted classes" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "clip_tca"):
        LinearTCA.paper(shifted.g, k=len(shifted.z) - 1).fit(shifted.z)
    assert "leave out" not in caplog.text


def test_what_the_user_should_know_is_logged(shifted, caplog):
    with caplog.at_level(logging.WARNING, "clip_tca"):
        few = shifted.z[shifted.g.predict(shifted.z) == 0][:10]
        LinearTCA(shifted.g, k=20, shares="global").fit(few)
        ConditionalTCA(shifted.g).fit(shifted.z[:7])
    assert "3 of 4 classes are never predicted" in caplog.text
    assert "all or nothing of the 10 embeddings: no change" in caplog.text
    assert "10 embeddings say little about a covariance in 24 dimensions" in caplog.text
    assert "7 images; below 8 zero-shot is kept" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "clip_tca"):
        ConditionalTCA(shifted.g, memory=4).fit(shifted.z[:1].repeat(200, 1))
    assert "4 images; below 8" in caplog.text
    assert "all 200 embeddings are identical" in caplog.text


@every
def test_constructors_only_store(make, shifted):
    adapter = make(shifted.g)
    assert set(vars(adapter)) <= {option.name for option in dataclasses.fields(adapter)}
    assert {"classifier", *adapter.options()} <= set(vars(adapter))


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["gradient", "coral", "monge", "mean", "conditional"]),
    classes=st.integers(2, 5),
    dim=st.integers(2, 30),
    images=st.integers(2, 30),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    cuts=st.lists(st.integers(1, 140), max_size=5),
)
def test_any_shape_dtype_and_split(name, classes, dim, images, dtype, cuts):
    data = Shifted(classes, dim, images)
    z = data.z.to(dtype)
    whole, stream = ADAPTERS[name](data.g).fit(z), ADAPTERS[name](data.g)
    for a, b in itertools.pairwise(sorted({0, len(z), *(c for c in cuts if c < len(z))})):
        stream.partial_fit(z[a:b])
    assert torch.isfinite(whole.transform(z)).all()
    torch.testing.assert_close(stream.W_, whole.W_, rtol=1e-5, atol=1e-5)


def test_the_map_of_a_stream_is_solved_rarely(shifted, monkeypatch):
    counts = {}
    for refresh in ("auto", 1, 50):
        solved = []
        tca = LinearTCA(shifted.g, refresh=refresh)
        solve = tca._solve
        monkeypatch.setattr(tca, "_solve", lambda solved=solved, solve=solve: solved.append(1) or solve())
        for image in shifted.z.split(1):
            tca.partial_fit(image).predict(image)
        counts[refresh] = len(solved)
    assert counts[1] == len(shifted.z)
    assert counts[50] == 1 + (len(shifted.z) - 1) // 50
    assert counts[50] < counts["auto"] < len(shifted.z) / 4


# -- LinearTCA+ --------------------------------------------------------------------------------------------------------


def test_the_classifier_s_own_logits_change_nothing(shifted):
    plain, given = LinearTCA(shifted.g), LinearTCA(shifted.g)
    unit = torch.nn.functional.normalize(shifted.z, dim=1)
    plain.fit(shifted.z)
    given.fit(shifted.z, logits=shifted.g.logits(unit.double()))
    torch.testing.assert_close(given.W_, plain.W_)


def test_certainty_is_judged_by_the_logits_given(shifted):
    """Logits that are certain of class 2 alone make a pseudo-source of class 2 alone."""
    logits = torch.zeros(len(shifted.z), shifted.g.n_classes)
    logits[:, 2] = torch.linspace(1, 5, len(logits))
    tca = LinearTCA(shifted.g, k=10, shares="uniform").fit(shifted.z, logits=logits)
    best = torch.nn.functional.normalize(shifted.z[-10:], dim=1).double().mean(0)
    torch.testing.assert_close(tca.pseudo_source_mean_, best, rtol=1e-5, atol=1e-6)
    stream = LinearTCA(shifted.g, k=10, shares="uniform")
    for z, scores in zip(shifted.z.split(17), logits.split(17), strict=True):
        stream.partial_fit(z, logits=scores)
    torch.testing.assert_close(stream.W_, tca.W_)


def test_logits_of_another_shape_are_refused(shifted):
    with pytest.raises(ValueError, match=r"logits: shape \(3, 4\)"):
        LinearTCA(shifted.g).fit(shifted.z, logits=torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"logits.*NaN"):
        LinearTCA(shifted.g).fit(shifted.z, logits=torch.full((len(shifted.z), 4), float("nan")))
    with pytest.raises(ValueError, match="use LinearTCA"):
        ConditionalTCA(shifted.g).fit(shifted.z, logits=torch.zeros(len(shifted.z), 4))
