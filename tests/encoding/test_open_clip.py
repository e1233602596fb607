"""The encoder: models by name, weights by content, and mistakes named before anything is computed."""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch._subclasses import FakeTensorMode

from clip_tca.core.device import choose_device, choose_precision
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import Store
from clip_tca.encoding.weights import check_gelu
from tests.tiny_clip import FOLDER, MODEL


@pytest.fixture(scope="module")
def encoder() -> OpenClipEncoder:
    return OpenClipEncoder(MODEL, device="cpu")


@pytest.fixture(scope="module")
def pictures(encoder) -> torch.Tensor:
    noise = np.random.default_rng(0).integers(0, 255, (5, 80, 100, 3), dtype=np.uint8)
    return torch.stack([encoder.transform(Image.fromarray(picture)) for picture in noise])


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "gpu", "meta", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match="device"):
        choose_device(name)


def test_auto_takes_what_is_there():
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else choose_device("auto").type)
    assert choose_device("cpu") == torch.device("cpu")


def test_precision_is_never_bf16_by_itself():
    assert choose_precision("auto", torch.device("cpu")) == "fp32"
    assert choose_precision("auto", torch.device("cuda")) == "fp16"
    assert choose_precision("bf16", torch.device("cpu")) == "bf16"
    with pytest.raises(ValueError, match=r"'int8'.*auto, fp32, fp16, bf16"):
        choose_precision("int8", torch.device("cpu"))


def test_embeddings_do_not_depend_on_their_batch(encoder, pictures):
    together = encoder.encode_images(pictures)
    alone = torch.cat([encoder.encode_images(picture[None]) for picture in pictures])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert together.dtype == torch.float32


def test_texts_in_parts_are_the_texts(encoder):
    texts = ["a photo of a dog", "a photo of a house", "a guitar"]
    torch.testing.assert_close(encoder.encode_texts(texts), encoder.encode_texts(texts, batch=1), rtol=1e-4, atol=1e-5)


def test_the_model_is_not_loaded_if_its_identity_is_stored(tmp_path):
    first = OpenClipEncoder(MODEL, device="cpu", store=Store(tmp_path)).identity
    again = OpenClipEncoder(MODEL, device="cpu", store=Store(tmp_path))
    assert again.identity == first
    assert "model" not in again.__dict__


def test_changed_weights_are_noticed(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "copy")
    address = f"local-dir:{folder}"
    before = OpenClipEncoder(address, device="cpu", store=Store(tmp_path / "store")).identity
    weights = load_file(folder / "model.safetensors")
    weights["logit_scale"] = weights["logit_scale"] + 1
    save_file(weights, folder / "model.safetensors")
    after = OpenClipEncoder(address, device="cpu", store=Store(tmp_path / "store")).identity
    assert after.weights != before.weights
    assert after.scale == pytest.approx(before.scale * np.e, rel=1e-2)


def test_the_name_of_the_right_model_is_given_for_the_wrong_activation():
    with pytest.raises(ValueError, match=r"QuickGELU.*use --model ViT-B-16-quickgelu"):
        _ = OpenClipEncoder("ViT-B-16", "openai", "cpu").weights_file
    with pytest.raises(ValueError, match=r"laion2b_s34b_b88k belongs to --model ViT-B-16"):
        _ = OpenClipEncoder("ViT-B-16-quickgelu", "laion2b_s34b_b88k", "cpu").weights_file


def test_unknown_models_tags_and_files_are_refused_with_what_there_is(tmp_path):
    with pytest.raises(ValueError, match=r"'ViT-B16'.*ViT-B-16"):
        _ = OpenClipEncoder("ViT-B16", "openai", "cpu").weights_file
    with pytest.raises(ValueError, match=r"'openaj' is neither a file nor a tag.*openai"):
        _ = OpenClipEncoder("ViT-B-16-quickgelu", "openaj", "cpu").weights_file
    with pytest.raises(ValueError, match="no such file"):
        _ = OpenClipEncoder("ViT-B-16-quickgelu", str(tmp_path / "weights.pt"), "cpu").weights_file
    with pytest.raises(ValueError, match=r"open_clip_config\.json"):
        _ = OpenClipEncoder(f"local-dir:{tmp_path}", device="cpu").weights_file


