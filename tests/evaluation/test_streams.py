"""Streams: which images a run shows, in which order and batches; what is drawn is the same for every method."""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np
import pytest
import torch

import clip_tca
from clip_tca.data.embeddings import synthetic
from clip_tca.evaluation.streams import Draw, Stream, long_tail_counts, order, slots_of
from clip_tca.methods.registry import ADAPTERS
from clip_tca.results.record import check
from clip_tca.results.rendering import render
from clip_tca.results.table import stream_words

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


@pytest.mark.parametrize("protocol", ["full", "watt", "kept"])
def test_without_options_a_run_is_the_shuffle_it_always_was(protocol):
    draw = drawn(labels=torch.zeros(50, dtype=torch.long), seed=3, protocol=protocol, batch=8)
    assert torch.equal(draw.seen, order(50, protocol, 8, 3))
    assert draw.sizes == [8] * 6 + ([2] if protocol == "full" else [])


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


def test_the_smaller_gamma_the_fewer_classes_in_a_batch():
    classes = [
        np.mean([len(set(part)) for seed in range(20) for part in batches(drawn(f"dirichlet:{gamma}", seed=seed))])
        for gamma in (100, 0.1, 0.001)
    ]
    assert classes[0] > 3.9
    assert classes[0] > classes[1] > classes[2]


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
    chosen = set()
    for seed in range(5):
        draw = drawn(setting="transductive", classes_present=2, seed=seed)
        assert torch.bincount(LABELS[draw.seen], minlength=4).sort().values.tolist() == [0, 0, 64, 64]
        chosen.add(tuple(LABELS[draw.seen].unique().tolist()))
    assert len(chosen) > 1  # drawn anew for every seed
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


def correct(record: dict, method: str) -> dict[str, int]:
    return {row["domain"]: row["correct"] for row in record["rows"] if row["method"] == method and row["seed"] == 0}


@pytest.mark.parametrize(
    "options",
    [{"stream": "sorted"}, {"stream": "dirichlet:0.01"}, {"classes_present": "1-3"}, {"long_tail": 5}],
    ids=str,
)
def test_an_online_run_is_the_loop_over_its_batches(options):
    data, methods = synthetic(0), ["zero-shot", "linear-tca"]
    shown = {"setting": "online", "batch_size": 300, "domains": ["shifted"]}
    record = clip_tca.evaluate("synthetic", methods=methods, **shown, **options)
    (z, y), g = data.domains["shifted"], data.classifier()
    draw = drawn(options.get("stream", "iid"), y, batch=300, **{k: v for k, v in options.items() if k != "stream"})
    adapter, right = ADAPTERS["linear-tca"].build(g, refresh=1), 0
    for part in draw.seen.split(draw.sizes):
        right += int((adapter.partial_fit(z[part]).predict(z[part]) == y[part]).sum())
    assert correct(record, "linear-tca") == {"shifted": right}
    assert correct(record, "zero-shot") == {"shifted": int((g.predict(z[draw.seen]) == y[draw.seen]).sum())}
    assert record["rows"][0]["images"] == record["rows"][0]["divisor"] == len(draw.seen)


def test_mixed_domains_are_one_stream_with_rows_by_domain():
    data = synthetic(0)
    options = {"methods": ["linear-tca"], "setting": "online", "batch_size": 300, "mix_domains": True, "examples": 1}
    record = clip_tca.evaluate("synthetic", **options)
    z, y = (torch.cat(parts) for parts in zip(*data.domains.values(), strict=True))
    g = data.classifier()
    adapter, predicted = ADAPTERS["linear-tca"].build(g, refresh=1), torch.empty(len(y), dtype=torch.long)
    for part in order(len(y), "full", 300, 0).split(300):
        predicted[part] = adapter.partial_fit(z[part]).predict(z[part])
    sizes = [len(labels) for _, labels in data.domains.values()]
    after, before = (
        {name: int(part.sum()) for name, part in zip(data.domains, right.split(sizes), strict=True)}
        for right in (predicted == y, g.predict(z) == y)
    )
    assert correct(record, "linear-tca") == after
    for group in record["examples"]["groups"]:
        gained = after[group["domain"]] - before[group["domain"]]
        assert group["counts"]["fixed"] - group["counts"]["broken"] == gained


def test_the_record_says_what_was_drawn_and_can_be_read_again():
    drawing = {"setting": "episodic", "classes_present": "1-4", "long_tail": 3, "mix_domains": True}
    record = clip_tca.evaluate("synthetic", methods=["zero-shot"], seeds=2, **drawing)
    said = {"kind": "iid", "gamma": None, "classes_present": [1, 4], "long_tail": 3, "mix_domains": True}
    assert record["stream"] == said
    check(json.loads(json.dumps(record)))
    assert "1–4 classes in each batch, long tail 3:1, domains mixed" in render(record).splitlines()[0]
    record["stream"] |= {"kind": "dirichlet", "gamma": 0.01, "classes_present": None}
    assert stream_words(record)[0] == "Dirichlet stream γ = 0.01"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "shuffled"}, r"stream: 'shuffled'; allowed are iid, sorted and dirichlet:GAMMA"),
        ({"stream": "dirichlet:x", "setting": "online"}, "GAMMA is a number, such as 0.1"),
        ({"stream": "dirichlet:-1", "setting": "online"}, "GAMMA: -1.0; allowed are numbers above 0"),
        ({"stream": "sorted"}, "'sorted' is an order of batches.*--setting online or episodic"),
        ({"classes_present": "4-1"}, "classes_present: '4-1'; a number of classes of at least 1"),
        ({"classes_present": 2, "stream": "sorted", "setting": "online"}, "leave out --stream sorted"),
        ({"classes_present": 2, "protocol": "watt", "setting": "online"}, "protocol 'watt' drops none; use full"),
        ({"classes_present": 7}, "classes_present: 7, but the data set has 6 classes"),
        ({"long_tail": 0.5}, "long_tail: 0.5; allowed are numbers of at least 1"),
    ],
    ids=str,
)
def test_what_makes_no_stream_is_one_line(options, says):
    with pytest.raises(ValueError, match=says) as error:
        clip_tca.evaluate("synthetic", **{"methods": ["zero-shot"], **options})
    assert "\n" not in str(error.value)
