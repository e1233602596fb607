"""Layers by oneDNN give what PyTorch's own layers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clip_tca.encoding.onednn import with_onednn
from tests.methods.small import VIT, clip

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def attention(**options) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}).eval()


def difference(model: nn.Module, work) -> float:
    """How far the results of ``work`` with the model and with its copy are from each other."""
    with torch.inference_mode():
        return float((work(with_onednn(model)) - work(model)).abs().max())


@pytest.mark.parametrize(
    ("layer", "work"),
    [
        (nn.Linear(8, 4), lambda layer: layer(X)),
        (nn.Linear(8, 4, bias=False), lambda layer: layer(X[0])),
        (nn.Linear(5, 4), lambda layer: layer(X.transpose(1, 2))),
        (attention(), lambda layer: layer(X, X, X, need_weights=False)[0]),
        (attention(bias=False), lambda layer: layer(X, X, X, need_weights=False, attn_mask=None)[0]),
        (attention(), lambda layer: layer(X, X, X)[1]),
        (attention(), lambda layer: layer(X, X, X, need_weights=False, attn_mask=LATER)[0]),
        (attention(), lambda layer: layer(X[:, :2], X, X, need_weights=False)[0]),
        (attention(), lambda layer: layer(X[0], X[0], X[0], need_weights=False)[0]),
        (attention(batch_first=False), lambda layer: layer(X, X, X, need_weights=False)[0]),
        (attention(add_bias_kv=True), lambda layer: layer(X, X, X, need_weights=False)[0]),
        (attention(add_zero_attn=True), lambda layer: layer(X, X, X, need_weights=False)[0]),
        (attention(kdim=5), lambda layer: layer(X, X[..., :5], X, need_weights=False)[0]),
    ],
)
def test_every_layer_is_the_same(layer, work):
    assert difference(layer, work) < 1e-6


def test_the_towers_of_a_clip_are_the_same():
    model = clip(VIT).eval()
    images = torch.rand(2, 3, VIT["image_size"], VIT["image_size"])
    assert difference(model, lambda model: model.encode_image(images)) < 1e-5
    assert difference(model, lambda model: model.encode_text(torch.ones(2, 77, dtype=torch.int64))) < 1e-5


def test_it_is_onednn_that_computes():
    x = torch.ones(2, 100, 256)  # PyTorch keeps small convolutions to itself
    with torch.inference_mode(), torch.profiler.profile() as seen:
        with_onednn(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8)))(x)
        with_onednn(nn.MultiheadAttention(256, 2, batch_first=True).eval())(x, x, x, need_weights=False)
    assert sum(event.count for event in seen.key_averages() if event.key == "aten::mkldnn_convolution") == 4


def test_the_copy_has_the_weights_of_the_model_and_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(5))
    fast = with_onednn(model)
    with torch.no_grad():
        model[0].weight.zero_()
        assert torch.equal(fast[0](X), model[0].bias.expand(3, 5, 4))
    assert fast[1].running_mean is model[1].running_mean
    assert model[0](X).requires_grad
