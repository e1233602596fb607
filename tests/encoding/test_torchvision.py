"""torchvision's networks: features and head are those of the network, whatever file the weights came in."""

from __future__ import annotations

import pickle
import re

import pytest
import torch
from PIL import Image
from torchvision.models import get_model, get_model_weights

from clip_tca.encoding.torchvision import TorchvisionEncoder
from tests.small_networks import resnet18, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    saved(resnet18(), folder / "a.safetensors")
    saved(resnet18(), folder / "b.pth")
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in resnet18().state_dict().items()}}
    torch.save(wrapped, folder / "c.pth")
    return folder


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["a.safetensors", "b.pth", "c.pth"])
def test_head_of_features_is_the_network(folder, batch, name):
    encoder = TorchvisionEncoder("resnet18", str(folder / name), "cpu")
    z = encoder.encode_images(batch)
    assert z.shape == (2, encoder.dim) == (2, 512)
    with torch.no_grad():
        torch.testing.assert_close(encoder.head.logits(z), resnet18()(batch))
    assert (z.norm(dim=1) - 1).abs().min() > 0.1  # raw features
    assert encoder.head.classes is None
    first = TorchvisionEncoder("resnet18", str(folder / "a.safetensors"), "cpu")
    assert encoder.identity.weights == first.identity.weights


def test_a_vision_transformer_too(tmp_path):
    torch.manual_seed(0)
    network = get_model("vit_b_16", weights=None, num_classes=3).eval()
    torch.nn.init.normal_(network.heads.head.weight)
    encoder = TorchvisionEncoder("vit_b_16", saved(network, tmp_path / "vit.safetensors"), "cpu")
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(encoder.head.logits(encoder.encode_images(image)), network(image))
    assert encoder.dim == 768


def test_preprocessing_is_that_of_the_architecture_s_weights(folder):
    encoder = TorchvisionEncoder("resnet18", str(folder / "a.safetensors"), "cpu")
    picture = Image.effect_noise((300, 200), 80).convert("RGB")
    expected = get_model_weights("resnet18").DEFAULT.transforms()(picture)
    assert torch.equal(pickle.loads(pickle.dumps(encoder.transform))(picture), expected)  # noqa: S301 (our own)
    assert encoder.identity.preprocessing["mean"] == [0.485, 0.456, 0.406]
    assert encoder.identity.preprocessing["crop_size"] == [224]


def test_weights_of_a_tag_bring_the_names_of_imagenet(tmp_path, monkeypatch):
    """From the cache, under the name of the published file; nothing is downloaded."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    saved(resnet18(1000), tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    head = TorchvisionEncoder("resnet18", "IMAGENET1K_V1", "cpu").head
    assert head.n_classes == 1000
    assert head.classes[:2] == ("tench", "goldfish")


def test_weights_that_can_t_be_downloaded_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def refused(*_args, **_options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refused)
    message = "the weights of torchvision:resnet18 / IMAGENET1K_V1 could not be downloaded (no route to host); give"
    with pytest.raises(ValueError, match=re.escape(message)):
        _ = TorchvisionEncoder("resnet18", None, "cpu").head


def test_mistakes_are_named(folder, tmp_path):
    file = str(folder / "a.safetensors")
    wrong = {
        ("resnet81", file): r"model: 'torchvision:resnet81' is not one of torchvision's \d+; near are .*resnet18",
        ("resnet18", "V9"): "pretrained: 'V9' is neither a file nor a tag of torchvision:resnet18; tags are IMAGENET",
        ("squeezenet1_1", file): r"squeezenet1_1 has no linear head \(its last layer is AdaptiveAvgPool2d\)",
        ("resnet34", file): r"does not fit torchvision:resnet34: without layer1.2.conv1.weight and \d+ more; name the",
        ("resnet50", file): r"does not fit torchvision:resnet50: .*with .* for ",
    }
    for (model, pretrained), message in wrong.items():
        with pytest.raises(ValueError, match=message):
            _ = TorchvisionEncoder(model, pretrained, "cpu").head
    with pytest.raises(ValueError, match=r"pretrained: gone\.pth: no such file"):
        TorchvisionEncoder("resnet18", "gone.pth", "cpu")
