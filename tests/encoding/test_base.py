"""Models by their names, devices and precisions: the prefix says which library."""

from __future__ import annotations

import pytest
import torch

from clip_tca.core.machine import choose_device, choose_precision
from clip_tca.encoding.backbone import TimmEncoder, TorchvisionEncoder
from clip_tca.encoding.base import make_encoder
from clip_tca.encoding.open_clip import OpenClipEncoder
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


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match="device"):
        choose_device(name)


def test_auto_takes_what_is_there_and_never_bf16_or_mps_by_itself(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("mps").type == "mps"
    assert choose_precision("auto", torch.device("cpu")) == "fp32"
    assert choose_precision("auto", torch.device("cuda")) == "fp16"
    assert choose_precision("bf16", torch.device("cpu")) == "bf16"
    with pytest.raises(ValueError, match=r"'int8'.*auto, fp32, fp16, bf16"):
        choose_precision("int8", torch.device("cpu"))
