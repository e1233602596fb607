"""Single images of a stream wait to be observed together; nobody may notice."""

from __future__ import annotations

import pytest
import torch

from clip_tca import ConditionalTCA, LinearTCA
from tests.conftest import Shifted


@pytest.mark.parametrize("make", [LinearTCA, ConditionalTCA])
def test_a_buffer_that_is_used_again_for_every_image(make, shifted):
    stream, image = make(shifted.g, normalize=False), torch.empty(1, shifted.z.shape[1])
    for row in shifted.z:
        image.copy_(row)
        stream.partial_fit(image).predict(image)
    whole = make(shifted.g, normalize=False).fit(shifted.z)
    torch.testing.assert_close(stream.W_, whole.W_, rtol=0, atol=1e-7)
    assert stream.n_seen_ == len(shifted.z)


@pytest.mark.parametrize("make", [LinearTCA, ConditionalTCA])
def test_merging_while_images_wait(make, shifted):
    half = len(shifted.z) // 2
    streams = [make(shifted.g).partial_fit(part[:-3]) for part in (shifted.z[:half], shifted.z[half:])]
    for stream, part in zip(streams, (shifted.z[:half], shifted.z[half:]), strict=True):
        for image in part[-3:].split(1):
            stream.predict(image)
            stream.partial_fit(image)
    whole = make(shifted.g).fit(shifted.z)
    torch.testing.assert_close(streams[0].merge(streams[1]).W_, whole.W_, rtol=0, atol=1e-7)


def test_logits_of_another_method_come_after_the_images_that_wait(shifted):
    first, last = shifted.z[:-5], shifted.z[-5:]
    stream = LinearTCA(shifted.g, shares="global", k=8).partial_fit(first)
    stream.predict(first)
    stream.partial_fit(last[:2])
    stream.partial_fit(last[2:], logits=shifted.g.logits(last[2:]))
    whole = LinearTCA(shifted.g, shares="global", k=8).fit(shifted.z)
    torch.testing.assert_close(stream.W_, whole.W_, rtol=0, atol=1e-7)


def test_a_stream_that_comes_to_new_classes_is_solved_again_at_once():
    data = Shifted(classes=6, dim=64, images=240)
    in_order = data.y.argsort(stable=True)
    z, y = data.z[in_order], data.y[in_order]
    solved = []

    class Counted(ConditionalTCA):
        def solve(self):
            solved.append(self.n_seen_)
            return super().solve()

    def gain(order):
        tca = Counted(data.g)
        after = torch.cat([tca.partial_fit(batch).predict(batch) for batch in z[order].split(16)])
        return float(((after == y[order]).double() - (data.g.predict(z[order]) == y[order]).double()).mean())

    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    assert gain(shuffled) > 0
    usual = len(solved)
    solved.clear()
    assert gain(torch.arange(len(y))) > 0
    assert len(solved) > usual


def test_a_stream_that_nobody_predicts_keeps_no_rows_for_judging(shifted):
    stream = ConditionalTCA(shifted.g).fit(shifted.z)
    for row in shifted.z:
        stream.partial_fit(row[None])
    assert sum(map(len, stream._schedule._unjudged)) == 16
