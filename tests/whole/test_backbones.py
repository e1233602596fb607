"""A fine-tuned ResNet-18 on real pictures, by ``clip-tca eval`` (skipped where they are not beside the project)."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.models import ResNet18_Weights, get_model

from clip_tca.cli import main
from tests.conftest import DATA

WEIGHTS = DATA / "resnet18" / "pacs_resnet18_art_painting_weights_f16.safetensors"


def test_a_checkpoint_evaluates_as_the_network_itself(mini, tmp_path):
    if not WEIGHTS.is_file():
        pytest.skip("the weights of the fine-tuned ResNet-18 are not beside the project")
    record = tmp_path / "record.json"
    command = ["eval", "--dataset", "folder", "--data-dir", str(mini / "PACS"), "--domain", "art_painting"]
    assert main([*command, "--model", "torchvision:resnet18", "--pretrained", str(WEIGHTS), "-o", str(record)]) == 0
    rows = json.loads(record.read_text())["rows"]
    assert [row["method"] for row in rows] == ["zero-shot", "linear-tca", "conditional-tca"]

    network = get_model("resnet18", weights=None, num_classes=7)
    network.load_state_dict(load_file(WEIGHTS))
    network.eval()
    transform, correct = ResNet18_Weights.DEFAULT.transforms(), 0
    for label, folder in enumerate(sorted((mini / "PACS" / "art_painting").iterdir())):
        images = torch.stack([transform(Image.open(file).convert("RGB")) for file in sorted(folder.iterdir())])
        with torch.inference_mode():
            correct += int((network(images).argmax(dim=1) == label).sum())
    assert abs(rows[0]["correct"] - correct) <= 1  # another batch rounds differently
