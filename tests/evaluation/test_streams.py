"""Streams: which images a run shows, in which order and batches; what is drawn is the same for every method."""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np
import pytest
import torch

import clip_tca
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.cli import main
from clip_tca.datasets.embedding_set import EmbeddingSet
from clip_tca.datasets.synthetic import synthetic
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.inputs import Embedded
from clip_tca.evaluation.measurement import Measurement
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.mixed_domains import mixed, places
from clip_tca.evaluation.protocols import order
from clip_tca.evaluation.streams import Draw, Stream, long_tail_counts, slots_of
from clip_tca.results.record import check
from clip_tca.results.rendering import render
from clip_tca.results.stream_words import stream_words

LABELS = torch.arange(4).repeat_interleave(64)
"""Four classes of 64 images."""


def stream(kind: str = "iid", **options) -> Stream:
    given = {"classes_present": None, "long_tail": None, "mix_domains": False}
    return Stream.of(kind, **{**given, **options})


def drawn(kind: str = "iid", labels=LABELS, seed=0, setting="online", protocol="full", batch=64, **options) -> Draw:
    return stream(kind, **options).draw(labels, seed, setting, protocol, batch)


def batches(draw: Draw, labels=LABELS) -> list[list[int]]:
    """The labels of each batch."""
    return [part.tolist() for part in labels[draw.seen].split(draw.sizes)]


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["full", "watt", "kept"])
def test_without_options_a_run_is_the_shuffle_it_always_was(protocol):
    draw = drawn(labels=torch.zeros(50, dtype=torch.long), seed=3, protocol=protocol, batch=8)
    assert torch.equal(draw.seen, order(50, protocol, 8, 3))
    assert draw.sizes == [8] * 6 + ([2] if protocol == "full" else [])
    assert stream().is_plain


@pytest.mark.parametrize("kind", ["sorted", "dirichlet:0.1", "dirichlet:0.001"])
def test_every_image_comes_once_and_the_seed_decides_when(kind):
    first, again, other = drawn(kind), drawn(kind), drawn(kind, seed=1)
    assert sorted(first.seen.tolist()) == list(range(256))
    assert torch.equal(first.seen, again.seen)
    assert not torch.equal(first.seen, other.seen)


def test_sorted_shows_class_after_class_in_a_random_order():
    shown = [LABELS[drawn("sorted", seed=seed).seen].tolist() for seed in range(6)]
    orders = [[label for label, _ in groupby(labels)] for labels in shown]
    assert all(sorted(found) == [0, 1, 2, 3] for found in orders)
    assert len({tuple(found) for found in orders}) > 1
    assert drawn("sorted").seen[:64].tolist() != sorted(drawn("sorted").seen[:64].tolist())


def test_shares_of_a_class_become_slots_by_hand():
    """Ten images, a quarter, a half and a quarter: cuts at 2.5 and 7.5, rounded down."""
    assert slots_of(10, np.array([0.25, 0.5, 0.25])).tolist() == [0] * 2 + [1] * 5 + [2] * 3
    assert slots_of(3, np.array([0.0, 1.0])).tolist() == [1, 1, 1]


class Shares:
    """NumPy's random numbers, except that the shares of classes are those given, one after the other."""

    def __init__(self, given):
        self.given, self.asked = given, []

    def __call__(self, seed):
        self.random = REAL(seed)
        return self

    def __getattr__(self, name):
        return getattr(self.random, name)

    def dirichlet(self, alpha):
        self.asked.append(alpha)
        return np.array(self.given[len(self.asked) - 1])


REAL = np.random.default_rng


