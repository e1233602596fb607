"""Inputs of an evaluation with a model that brings its own head."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image

from clip_tca import evaluate, load_embeddings
from clip_tca.cli import main
from clip_tca.evaluation.inputs import Inputs
from tests.small_networks import saved, timm_network

CLASSES = ("cat", "dog", "horse")
MODEL = "timm:test_resnet"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two domains of noise, eight pictures of each class."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for domain in ("day", "night"):
        for name in CLASSES:
            (folder / domain / name).mkdir(parents=True)
            for i in range(8):
                pixels = random.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / domain / name / f"{i}.png")
    return str(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return saved(timm_network(classes=3), tmp_path_factory.mktemp("weights") / "three.safetensors")


@pytest.fixture
def embedded(pictures, weights):
    return Inputs("folder", pictures, model=MODEL, pretrained=weights, workers=0).embed()


def test_g_is_the_head_of_the_network(embedded, weights):
    data = embedded.data
    network = timm_network(classes=3)
    assert torch.equal(data.classifier().weight, network.fc.weight)
    assert torch.equal(data.classifier().bias, network.fc.bias)
    assert data.text is None
    assert embedded.prompts is None
    assert embedded.about["model"]["head"] == 3
    z, day = data.domains["day"][0], embedded.pictures.domains["day"]
    shown = [Image.open(day.picture(i)).convert("RGB") for i in range(len(day))]
    batch = torch.stack([embedded.encoder.transform(picture) for picture in shown])
    with torch.no_grad():
        torch.testing.assert_close(data.classifier().logits(z), network(batch), atol=1e-4, rtol=1e-4)


def test_embed_writes_the_head_and_eval_reads_it(pictures, weights, tmp_path):
    file = str(tmp_path / "features.safetensors")
    options = ["--model", MODEL, "--pretrained", weights, "--workers", "0", "-o", file]
    assert main(["embed", "--dataset", "folder", "--data-dir", pictures, *options]) == 0
    data = load_embeddings(file)
    assert torch.equal(data.classifier().bias, timm_network(classes=3).fc.bias)
    assert data.classes == list(CLASSES)
    methods = ["zero-shot", "t3a"]
    direct = evaluate("folder", data_dir=pictures, model=MODEL, pretrained=weights, methods=methods, workers=0)
    stored = evaluate(file, methods=methods)
    assert [row["correct"] for row in stored["rows"]] == [row["correct"] for row in direct["rows"]]


def test_a_file_names_the_outputs_of_the_head(pictures, tmp_path):
    """Five outputs, of which the data set has three, in another order."""
    weights = saved(timm_network(classes=5), tmp_path / "five.safetensors")
    names = tmp_path / "names.txt"
    names.write_text("horse\nsheep\ncat\ncow\ndog\n", encoding="utf-8")
    options = {"data_dir": pictures, "model": MODEL, "pretrained": weights, "workers": 0}
    data = Inputs("folder", **options, class_names=str(names)).embed().data
    assert torch.equal(data.classifier().weight, timm_network(classes=5).fc.weight[[2, 4, 0]])
    with pytest.raises(
        ValueError, match=r"the head of timm:test_resnet has 5 classes, the data set 3 \(cat, dog, horse\)"
    ):
        Inputs("folder", **options).embed()
    names.write_text("horse\nsheep\ncat\n", encoding="utf-8")
    message = "names.txt has 3 names, the head of timm:test_resnet 5 classes; write one name a line for every output"
    with pytest.raises(ValueError, match=re.escape(message)):
        Inputs("folder", **options, class_names=str(names)).embed()
