"""There is no MPS here: a fake encoder says on which device it is, and is wrong on one of them."""

from __future__ import annotations

import logging

import pytest
import torch
from torchvision.transforms.functional import pil_to_tensor

from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.cpu_agreement import agrees_with_cpu, deviation
from clip_tca.encoding.embedder import Embedder
from clip_tca.encoding.store import Store


class Model:
    def __init__(self) -> None:
        self.moves = []

    def to(self, device):
        self.moves.append(device.type)


class Fake(Encoder):
    precision, dim, model = "fp32", 4, None
    identity = Identity("fake", "", "0" * 64, "0", {}, "fp32", 100.0)

    def __init__(self, error: float) -> None:
        self.error, self.device, self.model, self.texts = error, torch.device("mps"), Model(), 0

    @property
    def transform(self):
        return lambda image: pil_to_tensor(image).float() / 255

    def encode_images(self, batch):
        z = batch[:, :, ::64, ::64].flatten(1)[:, :4] + 0.1
        if self.device.type == "mps":
            z = z * 3 + self.error * torch.tensor([1.0, -1.0, 1.0, -1.0])
        return z

    def encode_texts(self, texts):
        self.texts += len(texts)
        return torch.ones(len(texts), 4)


def test_rounding_passes_and_a_wrong_device_is_named(caplog):
    right, wrong, broken = Fake(1e-4), Fake(1.0), Fake(float("nan"))
    with caplog.at_level(logging.WARNING, "clip_tca"):
        assert agrees_with_cpu(right)
        assert caplog.messages == []
        assert not agrees_with_cpu(wrong)
        assert not agrees_with_cpu(broken)
    assert right.model.moves == ["cpu", "mps"]
    assert right.device.type == "mps"
    assert [message.partition(":")[0] for message in caplog.messages] == ["embeddings on mps are wrong"] * 2
    assert "by up to 2 (1 − cosine" in caplog.messages[1]
    assert "--device cpu" in caplog.messages[0]


def test_deviation_is_one_minus_the_cosine():
    one, other = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[5.0, 0.0], [3.0, 4.0]])
    assert deviation(one, other) == pytest.approx(1 - 3 / 5)


@pytest.mark.parametrize(("error", "kept"), [(0.0, 3), (1.0, 6)])
def test_embeddings_of_a_wrong_device_are_not_stored(tmp_path, caplog, error, kept):
    """Otherwise --device cpu would read them back."""
    encoder, prompts = Fake(error), Prompts("single", ("a {}",), ("cat", "dog", "cow"))
    embedder = Embedder(encoder, Store(tmp_path), compare=True)
    for _ in range(2):
        embedder.texts(prompts)
    assert encoder.texts == kept
    assert len(caplog.messages) == (kept == 6), "checked once"
    Embedder(encoder, None, compare=True).texts(prompts)
    assert len(caplog.messages) == 2 * (kept == 6), "without a store too"
