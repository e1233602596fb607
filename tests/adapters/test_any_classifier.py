"""Every adapter works with any linear classifier: a weight and a bias, not only texts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier

ADAPTERS = [LinearTCA, MLPTCA, ConditionalTCA]


@pytest.fixture
def head(shifted, generator):
    """A linear head with a bias, for features that are not of unit length."""
    return LinearClassifier(shifted.g.weight, 3 * torch.randn(shifted.g.n_classes, generator=generator))


def features(shifted) -> torch.Tensor:
    return 1.5 * shifted.z + 0.1


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapted_logits_are_those_of_the_head_for_the_moved_features(adapter, shifted, head):
    z = features(shifted).double()
    fitted = adapter(head).fit(z)
    moved, logits = fitted.adapt(z)
    offset = head.logits(moved) - logits
    if adapter is ConditionalTCA:  # the same up to what is common to all classes of an image
        offset = offset - offset.mean(dim=1, keepdim=True)
    torch.testing.assert_close(offset, torch.zeros_like(offset), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "bias", "classes", "says"),
    [
        (torch.ones(1, 4), None, None, "weight: 1 class; at least 2"),
        (torch.ones(3), None, None, "weight: expected a matrix"),
        (torch.ones(3, 4), torch.ones(2), None, r"bias: shape \(2,\), but the weight has 3 classes"),
        (torch.ones(3, 4), torch.tensor([0, 0, torch.nan]), None, "bias: 1 of 3 rows hold NaN"),
        (torch.full((3, 4), torch.inf), None, None, "weight: 3 of 3 rows hold NaN or infinity"),
        (torch.ones(3, 4), None, ["cat", "dog"], "classes: 2 names, but there are 3 classes"),
        (torch.ones(3, 4), None, "cat", "classes: 'cat'; a list of names"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_one_line(weight, bias, classes, says):
    with pytest.raises(ValueError, match=says):
        LinearClassifier(weight, bias, classes=classes)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_features_of_a_head_are_taken_as_they_are_and_embeddings_of_prompts_at_unit_length(adapter, shifted):
    """Only where length counts does it matter that some rows are longer."""
    weight, lengths = shifted.g.weight, torch.linspace(0.5, 40, len(shifted.z))[:, None]

    def lengths_count(tca) -> bool:
        short, long = (tca.fit(rows).predict_proba(rows) for rows in (shifted.z, lengths * shifted.z))
        return float((short - long).abs().max()) > 0.01

    assert lengths_count(adapter(LinearClassifier(weight)))
    assert not lengths_count(adapter(ZeroShotClassifier(shifted.g.text, shifted.g.scale)))
    assert not lengths_count(adapter(LinearClassifier(weight, normalize=True)))
    assert not lengths_count(adapter(LinearClassifier(weight), normalize=True))
    assert lengths_count(adapter(shifted.g, normalize=False))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_that_contradicts_its_classifier_is_refused(adapter, shifted):
    g = LinearClassifier(shifted.g.weight, normalize=True)
    with pytest.raises(ValueError, match="normalize: False, but the classifier scales rows to unit length; leave it"):
        adapter(g, normalize=False).fit(shifted.z)


def public_code(g: LinearClassifier) -> LinearTCA:
    return LinearTCA(g, k=20, shares="oracle", uncertainty="entropy", solver="gradient")


@pytest.mark.parametrize("adapter", [*ADAPTERS, public_code])
@pytest.mark.parametrize("factor", [0.01, 300.0])
def test_the_unit_in_which_features_are_measured_changes_no_prediction(adapter, factor, shifted, head):
    if adapter == public_code and factor < 1:
        pytest.skip("the public code's Adam has a constant beside the slope, which small slopes notice")
    z = features(shifted).double()
    scaled = adapter(LinearClassifier(head.weight / factor, head.bias)).fit(factor * z, labels=shifted.y)
    plain = adapter(head).fit(z, labels=shifted.y)
    same = (scaled.predict(factor * z) == plain.predict(z)).double().mean()
    assert float(same) > 0.99
    if adapter is not MLPTCA:  # Adam amplifies rounding
        torch.testing.assert_close(scaled.logits(factor * z), plain.logits(z), rtol=1e-3, atol=1e-3)


def test_the_last_layer_of_a_model_is_a_classifier(shifted):
    layer = torch.nn.Linear(24, 4)
    g = LinearClassifier.from_module(layer, classes=["a", "b", "c", "d"])
    torch.testing.assert_close(g.logits(shifted.z), layer(shifted.z).detach())
    assert g.classes == ("a", "b", "c", "d")
    assert not g.weight.requires_grad
    with torch.no_grad():
        layer.weight.zero_()
    assert bool(g.weight.any()), "training goes on without g"
    without = torch.nn.Linear(24, 4, bias=False)
    torch.testing.assert_close(LinearClassifier.from_module(without).logits(shifted.z), without(shifted.z).detach())
    with pytest.raises(TypeError, match=r"module: a Sequential; a torch\.nn\.Linear is needed, the model's last layer"):
        LinearClassifier.from_module(torch.nn.Sequential(layer))


def test_label_free_gains_on_a_fine_tuned_network(resnet18):
    """Whole domains: LinearTCA gains and never loses a point, ConditionalTCA gains 3."""
    gains: dict[type, list[float]] = {LinearTCA: [], ConditionalTCA: []}
    for data in resnet18.values():
        g, (z, y) = data.classifier(), data.domains["target"]
        for adapter, found in gains.items():
            found.append(100 * (adapter(g).fit(z).score(z, y) - g.score(z, y)))
    assert min(gains[LinearTCA]) > -1
    assert np.mean(gains[LinearTCA]) > 0
    assert np.mean(gains[ConditionalTCA]) >= 3
    assert min(gains[ConditionalTCA]) > 1


@pytest.mark.parametrize("adapter", [LinearTCA, ConditionalTCA])
def test_the_order_of_features_that_are_mostly_zero_does_not_matter(adapter, generator):
    """After a ReLU many coordinates are equal, so rows can't be told apart by one of them."""
    z = torch.randn(900, 32, generator=generator).relu()
    z[:, 0] = 0
    head = LinearClassifier(torch.randn(5, 32, generator=generator))
    order = torch.randperm(len(z), generator=generator)
    shuffled = adapter(head).fit(z[order]).logits(z)
    torch.testing.assert_close(shuffled, adapter(head).fit(z).logits(z), rtol=0, atol=2e-3)


@pytest.mark.parametrize("make", [LinearTCA, ConditionalTCA])
@pytest.mark.parametrize("peak", [3e38, -2e15])
def test_a_head_whose_logits_would_overflow_is_refused_before_the_first_row(make, peak):
    weight = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    weight[2, 5] = peak
    said = f"weight and bias reach {abs(peak):.0e}; values up to 1e+15 are allowed"
    with pytest.raises(ValueError, match=re.escape(said)):
        make(LinearClassifier(weight)).fit(torch.randn(50, 24))