def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"nonsense")
    encoder = OpenClipEncoder("ViT-B-16-quickgelu", str(tmp_path / "weights.pt"), "cpu")
    with pytest.raises(ValueError, match=r"not weights of ViT-B-16-quickgelu, or damaged") as stop:
        _ = encoder.model
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


class Weights(torch.nn.Module):
    """Holds a state_dict under its own names, as OpenAI's archives do."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, value in state.items():
            home = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(home, part):
                    home.add_module(part, torch.nn.Module())
                home = getattr(home, part)
            home.register_buffer(last, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_local_checkpoint_in_every_form_gives_the_same_embeddings(small, tmp_path):
    import open_clip

    torch.manual_seed(0)
    state = open_clip.create_model(f"{small}-quickgelu").state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save(
        {"epoch": 1, "state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "c.pt"
    )
    archive = {
        **state,
        "input_resolution": torch.tensor(64),
        "context_length": torch.tensor(77),
        "vocab_size": torch.tensor(9),
    }
    torch.jit.trace(Weights(archive), torch.zeros(1)).save(str(tmp_path / "d.pt"))
    found = {}
    for file in sorted(tmp_path.iterdir()):
        encoder = OpenClipEncoder(f"{small}-quickgelu", str(file), "cpu")
        picture = encoder.transform(Image.new("RGB", (70, 90), "red"))
        found[file.name] = encoder.encode_images(picture[None])
    assert len(found) == 4
    for z in found.values():
        torch.testing.assert_close(z, found["a.safetensors"])
    with pytest.raises(ValueError, match=r"use --model clip-tca-small-quickgelu"):
        _ = OpenClipEncoder(small, str(tmp_path / "d.pt"), "cpu").weights_file


def test_a_pickle_that_runs_code_is_not_loaded(small, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    torch.save({"state_dict": Evil()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="damaged"):
        _ = OpenClipEncoder(small, str(tmp_path / "weights.pt"), "cpu").model
    assert not (tmp_path / "evil").exists()


def test_a_legacy_checkpoint_is_loaded_if_it_is_trusted(small, tmp_path, caplog):
    """One that also holds the options of its training, as many do."""
    import open_clip

    state = open_clip.create_model(small).state_dict()
    torch.save({"state_dict": state, "args": argparse.Namespace(lr=1e-3)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="needs --trust-pickle"):
        _ = OpenClipEncoder(small, str(tmp_path / "weights.pt"), "cpu").model
    with caplog.at_level(logging.WARNING, "clip_tca"):
        model = OpenClipEncoder(small, str(tmp_path / "weights.pt"), "cpu", trust_pickle=True).model
    assert "weights.pt is trusted: if it is a pickle, it can run any code" in caplog.text
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_images_and_texts_go_to_the_device_of_the_model(encoder):
    """On a fake device, where a tensor left behind is an error."""
    moved = copy.deepcopy(encoder.model)
    fake = OpenClipEncoder(MODEL, device="cpu")
    fake.device = torch.device("cuda")
    fake._autocast = contextlib.nullcontext  # there is no GPU here that autocast could ask
    with FakeTensorMode():
        for module in moved.modules():
            for tensors in (module._parameters, module._buffers):
                for name, value in tensors.items():
                    if value is not None:
                        tensors[name] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        fake.__dict__["model"] = moved
        assert fake.encode_images(torch.zeros(2, 3, 32, 32)).device.type == "cuda"
        assert fake.encode_texts(["a dog", "a house"]).device.type == "cuda"


def test_a_changed_configuration_is_another_model(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "copy")
    before = OpenClipEncoder(f"local-dir:{folder}", device="cpu", store=Store(tmp_path / "store")).identity
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["quick_gelu"] = not config["model_cfg"].get("quick_gelu", False)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    after = OpenClipEncoder(f"local-dir:{folder}", device="cpu", store=Store(tmp_path / "store")).identity
    assert after.weights == before.weights
    assert after.configuration != before.configuration


def test_a_file_called_like_a_tag_is_not_taken_for_it(tmp_path, monkeypatch):
    (tmp_path / "openai").write_text("not weights")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not OpenClipEncoder(device="cpu")._from_file
    assert OpenClipEncoder("ViT-B-16-quickgelu", "./openai", "cpu")._from_file


def test_weights_without_another_model_for_their_activation_are_left_alone():
    assert check_gelu("roberta-ViT-B-32", "laion2b_s12b_b32k", quick=True) is None
