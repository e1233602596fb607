"""The encoder: models by name, weights by content, and mistakes named before anything is computed."""

from __future__ import annotations

import argparse
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import Store
from tests.tiny_clip import FOLDER, MODEL


def test_the_model_is_not_loaded_if_its_identity_is_stored(tmp_path):
    first = OpenClipEncoder(MODEL, device="cpu", store=Store(tmp_path)).identity
    again = OpenClipEncoder(MODEL, device="cpu", store=Store(tmp_path))
    assert again.identity == first
    assert "model" not in again.__dict__


def test_changed_weights_or_configuration_are_another_model(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "copy")

    def identity():
        return OpenClipEncoder(f"local-dir:{folder}", device="cpu", store=Store(tmp_path / "store")).identity

    before = identity()
    weights = load_file(folder / "model.safetensors")
    weights["logit_scale"] = weights["logit_scale"] + 1
    save_file(weights, folder / "model.safetensors")
    after = identity()
    assert after.weights != before.weights
    assert after.scale == pytest.approx(before.scale * np.e, rel=1e-2)
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["quick_gelu"] = not config["model_cfg"].get("quick_gelu", False)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    last = identity()
    assert (last.weights, last.configuration != after.configuration) == (after.weights, True)


@pytest.mark.parametrize(
    ("model", "pretrained", "message"),
    [
        ("ViT-B-16", "openai", r"QuickGELU.*use --model ViT-B-16-quickgelu"),
        ("ViT-B16", "openai", r"'ViT-B16'.*ViT-B-16"),
        ("ViT-B-16-quickgelu", "openaj", r"'openaj' is neither a file nor a tag.*openai"),
        ("ViT-B-16-quickgelu", "gone/weights.pt", "gone/weights.pt: no such file"),
        ("local-dir:PLACE", "openai", r"open_clip_config\.json"),
        ("ViT-B-16-quickgelu", "PLACE/weights.pt", "not weights of ViT-B-16-quickgelu, or damaged"),
    ],
)
def test_mistakes_are_named_with_what_there_is(model, pretrained, message, tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"nonsense")
    model, pretrained = (text.replace("PLACE", str(tmp_path)) for text in (model, pretrained))
    with pytest.raises(ValueError, match=message) as stop:
        _ = OpenClipEncoder(model, pretrained, "cpu").model
    assert "\n" not in str(stop.value)


@pytest.fixture(scope="module")
def small() -> str:
    """The smallest built-in model with QuickGELU and without it, registered for these tests only."""
    import open_clip

    config = json.loads((FOLDER / "open_clip_config.json").read_text())["model_cfg"]
    config["text_cfg"] = {**config["text_cfg"], "layers": 1}
    for name, quick in (("clip-tca-small", False), ("clip-tca-small-quickgelu", True)):
        open_clip.factory._MODEL_CONFIGS[name] = {**config, "quick_gelu": quick}
    yield "clip-tca-small"
    for name in ("clip-tca-small", "clip-tca-small-quickgelu"):
        del open_clip.factory._MODEL_CONFIGS[name]


def test_a_local_checkpoint_in_every_form_gives_the_same_embeddings(small, tmp_path):
    import open_clip

    torch.manual_seed(0)
    state = open_clip.create_model(f"{small}-quickgelu").state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save(
        {"epoch": 1, "state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "c.pt"
    )
    embeddings = []
    for file in sorted(tmp_path.iterdir()):
        encoder = OpenClipEncoder(f"{small}-quickgelu", str(file), "cpu")
        picture = encoder.transform(Image.new("RGB", (70, 90), "red"))
        embeddings.append(encoder.encode_images(picture[None]))
    assert len(embeddings) == 3
    for z in embeddings:
        torch.testing.assert_close(z, embeddings[0])
    torch.save({"state_dict": state, "args": argparse.Namespace(lr=1)}, tmp_path / "e.pt")  # runs code when it is read
    with pytest.raises(ValueError, match=r"e\.pt: not weights of .*other pickles can run any code and are not read"):
        _ = OpenClipEncoder(f"{small}-quickgelu", str(tmp_path / "e.pt"), "cpu").model
    (tmp_path / "vit.openai").mkdir()
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "vit.openai")
    with pytest.raises(ValueError, match=r"use --model clip-tca-small-quickgelu"):
        _ = OpenClipEncoder(small, str(tmp_path / "vit.openai" / "a.safetensors"), "cpu").weights_file


def test_a_file_called_like_a_tag_is_not_taken_for_it(tmp_path, monkeypatch):
    (tmp_path / "openai").write_text("not weights")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="could not be downloaded"):
        _ = OpenClipEncoder(device="cpu").weights_file
    assert OpenClipEncoder("ViT-B-16-quickgelu", "./openai", "cpu").weights_file == tmp_path / "openai"
