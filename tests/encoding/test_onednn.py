"""Layers by oneDNN give what PyTorch's own layers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clip_tca.encoding.onednn import OneDNN
from tests.methods.small import VIT, clip

torch.manual_seed(0)
TOKENS = torch.randn(3, 5, 8)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def difference(work) -> float:
    """How far the results with and without oneDNN are from each other."""
    with torch.inference_mode():
        plain = work()
        with OneDNN():
            return float((work() - plain).abs().max())


@pytest.mark.parametrize(
    "work",
    [
        lambda: nn.functional.linear(TOKENS, TOKENS[0]),
        lambda: nn.functional.linear(TOKENS[0].T, TOKENS[0, :, :5], TOKENS[0, 0, :5]),
        lambda: nn.functional.linear(TOKENS.double(), TOKENS[0].double()),
        lambda: ATTENTION(TOKENS, TOKENS, TOKENS, need_weights=False)[0],
        lambda: ATTENTION(TOKENS, TOKENS, TOKENS)[1],
        lambda: ATTENTION(TOKENS, TOKENS, TOKENS, need_weights=False, attn_mask=LATER)[0],
        lambda: ATTENTION(TOKENS[:, :2], TOKENS, TOKENS, need_weights=False)[0],
        lambda: ATTENTION(TOKENS, TOKENS.flip(0), TOKENS, need_weights=False)[0],
    ],
    ids=["no bias", "transposed", "float64", "attention", "its weights", "masked", "other keys", "other queries"],
)
def test_every_layer_is_the_same(work):
    assert difference(work) < 1e-6


def test_the_image_and_the_text_tower_of_a_clip_are_the_same():
    model = clip(VIT).eval()
    images = torch.rand(2, 3, VIT["image_size"], VIT["image_size"])
    assert difference(lambda: model.encode_image(images)) < 1e-5
    assert difference(lambda: model.encode_text(torch.ones(2, model.context_length, dtype=torch.int64))) < 1e-5