def test_a_dirichlet_stream_by_hand(monkeypatch):
    """Classes 0 and 1 have half of their images in each of the slots 1 and 2, classes 2 and 3 in the slots 3 and 0."""
    early, late = [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5]
    monkeypatch.setattr("numpy.random.default_rng", Shares([early, early, late, late]))
    draw = drawn("dirichlet:0.1")
    counts = [np.bincount(part, minlength=4).tolist() for part in batches(draw)]
    assert counts == [[0, 0, 32, 32], [32, 32, 0, 0], [32, 32, 0, 0], [0, 0, 32, 32]]
    assert len(set(LABELS[draw.seen[:16]].tolist())) == 2  # a slot is shuffled


def test_the_smaller_gamma_the_fewer_classes_in_a_batch():
    classes = [
        np.mean([len(set(part)) for seed in range(20) for part in batches(drawn(f"dirichlet:{gamma}", seed=seed))])
        for gamma in (100, 0.1, 0.001)
    ]
    assert classes[0] > 3.9
    assert classes[0] > classes[1] > classes[2]


@pytest.mark.parametrize(("batch", "slots"), [(8, 4), (100, 2), (1000, 1)])
def test_there_are_as_many_slots_as_whole_batches_and_no_more_than_classes(batch, slots, monkeypatch):
    shares = Shares([[1.0] + [0.0] * (slots - 1)] * 4)
    monkeypatch.setattr("numpy.random.default_rng", shares)
    drawn("dirichlet:0.1", batch=batch)
    assert shares.asked == [[0.1] * slots] * 4  # once for each class


# -- which images ------------------------------------------------------------------------------------------------------


def test_batches_have_the_classes_asked_for_by_hand():
    """Three classes of five, one class in a batch of four: each class is a batch of four and one of one."""
    labels = torch.arange(3).repeat(5)
    draw = drawn(labels=labels, batch=4, classes_present=1)
    assert sorted(draw.sizes) == [1, 1, 1, 4, 4, 4]
    assert all(len(set(part)) == 1 for part in batches(draw, labels))
    assert sorted(draw.seen.tolist()) == list(range(15))


def test_classes_present_holds_for_every_batch_until_fewer_are_left():
    counts = [len(set(part)) for part in batches(drawn(classes_present="2-3", batch=16))]
    assert set(counts[:8]) == {2, 3}  # at most 48 images of a class can be gone by then
    assert all(1 <= count <= 3 for count in counts)
    assert [len(set(part)) for part in batches(drawn(classes_present=2, batch=16))][:8] == [2] * 8


def test_in_the_transductive_setting_the_whole_set_has_the_classes():
    for seed in range(5):
        draw = drawn(setting="transductive", classes_present=2, seed=seed)
        assert torch.bincount(LABELS[draw.seen], minlength=4).sort().values.tolist() == [0, 0, 64, 64]
    assert {
        len(LABELS[drawn(setting="transductive", classes_present="1-2", seed=s).seen].unique()) for s in range(8)
    } == {1, 2}


def test_a_long_tail_by_hand():
    """Of 100 to 1 over three classes: 1, 1/10 and 1/100. A head class of 50 images makes all of them half."""
    assert long_tail_counts([100, 100, 100], 100) == [100, 10, 1]
    assert long_tail_counts([50, 100, 100], 100) == [50, 5, 1]
    assert long_tail_counts([100, 5, 100], 100) == [50, 5, 1]
    assert long_tail_counts([100, 100], 1) == [100, 100]
    assert long_tail_counts([7], 50) == [7]
    draw = drawn(long_tail=64)
    assert torch.bincount(LABELS[draw.seen]).sort(descending=True).values.tolist() == [64, 16, 4, 1]
    assert len(set(draw.seen.tolist())) == 85
    heads = {int(torch.bincount(LABELS[drawn(long_tail=64, seed=seed).seen]).argmax()) for seed in range(8)}
    assert len(heads) > 1


# -- the same for every method, and by hand ----------------------------------------------------------------------------


def correct(record: dict, method: str) -> dict[str, int]:
    return {row["domain"]: row["correct"] for row in record["rows"] if row["method"] == method and row["seed"] == 0}


