"""Parts of a stream, fitted apart and put together, are the stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.reservoir import Reservoir
from clip_tca.adapters.statistics import Moments, StreamMoments
from tests.conftest import Shifted

ADAPTERS = (LinearTCA, MLPTCA, ConditionalTCA)


@pytest.mark.parametrize("make", ADAPTERS)
def test_two_halves_make_the_whole(make, shifted):
    half = len(shifted.z) // 3
    whole = make(shifted.g).fit(shifted.z)
    merged = make(shifted.g).fit(shifted.z[:half]).merge(make(shifted.g).fit(shifted.z[half:]))
    assert merged.n_seen_ == len(shifted.z)
    torch.testing.assert_close(merged.logits(shifted.z), whole.logits(shifted.z), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(merged.transform(shifted.z), whole.transform(shifted.z), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", ADAPTERS)
def test_merging_changes_neither_and_the_merged_stream_goes_on(make, shifted):
    first, second = make(shifted.g).fit(shifted.z[:80]), make(shifted.g).fit(shifted.z[80:160])
    before = first.logits(shifted.z).clone(), second.logits(shifted.z).clone()
    merged = first.merge(second).partial_fit(shifted.z[160:])
    whole = make(shifted.g).fit(shifted.z)
    torch.testing.assert_close(merged.logits(shifted.z), whole.logits(shifted.z), atol=1e-4, rtol=1e-5)
    assert torch.equal(first.logits(shifted.z), before[0])
    assert torch.equal(second.logits(shifted.z), before[1])


def test_labels_of_an_oracle_are_merged_too(shifted):
    fit = LinearTCA.reference(shifted.g).fit
    whole = fit(shifted.z, labels=shifted.y).W_
    parts = [LinearTCA.reference(shifted.g).fit(shifted.z[i::2], labels=shifted.y[i::2]) for i in (0, 1)]
    torch.testing.assert_close(parts[0].merge(parts[1]).W_, whole)


def test_what_does_not_belong_together_is_refused(shifted):
    fitted = LinearTCA(shifted.g).fit(shifted.z)
    with pytest.raises(ValueError, match="LinearTCA and a ConditionalTCA"):
        fitted.merge(ConditionalTCA(shifted.g).fit(shifted.z))
    with pytest.raises(ValueError, match="k is 'auto' here and 5 there"):
        fitted.merge(LinearTCA(shifted.g, k=5).fit(shifted.z))
    other = ZeroShotClassifier(shifted.g.text.flip(0), shifted.g.scale)
    with pytest.raises(ValueError, match="class texts"):
        fitted.merge(LinearTCA(other).fit(shifted.z))
    with pytest.raises(ValueError, match="not fitted yet"):
        fitted.merge(LinearTCA(shifted.g))


# -- fit of batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ADAPTERS)
def test_an_iterable_of_batches_is_one_fit(make, shifted):
    whole = make(shifted.g).fit(shifted.z).logits(shifted.z)
    batches = (part.numpy() for part in shifted.z.split(50))
    torch.testing.assert_close(make(shifted.g).fit(batches).logits(shifted.z), whole, atol=1e-4, rtol=1e-5)


def test_an_earlier_fit_is_forgotten_or_kept_whole(shifted):
    tca = LinearTCA(shifted.g).fit(shifted.z[:100])
    before = tca.W_.clone()

    def broken():
        yield shifted.z[:50]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        tca.fit(broken())
    assert torch.equal(tca.W_, before)
    assert tca.n_seen_ == 100
    assert tca.fit(iter([shifted.z])).n_seen_ == len(shifted.z)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([], "no batches"),
        ([torch.ones(1, 24)], "1 row"),
        ([[1.0, 2.0]], "dimension 2, but the classifier has 24"),
        (7, "got int"),
    ],
)
def test_batches_that_are_none_are_refused(batches, reason, shifted):
    with pytest.raises((TypeError, ValueError), match=reason):
        LinearTCA(shifted.g).fit(batches)


def test_batches_go_without_labels(shifted):
    with pytest.raises(ValueError, match="without labels"):
        LinearTCA(shifted.g).fit([shifted.z], labels=shifted.y)


# -- folding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LinearTCA, ConditionalTCA])
def test_the_folded_classifier_is_the_adapted_one(make, shifted):
    tca = make(shifted.g).fit(shifted.z)
    head = tca.folded()
    assert head.weight.shape == (4, 24)
    torch.testing.assert_close(head.logits(3 * shifted.z), tca.logits(shifted.z), atol=1e-4, rtol=1e-5)
    layer = head.linear()
    assert isinstance(layer, torch.nn.Linear)
    unit = torch.nn.functional.normalize(shifted.z.float(), dim=1)
    torch.testing.assert_close(layer(unit), tca.logits(shifted.z), atol=1e-4, rtol=1e-5)


def test_a_perceptron_can_not_be_folded(shifted):
    with pytest.raises(ValueError, match="not linear"):
        MLPTCA(shifted.g).fit(shifted.z).folded()


def test_adapt_is_transform_and_logits(shifted):
    tca = LinearTCA(shifted.g).fit(shifted.z)
    moved, scores = tca.adapt(shifted.z.numpy())
    assert np.array_equal(moved, tca.transform(shifted.z.numpy()))
    assert np.array_equal(scores, tca.logits(shifted.z.numpy()))


# -- what it rests on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 2, 5, 8, 13])
def test_sums_do_not_depend_on_who_adds_them(segments, generator):
    z = torch.randn(segments * 40, 6, generator=generator)
    totals = []
    for processes in (1, 2, 3, segments):
        shares = [StreamMoments(6) for _ in range(processes)]
        for number, part in enumerate(z.split(40)):
            share = shares[number * processes // segments]
            share.update(part)
            share.end_segment(number)
        for later in reversed(shares[1:]):
            shares[0].merge(later)
        totals.append(shares[0].total())
    whole = Moments.of(z)
    torch.testing.assert_close(totals[0].scatter, whole.scatter)
    assert totals[0].n == whole.n
    for total in totals[1:]:
        assert torch.equal(total.scatter, totals[0].scatter)
        assert torch.equal(total.quartics, totals[0].quartics)


@pytest.mark.parametrize("cut", [1, 7, 60, 99])
def test_samples_of_parts_are_the_sample_of_the_whole(cut, generator):
    z = torch.randn(100, 3, generator=generator)

    def sample(rows, first=0):
        made = Reservoir(16, 3, torch.device("cpu"), torch.float32, first)
        for part in rows.split(9):
            made.update(part)
        return made

    whole, part = sample(z), sample(z[:cut])
    part.merge(sample(z[cut:], cut))
    assert torch.equal(part.rows(), whole.rows())
    assert part.seen == 100
    part.update(z[:5])  # and goes on
    whole.update(z[:5])
    assert torch.equal(part.rows(), whole.rows())


def test_samples_of_two_streams_stay_within_their_size():
    made = [Reservoir(16, 24, torch.device("cpu"), torch.float32) for _ in range(2)]
    for number, sample in enumerate(made):
        sample.update(Shifted().z[number * 50 : number * 50 + 50])
    made[0].merge(made[1])
    assert len(made[0].rows()) == 16
    assert made[0].seen == 100
    assert 4 <= int((made[0].order >= 50).sum()) <= 12  # about half of each
