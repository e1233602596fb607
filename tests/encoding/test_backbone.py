"""Networks of torchvision and timm: features and head are those of the network, and its outputs meet a data set."""

from __future__ import annotations

import pickle
import re

import pytest
import timm
import torch
from PIL import Image
from torchvision.models import get_model_weights

from clip_tca.classifier import LinearClassifier
from clip_tca.encoding.backbone import TimmEncoder, TorchvisionEncoder, head_for, imagenet_names, imagenet_synsets
from tests.small_networks import resnet18, saved, timm_network


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    saved(resnet18(), folder / "a.safetensors")
    saved(resnet18(), folder / "b.pth")
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in resnet18().state_dict().items()}}
    torch.save(wrapped, folder / "c.pth")
    saved(timm_network(), folder / "timm.safetensors")
    return folder


@pytest.mark.parametrize(
    ("kind", "name", "size", "made"),
    [
        (TorchvisionEncoder, "resnet18", 64, resnet18),
        *[
            (TimmEncoder, name, 160, lambda name=name: timm_network(name))
            for name in ("test_resnet", "test_vit", "test_convnext", "test_efficientnet")
        ],
    ],
)
def test_head_of_features_is_the_network(kind, name, size, made, tmp_path):
    network = made()
    encoder = kind(name, saved(network, tmp_path / "weights.safetensors"), "cpu")
    batch = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    z = encoder.encode_images(batch)
    assert z.shape == (2, encoder.head.dim)
    with torch.no_grad():
        torch.testing.assert_close(encoder.head.logits(z), network(batch))
    assert encoder.head.classes is None


def test_weights_are_the_same_whatever_file_they_came_in(folder):
    files = ("a.safetensors", "b.pth", "c.pth")
    encoders = [TorchvisionEncoder("resnet18", str(folder / name), "cpu") for name in files]
    assert len({encoder.identity.weights for encoder in encoders}) == 1
    with pytest.raises(ValueError, match="torchvision:resnet18 has no text tower; give a classifier"):
        encoders[0].encode_texts(["a cat"])


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_preprocessing_is_the_library_s_and_goes_to_worker_processes(library, folder):
    picture = Image.effect_noise((300, 200), 80).convert("RGB")
    if library == "timm":
        encoder = TimmEncoder("test_resnet", str(folder / "timm.safetensors"), "cpu")
        config = timm.data.resolve_model_data_config(timm_network())
        expected = timm.data.create_transform(**config, is_training=False)(picture)
        assert encoder.identity.preprocessing["input_size"] == [3, 160, 160]
    else:
        encoder = TorchvisionEncoder("resnet18", str(folder / "a.safetensors"), "cpu")
        expected = get_model_weights("resnet18").DEFAULT.transforms()(picture)
        assert encoder.identity.preprocessing["crop_size"] == [224]
    assert torch.equal(pickle.loads(pickle.dumps(encoder.transform))(picture), expected)  # noqa: S301 (our own)


def test_torchvision_s_weights_bring_the_names_of_imagenet(tmp_path, monkeypatch):
    """From the cache, under the name of the published file; nothing is downloaded."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    saved(resnet18(1000), tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    head = TorchvisionEncoder("resnet18", "IMAGENET1K_V1", "cpu").head
    assert head.n_classes == 1000
    assert head.classes[:2] == ("tench", "goldfish")


def test_weights_that_can_t_be_downloaded_are_one_line(tmp_path, monkeypatch):
    def refused(*_args, **_options):
        raise OSError("no route\nto host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", refused)
    with pytest.raises(ValueError, match=r"torchvision:resnet18 / IMAGENET1K_V1 could not .*no route to host.*TORCH"):
        _ = TorchvisionEncoder("resnet18", None, "cpu").head


@pytest.mark.parametrize(
    ("kind", "model", "pretrained", "message"),
    [
        (TorchvisionEncoder, "resnet81", "FILE", r"'torchvision:resnet81' is not one of torchvision's \d+; near are"),
        (TorchvisionEncoder, "resnet18", "V9", "'V9' is neither a file nor a tag of torchvision:resnet18; tags are"),
        (TorchvisionEncoder, "resnet18", "gone.pth", r"pretrained: gone\.pth: no such file"),
        (TorchvisionEncoder, "squeezenet1_1", "FILE", r"has no linear head \(its last layer is AdaptiveAvgPool2d\)"),
        (TorchvisionEncoder, "resnet34", "FILE", r"does not fit torchvision:resnet34 \(Missing key.*; name the"),
        (TimmEncoder, "resnet81", None, r"model: 'timm:resnet81' is not one of timm's \d+; near are "),
        (TimmEncoder, "test_resnet", "v9", "'v9' is neither a file nor a tag of timm:test_resnet; tags are r160_in1k"),
        (TimmEncoder, "vit_small_patch14_dinov2", "FILE", r"no linear head \(its last layer is Identity\)"),
    ],
)
def test_mistakes_are_named(kind, model, pretrained, message, folder):
    pretrained = str(folder / "a.safetensors") if pretrained == "FILE" else pretrained
    with pytest.raises(ValueError, match=message) as caught:
        _ = kind(model, pretrained, "cpu").head
    assert "\n" not in str(caught.value)


def outputs(count: int, known: list[str] | None, wanted: list[str]) -> list[int]:
    """Which outputs of a head with ``known`` classes are the ``wanted`` ones."""
    head = LinearClassifier(torch.arange(2.0 * count).reshape(count, 2), torch.arange(float(count)))
    head.classes = known  # as a network's head has them: two outputs may have one name
    return [int(value) for value in head_for(head, wanted, "net").bias]


def test_the_outputs_of_a_head_are_the_classes_of_the_data_set():
    assert outputs(3, None, ["a", "b", "c"]) == [0, 1, 2]
    named = ["alarm clock", "T-shirt", "dog", "cat"]
    assert outputs(4, named, ["cat", "Alarm_Clock", "t_shirt"]) == [3, 0, 1]
    wrong = {
        "the head of net has 3 classes, the data set 2 (a, b); name the outputs of": (3, None, ["a", "b"]),
        "'horse' of the data set is not one of the 4 classes of net (alarm": (4, named, ["cat", "horse"]),
        "'crane' of the data set is 2 of the 3 classes": (3, ["crane", "dog", "crane"], ["crane", "dog"]),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            outputs(*arguments)


def test_folders_named_by_synsets_are_classes_of_imagenet():
    names, synsets = imagenet_names(1000), imagenet_synsets(1000)
    assert (names[0], synsets[0], names[999], synsets[999]) == ("tench", "n01440764", "toilet tissue", "n15075141")
    assert outputs(1000, names, ["n15075141", "n01443537"]) == [999, 1]
    assert outputs(1000, names, ["goldfish", "tench"]) == [1, 0]
    assert imagenet_names(7) is None
