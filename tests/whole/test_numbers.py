"""The same run gives the same predictions, whatever the number of threads and the order of the images.

Sums are then taken in another order, so the last bits of the logits may differ: by how much is in
tests/robustness/README.md (Reproducibility). A prediction could change only where two classes are closer than that.
"""

from __future__ import annotations

import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.datasets.synthetic import synthetic

ADAPTERS = {
    "linear": LinearTCA,
    "paper": lambda g: LinearTCA(g, k=20, shares="global", solver="gradient"),
    "conditional": ConditionalTCA,
    "mlp": lambda g: MLPTCA(g, steps=3),
}
LIMITS = {"linear": 1e-3, "paper": 1e-3, "conditional": 1e-3, "mlp": 0.05}
"""Of the difference of logits that span 20: several times what was measured. Adam divides by gradients near zero."""


@pytest.fixture(scope="module", params=["synthetic", "pacs"])
def domain(request) -> tuple[ZeroShotClassifier, torch.Tensor]:
    if request.param == "pacs":
        data = request.getfixturevalue("pacs")
        return ZeroShotClassifier(data.text, data.scale), data.domains["art_painting"][0][::3]
    data = synthetic(0, 5, 48, 80)
    return ZeroShotClassifier(data.text, data.scale), data.domains["shifted"][0]


def check_same(found: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    """The same predictions, from logits that differ by rounding."""
    assert float((found - wanted).abs().max()) < limit
    best = wanted.topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > 0
    assert torch.equal(found.argmax(dim=1), wanted.argmax(dim=1))


@pytest.mark.parametrize("name", ADAPTERS)
def test_one_and_two_threads_give_the_same_predictions(name, domain):
    g, z = domain
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(ADAPTERS[name](g).fit(z).logits(z))
    finally:
        torch.set_num_threads(before)
    check_same(found[1], found[0], LIMITS[name])


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_order_of_the_images_does_not_matter(name, domain):
    g, z = domain
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    shuffled = ADAPTERS[name](g).fit(z[order]).logits(z[order])
    check_same(shuffled[order.argsort()], ADAPTERS[name](g).fit(z).logits(z), LIMITS[name])


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_same_run_twice_gives_the_same_bits(name, domain):
    g, z = domain
    assert torch.equal(ADAPTERS[name](g).fit(z).logits(z), ADAPTERS[name](g).fit(z).logits(z))


@pytest.mark.parametrize("memory", [48, 64])
def test_where_a_sample_overflows_the_order_decides_which_images_are_in_it(memory):
    """What is documented as the exception: ``memory`` rows are kept by arrival number."""
    data = synthetic(0, 4, 24, 60)
    g, z = ZeroShotClassifier(data.text, data.scale), data.domains["shifted"][0]
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    plain, other = (ConditionalTCA(g, memory=memory).fit(rows) for rows in (z, z[order]))
    assert float((plain.weight_ - other.weight_).abs().max()) > LIMITS["conditional"]
