from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.adapters.pseudo_source import SHARES, PseudoSourceBank, reference_quota, select, uncertainty
from tests.conftest import Shifted

STREAMABLE = [name for name in SHARES if name != "oracle"]


def test_distance_and_entropy_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert float(uncertainty(p, "distance")[0]) == pytest.approx(0.3**2 + 0.2**2 + 0.1**2)
    entropy = -(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    assert uncertainty(p, "entropy").tolist() == pytest.approx([entropy, math.log(3)])


@pytest.mark.parametrize("kind", ["distance", "entropy"])
def test_order_survives_where_the_largest_probability_rounds_to_one(kind):
    logits = torch.tensor([[0.0, -60.0], [0.0, -50.0], [0.0, -40.0]], dtype=torch.float64)
    p = logits.log_softmax(dim=1).exp()
    assert (p.max(dim=1).values == 1).all()
    scores = uncertainty(p, kind)
    assert scores[0] < scores[1] < scores[2]


def test_selection_takes_the_smallest_of_each_group_and_ties_by_arrival():
    score = torch.tensor([3.0, 1.0, 1.0, 2.0, 1.0, 0.0])
    group = torch.tensor([0, 0, 0, 1, 0, 1])
    assert select(score, group, torch.tensor([2, 1])).tolist() == [1, 2, 5]
    assert select(score, group, torch.tensor([0, 9])).tolist() == [3, 5]


def test_reference_quotas_round_down_and_count_against_class_0():
    assert reference_quota(torch.tensor([3, 5, 1]), 4).tolist() == [4, 6, 1]


def test_reference_selection_is_the_public_code_s(shifted):
    """Against a plain loop: sort each predicted class by entropy and take the first ⌊k·nᵢ/n₀⌋."""
    g, z, y = shifted.g, shifted.z, shifted.y
    y = torch.where(torch.arange(len(y)) % 3 == 0, torch.zeros_like(y), y)  # unequal classes
    p = g.probabilities(z.double())
    entropy = -(p * p.log()).sum(dim=1)
    chosen = []
    for c in range(g.n_classes):
        members = (p.argmax(dim=1) == c).nonzero()[:, 0]
        take = math.floor(7 * int((y == c).sum()) / int((y == 0).sum()))
        chosen += members[entropy[members].argsort()][:take].tolist()
    tca = LinearTCA.reference(g, k=7).fit(z, labels=y)
    torch.testing.assert_close(tca.pseudo_source_, z[sorted(chosen)], rtol=0, atol=1e-6)
    torch.testing.assert_close(tca.pseudo_source_mean_, z[sorted(chosen)].double().mean(dim=0), rtol=0, atol=1e-7)


def test_global_is_the_k_most_certain_overall(shifted):
    tca = LinearTCA.paper(shifted.g, k=10).fit(shifted.z)
    p = shifted.g.probabilities(shifted.z.double())
    most = uncertainty(p).argsort()[:10]
    torch.testing.assert_close(tca.pseudo_source_mean_, shifted.z[most].double().mean(dim=0), rtol=0, atol=1e-7)
    assert int(tca.pseudo_source_counts_.sum()) == 10


def test_uniform_takes_k_of_each_predicted_class(shifted):
    assert LinearTCA(shifted.g, shares="uniform", k=5).fit(shifted.z).pseudo_source_counts_.tolist() == [5] * 4


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(2, 60),
    cuts=st.lists(st.integers(1, 59), max_size=8),
    k=st.integers(1, 12),
    shares=st.sampled_from(STREAMABLE),
    kind=st.sampled_from(["distance", "entropy"]),
    copies=st.booleans(),
    seed=st.integers(0, 5),
)
def test_the_bank_of_a_stream_is_the_one_shot_bank(n, cuts, k, shares, kind, copies, seed):
    generator = torch.Generator().manual_seed(seed)
    g = ZeroShotClassifier(torch.randn(3, 5, generator=generator), scale=20)
    z = torch.nn.functional.normalize(torch.randn(n, 5, generator=generator), dim=1)
    if copies:
        z[n // 2 :] = z[: n - n // 2].clone()  # exact ties
    device, dtype = z.device, z.dtype
    whole, stream = (PseudoSourceBank(g, k, shares, kind, device, dtype) for _ in range(2))
    whole.update(z)
    for a, b in itertools.pairwise(sorted({0, n, *(c for c in cuts if c < n)})):
        stream.update(z[a:b])
    assert torch.equal(stream.rows, whole.rows)
    assert torch.equal(stream.score, whole.score)
    assert torch.equal(stream.group, whole.group)
    assert torch.equal(stream.predicted, whole.predicted)
    assert len(stream.rows) <= k * (1 if shares == "global" else 3)


@pytest.mark.parametrize(("images", "k"), [(20, 10), (60, 12), (400, 20)])
def test_auto_k_is_a_fifth_of_the_largest_class_between_10_and_20(images, k):
    data = Shifted(classes=4, dim=24, images=images, domain="clean")
    assert int(LinearTCA(data.g, shares="uniform").fit(data.z).pseudo_source_counts_.max()) == k


def test_unknown_uncertainty_lists_the_allowed():
    with pytest.raises(ValueError, match="'margin'; allowed are distance, entropy"):
        uncertainty(torch.ones(1, 2) / 2, "margin")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["distance", "entropy"])
@pytest.mark.parametrize("shares", ["uniform", "global"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 5000.0])
def test_a_first_look_in_float32_changes_nothing(kind, shares, scale, monkeypatch):
    generator = torch.Generator().manual_seed(2)
    text = torch.nn.functional.normalize(torch.randn(6, 16, generator=generator), dim=1)
    z = torch.nn.functional.normalize(text[torch.arange(3000) % 5] + 0.3 * torch.randn(3000, 16, generator=generator))
    judged = []
    exactly = ZeroShotClassifier.log_probabilities
    monkeypatch.setattr(
        ZeroShotClassifier, "log_probabilities", lambda g, rows: judged.append(len(rows)) or exactly(g, rows)
    )
    banks = []
    for size in (1000, 200):  # the second: all rows in float64
        bank = PseudoSourceBank(ZeroShotClassifier(text, scale), 10, shares, kind, torch.device("cpu"), torch.float32)
        for part in z.split(size):
            bank.update(part)
        banks.append(bank)
    first, second = banks
    assert torch.equal(first.rows, second.rows)
    torch.testing.assert_close(first.score, second.score)
    assert torch.equal(first.predicted, second.predicted)
    assert sum(judged) - 3000 < 3000 or scale == 5000  # and most rows need no second look