@pytest.mark.parametrize(
    "options",
    [{"stream": "sorted"}, {"stream": "dirichlet:0.01"}, {"classes_present": "1-3"}, {"long_tail": 5}],
    ids=str,
)
@pytest.mark.parametrize("name", ["linear-tca", "t3a"])
def test_an_online_run_is_the_loop_over_its_batches(name, options):
    data, methods = synthetic(0), ["zero-shot", name]
    record = clip_tca.evaluate(
        "synthetic", methods=methods, setting="online", batch_size=300, domains=["shifted"], **options
    )
    z, y = data.domains["shifted"]
    draw = drawn(options.get("stream", "iid"), y, batch=300, **{k: v for k, v in options.items() if k != "stream"})
    g, runs = data.classifier(), BaseRuns(Embedded(data, {}), torch.device("cpu"), 300, 0, progress=False)
    adapter = ADAPTERS[name].build(g, refresh=1) if name in ADAPTERS else None
    base = None if adapter else runs.make(name, {})
    right = before = 0
    for part in draw.seen.split(draw.sizes):
        rows = g.prepared(z[part])
        predicted = adapter.partial_fit(rows).predict(rows) if adapter else base(rows)[1].argmax(dim=1)
        right += int((predicted == y[part]).sum())
        before += int((g.predict(rows) == y[part]).sum())
    assert correct(record, name) == {"shifted": right}
    assert correct(record, "zero-shot") == {"shifted": before}
    assert record["rows"][0]["images"] == record["rows"][0]["divisor"] == len(draw.seen)


def test_labels_that_made_a_stream_reach_no_method():
    """The same draw with other labels gives the same predictions."""
    data = synthetic(0)
    z, y = data.domains["shifted"]
    draw = drawn("dirichlet:0.01", y, batch=300)
    specs = method_specs(["zero-shot", "linear-tca", "t3a"], {})
    found = []
    for labels in (y, y.flip(0)):
        embedded = Embedded(EmbeddingSet(data.text, data.scale, {"d": (z, labels)}), {"data": {"classes": [*"abcdef"]}})
        runs = BaseRuns(embedded, torch.device("cpu"), 300, 0, progress=False)
        found.append(Measurement(specs, data.classifier(), runs, "online", "full", lambda *_: draw).of([("d", 0)]))
    one, other = (results.predictions for results in found)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert found[0].rows[0]["correct"] != found[1].rows[0]["correct"]


def test_zero_shot_is_the_same_in_every_stream_that_shows_every_image():
    kinds = ({}, {"stream": "sorted"}, {"classes_present": 2}, {"mix_domains": True})
    found = [
        correct(clip_tca.evaluate("synthetic", methods=["zero-shot"], setting="online", **k), "zero-shot")
        for k in kinds
    ]
    assert found[1:] == found[:1] * 3


def test_mixed_domains_are_one_stream_with_rows_by_domain():
    data = synthetic(0)
    record = clip_tca.evaluate(
        "synthetic", methods=["linear-tca"], setting="online", batch_size=300, mix_domains=True, examples=1
    )
    embedded = mixed(Embedded(data, {}))
    (z, y), where = embedded.data.domains["all domains"], places(Embedded(data, {}))
    assert where["shifted"] == range(1440, 2880)
    assert torch.equal(y[2880:], data.domains["skewed"][1])
    shuffled, g = order(len(y), "full", 300, 0), data.classifier()
    adapter = ADAPTERS["linear-tca"].build(g, refresh=1)
    predicted = torch.empty(len(y), dtype=torch.long)
    for part in shuffled.split(300):
        predicted[part] = adapter.partial_fit(z[part]).predict(z[part])
    by_hand = {name: int((predicted == y)[at.start : at.stop].sum()) for name, at in where.items()}
    assert correct(record, "linear-tca") == by_hand
    before = {name: int((g.predict(z) == y)[at.start : at.stop].sum()) for name, at in where.items()}
    for group in record["examples"]["groups"]:
        name, counts = group["domain"], group["counts"]
        assert counts["fixed"] - counts["broken"] == by_hand[name] - before[name]


