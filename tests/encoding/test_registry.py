"""Models by their names: the prefix says which library."""

from __future__ import annotations

import pytest

from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.registry import make_encoder
from clip_tca.encoding.timm import TimmEncoder
from clip_tca.encoding.torchvision import TorchvisionEncoder
from clip_tca.encoding.transformers import TransformersEncoder


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("ViT-B-32", OpenClipEncoder),
        ("hf-hub:some/model", OpenClipEncoder),
        ("local-dir:folder", OpenClipEncoder),
        ("torchvision:resnet18", TorchvisionEncoder),
        ("timm:resnet18", TimmEncoder),
        ("transformers:openai/clip-vit-base-patch16", TransformersEncoder),
    ],
)
def test_the_prefix_chooses_the_library(model, kind):
    assert type(make_encoder(model, device="cpu")) is kind


def test_an_unknown_prefix_is_named():
    message = r"'keras:resnet': unknown prefix 'keras'; allowed are torchvision:, timm:, transformers:, .* of open_clip"
    with pytest.raises(ValueError, match=message):
        make_encoder("keras:resnet")
