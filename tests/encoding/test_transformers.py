"""Image-text models of transformers: tiny ones in a folder, with random weights."""

from __future__ import annotations

import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from clip_tca import ZeroShotClassifier, evaluate
from clip_tca.encoding.transformers import TransformersEncoder
from tests.demo_files import write_demo
from tests.tiny_transformers import SIZE, tiny

transformers = pytest.importorskip("transformers")

TEXTS = ["a photo of a cat", "a dog .", "house"]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request, tmp_path_factory) -> str:
    return tiny(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def encoder(folder) -> TransformersEncoder:
    return TransformersEncoder(folder, device="cpu")


@pytest.fixture(scope="module")
def images(encoder) -> torch.Tensor:
    torch.manual_seed(0)
    shown = [Image.effect_noise((70, 50), 90).convert("RGB") for _ in range(5)]
    return torch.stack([encoder.transform(picture) for picture in shown])


def test_logits_are_those_of_the_model(encoder, folder, images):
    """Scale, bias, padding and masks included: transformers' own forward pass says the same."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        TEXTS, padding="max_length", max_length=12, return_tensors="pt"
    )
    mask = {} if "siglip" in folder else {"attention_mask": tokens["attention_mask"]}
    with torch.no_grad():
        expected = model(input_ids=tokens["input_ids"], pixel_values=images, **mask).logits_per_image
    g = ZeroShotClassifier(encoder.encode_texts(TEXTS), encoder.scale, bias=encoder.bias)
    z = torch.nn.functional.normalize(encoder.encode_images(images), dim=1)
    torch.testing.assert_close(g.logits(z), expected, atol=1e-4, rtol=1e-4)
    assert encoder.bias == (-3.5 if "siglip" in folder else 0)


def test_the_transform_goes_to_worker_processes(encoder):
    picture = Image.effect_noise((70, 50), 90).convert("RGB")
    made = pickle.loads(pickle.dumps(encoder.transform))(picture)  # noqa: S301 (our own)
    assert made.shape == (3, SIZE, SIZE)
    assert torch.equal(made, encoder.transform(picture))


def test_an_evaluation_runs_with_methods_on_tower_and_text(folder, tmp_path):
    data = write_demo(tmp_path, ["sketch"], classes=3, images=4)
    methods = ["zero-shot", "linear-tca", "tent", "clipartt", "tpt", "t3a+tca"]
    options = {"steps": 1, "views": 3}
    record = evaluate(
        "folder", data_dir=data, model=f"transformers:{folder}", methods=methods, options=options, workers=0
    )
    assert {row["method"] for row in record["rows"]} == set(methods)
    assert record["model"]["model"] == f"transformers:{Path(folder).name}"
    assert record["prompts"]["templates"] == ["a photo of a {}"]


def test_mistakes_are_named(folder, tmp_path, monkeypatch):
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"not weights")
    transformers.BertModel(
        transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    ).save_pretrained(tmp_path / "bert")
    wrong = {
        "gone": "model: transformers:gone: no such folder; give one, or OWNER/NAME on the hub",
        str(tmp_path / "gone"): f"model: transformers:{tmp_path / 'gone'}: no such folder",
        str(damaged): f"model: {damaged}: not an image-text model of transformers, or damaged (",
        str(tmp_path / "bert"): "model: transformers:bert is a BertModel, which has no get_image_features; a model",
    }
    for name, message in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            _ = TransformersEncoder(name, device="cpu").model
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"pretrained: 'openai', but transformers:.* has its weights beside"):
        TransformersEncoder(folder, "openai", "cpu")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"weights of transformers:some/model could not be .*; give a local folder"):
        _ = TransformersEncoder("some/model", device="cpu").model
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = (
        r'transformers:some/model needs transformers, which is not installed; run pip install "\.\[transformers\]"'
    )
    with pytest.raises(ValueError, match=message):
        _ = TransformersEncoder("some/model", device="cpu").model