# -- the record and bad input ------------------------------------------------------------------------------------------


def test_the_record_says_what_was_drawn_and_can_be_read_again():
    record = clip_tca.evaluate(
        "synthetic",
        methods=["zero-shot"],
        setting="episodic",
        classes_present="1-4",
        long_tail=3,
        mix_domains=True,
        unknown_classes=1,
        seeds=2,
    )
    assert record["stream"] == {
        "kind": "iid",
        "gamma": None,
        "classes_present": [1, 4],
        "long_tail": 3,
        "mix_domains": True,
    }
    check(json.loads(json.dumps(record)))
    title = render(record).splitlines()[0]
    assert title.endswith(
        "batch 128, 1–4 classes in each batch, long tail 3:1, domains mixed, 1 unknown class, mean ± std of 2 runs."
    )
    assert f"in no number but the AUROC: {record['data']['unknown_classes'][0]}." in render(record)
    record["stream"] |= {"kind": "dirichlet", "gamma": 0.01, "classes_present": None}
    assert stream_words(record)[0] == "Dirichlet stream γ = 0.01"
    del record["stream"], record["data"]["unknown_classes"]
    assert stream_words(record) == []
    check(record)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "shuffled"}, r"stream: 'shuffled'; allowed are iid, sorted and dirichlet:GAMMA"),
        ({"stream": "dirichlet"}, "stream: 'dirichlet'; allowed are"),
        ({"stream": "dirichlet:x", "setting": "online"}, "GAMMA is a number, such as 0.1"),
        ({"stream": "dirichlet:-1", "setting": "online"}, "GAMMA: -1.0; allowed are numbers above 0"),
        ({"stream": "sorted"}, "'sorted' is an order of batches.*--setting online or episodic"),
        ({"classes_present": "4-1"}, "classes_present: '4-1'; a number of classes of at least 1"),
        ({"classes_present": 0}, "classes_present: 0; a number"),
        ({"classes_present": 2, "stream": "sorted", "setting": "online"}, "leave out --stream sorted"),
        ({"classes_present": 2, "protocol": "watt", "setting": "online"}, "protocol 'watt' drops none; use full"),
        ({"classes_present": 7}, "classes_present: 7, but the data set has 6 classes"),
        ({"long_tail": 0.5}, "long_tail: 0.5; allowed are numbers of at least 1"),
        ({"long_tail": 2, "forgetting": "clean"}, "forgetting: is measured on whole domains"),
        ({"unknown_classes": 1, "methods": ["linear-tca:reference"]}, "an oracle.*leave it out"),
    ],
    ids=str,
)
def test_what_makes_no_stream_is_one_line(options, says):
    with pytest.raises(ValueError, match=says) as error:
        clip_tca.evaluate("synthetic", **{"methods": ["zero-shot"], **options})
    assert "\n" not in str(error.value)


def test_runs_and_streams_come_from_the_command_line_and_from_recipes(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        "[all]\ndataset = 'synthetic'\nmethod = ['zero-shot']\nsetting = 'online'\nmetric = ['ece', 'macro-f1']\n"
        "[[run]]\nstream = 'dirichlet:0.1'\nruns = 3\n[[run]]\nclasses_present = '1-2'\nmix_domains = true\nseeds = 3\n"
    )
    assert main(["eval", "--recipe", str(recipe), "--runs", "2", "--output", str(tmp_path / "r.json")]) == 0
    first, second = json.loads((tmp_path / "r.json").read_text())["records"]
    assert (first["stream"]["gamma"], first["seeds"], second["seeds"]) == (0.1, [0, 1], [0, 1])
    assert second["stream"]["classes_present"] == [1, 2]
    assert second["stream"]["mix_domains"]
    assert capsys.readouterr().out.count("ECE, %") == 2
