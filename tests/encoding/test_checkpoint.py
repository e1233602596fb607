"""Checkpoints: read without running code, and refused in one line if they do not fit."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from clip_tca.encoding.backbone import TimmEncoder, TorchvisionEncoder
from clip_tca.encoding.checkpoint import read_checkpoint
from clip_tca.encoding.open_clip import OpenClipEncoder


def test_classes_come_from_the_metadata(tmp_path):
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "named.safetensors", {"classes": '["cat", "dog"]'})
    weights, classes = read_checkpoint(tmp_path / "named.safetensors")
    assert list(weights) == ["weight"]
    assert classes == ["cat", "dog"]


def test_a_pickle_that_runs_code_is_not_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    torch.save({"state_dict": Evil()}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"weights\.pth can't be read as a checkpoint.*save the state_dict alone"):
        read_checkpoint(tmp_path / "weights.pth")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_other_files_are_refused_in_one_line(tmp_path, content, suffix):
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="can't be read as a checkpoint") as caught:
        read_checkpoint(file)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("kind", "model"),
    [(OpenClipEncoder, "ViT-B-16-quickgelu"), (TorchvisionEncoder, "resnet18"), (TimmEncoder, "test_vit")],
)
def test_a_torchscript_archive_is_refused_and_not_run(kind, model, tmp_path, monkeypatch):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "ViT-B-16.pt"))
    monkeypatch.setattr(torch.jit, "load", None)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match=r"ViT-B-16\.pt is a TorchScript archive.*--pretrained openai.*safetensors"):
        _ = kind(model, str(tmp_path / "ViT-B-16.pt"), "cpu").model
