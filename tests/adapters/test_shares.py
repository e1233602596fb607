from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from clip_tca import LinearClassifier, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.base import Adapter
from clip_tca.adapters.shares import CANDIDATES, row_weights, share_vector
from clip_tca.adapters.statistics import Moments, ledoit_wolf_shrinkage
from clip_tca.cli.options import read_shares
from tests.conftest import Shifted


@pytest.fixture(scope="module")
def unequal() -> tuple[ZeroShotClassifier, torch.Tensor, torch.Tensor]:
    """Six classes with 240, 120, 60, 30, 0 and 0 images."""
    data = Shifted(classes=6, dim=64, images=240)
    keep = torch.cat([(data.y == c).nonzero()[:n, 0] for c, n in enumerate((240, 120, 60, 30))])
    return ZeroShotClassifier(data.g.text, data.g.scale, classes=list("abcdef")), data.z[keep], data.y[keep]


def accuracy(adapter: Adapter | LinearClassifier, z: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * (adapter.predict(z) == y).double().mean().item()


def test_shares_in_every_form_are_the_same(unequal):
    g, z, y = unequal
    counts = torch.bincount(y, minlength=6)
    named = dict(zip("abcdef", counts.tolist(), strict=True))
    forms = [counts, counts.numpy(), tuple(counts.tolist()), (counts / counts.sum()).tolist(), named]
    maps = [LinearTCA(g, shares=form).fit(z).W_ for form in forms]
    for other in maps[1:]:
        torch.testing.assert_close(other, maps[0], rtol=1e-6, atol=1e-9)


def test_who_knows_the_shares_gains_most(unequal):
    g, z, y = unequal
    known = accuracy(LinearTCA(g, shares=torch.bincount(y, minlength=6)).fit(z), z, y)
    assert known > accuracy(LinearTCA(g).fit(z), z, y) + 2
    assert known > accuracy(LinearTCA(g, shares="uniform").fit(z), z, y) + 5


def test_every_predicted_class_gives_its_most_certain_and_weighs_its_share(unequal):
    g, z, _ = unequal
    shares = [0.4, 0.3, 0.2, 0.06, 0.04, 0.0]
    tca = LinearTCA(g, k=5, shares=shares).fit(z)
    assert tca.pseudo_source_counts_.tolist() == [5] * 6
    rows, predicted = tca.pseudo_source_.double(), g.predict(tca.pseudo_source_)
    mean = sum(share * rows[predicted == c].mean(dim=0) for c, share in enumerate(shares))
    torch.testing.assert_close(tca.pseudo_source_mean_, mean, rtol=1e-6, atol=1e-9)
    assert tca.shares_.tolist() == pytest.approx(shares)


def test_estimated_shares_are_those_that_agree_best_with_conditional_tca(unequal, tmp_path):
    g, z, _ = unequal
    tca = LinearTCA(g).fit(z)
    figures = tca.diagnose(tca.state(), g)
    assert list(figures["agreement"]) == list(CANDIDATES)
    assert max(figures["agreement"].values()) > figures["agreement"]["zero-shot"]
    assert sum(figures["shares"]) == pytest.approx(1, abs=1e-3)
    tca.save(tmp_path / "state.safetensors")
    assert torch.equal(LinearTCA.load(tmp_path / "state.safetensors", g).predict(z), tca.predict(z))


def test_the_old_name_of_the_option(unequal):
    g, z, _ = unequal
    old, new = LinearTCA(g, balance="predicted"), LinearTCA(g, shares="predicted")
    assert old.parameters() == new.parameters()
    assert torch.equal(old.fit(z).W_, new.fit(z).W_)


def test_weights_of_rows():
    shares, group = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0, 0, 2])
    expected = torch.tensor([0.25, 0.25, 0.2], dtype=torch.float64) / 0.7  # class 1 has no row
    torch.testing.assert_close(row_weights(shares, group), expected)
    absent = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(row_weights(absent, group), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_weighted_moments_are_those_of_repeated_rows(generator):
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    times = torch.tensor([1, 2, 1, 3, 1, 1])
    repeated, weighted = Moments.of(z.repeat_interleave(times, dim=0)), Moments.weighted(z, times.double() / 9)
    torch.testing.assert_close(weighted.mean, repeated.mean)
    torch.testing.assert_close(weighted.scatter / weighted.n, repeated.scatter / repeated.n)
    equal = Moments.weighted(z, torch.full((6,), 1 / 6, dtype=torch.float64))
    torch.testing.assert_close(equal.covariance(), Moments.of(z).covariance())
    torch.testing.assert_close(ledoit_wolf_shrinkage(equal), ledoit_wolf_shrinkage(Moments.of(z)))


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"a": 1.0}, "none for 'b'"),
        ({"a": 1.0, "b": 1.0, "x": 1.0}, "'x' is no class"),
        ([1.0, float("nan")], "nan; a number"),
        (["1", 2], "'1'; a number"),
    ],
)
def test_wrong_shares_are_named(shares, says):
    g = ZeroShotClassifier(torch.eye(2), classes=["a", "b"])
    with pytest.raises(ValueError, match=says):
        share_vector(shares, g)


def test_shares_from_a_file(tmp_path):
    texts = {"a.txt": "3\n1\n", "b.csv": "dog,3\ncat;1\n", "c.json": json.dumps({"dog": 3, "cat": 1})}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert read_shares(tmp_path / "a.txt") == [3.0, 1.0]
    assert read_shares(tmp_path / "b.csv") == read_shares(tmp_path / "c.json") == {"dog": 3.0, "cat": 1.0}
    for name, says in {"missing.txt": "no such file", "bad.csv": "can't be read"}.items():
        (tmp_path / "bad.csv").write_text("dog,many\n")
        with pytest.raises(ValueError, match=says):
            read_shares(tmp_path / name)


def test_an_array_of_shares_is_kept_as_plain_numbers():
    assert LinearTCA(ZeroShotClassifier(torch.eye(2)), shares=np.array([1.0, 3.0])).shares == [1.0, 3.0]


def test_a_class_that_attracts_others_does_not_lead_the_estimate_astray(pacs):
    """An elephant in every third sketch where there is one in five: estimated shares gain as much as equal ones."""
    z, y = pacs.domains["sketch"]
    z, y = z[::2].float(), y[::2]
    text = pacs.classifier()
    bias, low, high = torch.zeros(7), 0.0, 20.0
    for _ in range(20):
        bias[1] = (low + high) / 2
        hub = LinearClassifier(text.weight, bias.clone())
        attracted = float((hub.predict(z) == 1).double().mean()) > 0.35
        low, high = (low, float(bias[1])) if attracted else (float(bias[1]), high)
    before = accuracy(hub, z, y)
    estimated, equal = (accuracy(LinearTCA(hub, shares=s).fit(z), z, y) for s in ("estimated", "uniform"))
    assert estimated > before + 3
    assert estimated > equal - 0.5
