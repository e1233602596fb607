"""timm's networks: features and head are those of the network."""

from __future__ import annotations

import pickle
import re

import pytest
import timm
import torch
from PIL import Image

from clip_tca.encoding.timm import TimmEncoder
from tests.small_networks import saved, timm_network


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_head_of_features_is_the_network(name, tmp_path):
    network = timm_network(name)
    encoder = TimmEncoder(name, saved(network, tmp_path / "weights.safetensors"), "cpu")
    batch = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    z = encoder.encode_images(batch)
    assert z.shape == (2, encoder.dim)
    with torch.no_grad():
        torch.testing.assert_close(encoder.head.logits(z), network(batch))


def test_preprocessing_is_timm_s(tmp_path):
    encoder = TimmEncoder("test_resnet", saved(timm_network(), tmp_path / "weights.pth"), "cpu")
    picture = Image.effect_noise((300, 200), 80).convert("RGB")
    config = timm.data.resolve_model_data_config(timm_network())
    expected = timm.data.create_transform(**config, is_training=False)(picture)
    assert torch.equal(pickle.loads(pickle.dumps(encoder.transform))(picture), expected)  # noqa: S301 (our own)
    assert encoder.identity.preprocessing["input_size"] == [3, 160, 160]


def test_the_tag_is_in_the_name_or_beside_it(monkeypatch):
    asked, networks = [], [timm_network("test_resnet", 1000) for _ in range(2)]

    def create(name, pretrained):
        asked.append(name)
        return networks.pop()

    monkeypatch.setattr("clip_tca.encoding.timm.hub_reachable", lambda: True)
    monkeypatch.setattr(timm, "create_model", create)
    for encoder in (TimmEncoder("test_resnet.r160_in1k"), TimmEncoder("test_resnet", "r160_in1k")):
        assert encoder.head.classes[0] == "tench"
    assert asked == ["test_resnet.r160_in1k"] * 2


def test_weights_that_can_t_be_downloaded_are_one_line(monkeypatch):
    def refused(*_args, **_options):
        raise OSError("offline")

    monkeypatch.setattr("clip_tca.encoding.timm.hub_reachable", lambda: True)
    monkeypatch.setattr(timm, "create_model", refused)
    message = "the weights of timm:test_resnet could not be downloaded (offline); give a local file"
    with pytest.raises(ValueError, match=re.escape(message)):
        _ = TimmEncoder("test_resnet", None, "cpu").head


def test_mistakes_are_named(tmp_path):
    file = saved(timm_network(), tmp_path / "weights.safetensors")
    wrong = {
        ("resnet81", None): r"model: 'timm:resnet81' is not one of timm's \d+; near are ",
        ("test_resnet", "v9"): "pretrained: 'v9' is neither a file nor a tag of timm:test_resnet; tags are r160_in1k",
        ("test_vit", file): r"does not fit timm:test_vit: without cls_token and \d+ more, also with ",
        ("vit_small_patch14_dinov2", file): r"_dinov2 has no linear head \(its last layer is nothing\)",
    }
    for (model, pretrained), message in wrong.items():
        with pytest.raises(ValueError, match=message):
            _ = TimmEncoder(model, pretrained, "cpu").head
