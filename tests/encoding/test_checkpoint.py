"""Checkpoints: read without running code, and refused in one line if they do not fit."""

from __future__ import annotations

import argparse
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from clip_tca.encoding.checkpoint import fingerprint, load_weights, read_checkpoint


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
    with pytest.raises(ValueError, match=r"weights\.pth can't be read as a checkpoint"):
        read_checkpoint(tmp_path / "weights.pth")
    assert not (tmp_path / "evil").exists()


def test_a_legacy_checkpoint_is_loaded_if_it_is_trusted(tmp_path):
    torch.save({"model": nn.Linear(2, 2).state_dict(), "args": argparse.Namespace(lr=1)}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="needs --trust-pickle"):
        read_checkpoint(tmp_path / "weights.pth")
    assert set(read_checkpoint(tmp_path / "weights.pth", trust_pickle=True)[0]) == {"weight", "bias"}


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_other_files_are_refused_in_one_line(tmp_path, content, suffix):
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="can't be read as a checkpoint") as caught:
        read_checkpoint(file)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_named(tmp_path):
    weights = {"weight": torch.ones(3, 2), "scale": torch.ones(1)}
    message = "w.pth does not fit x: without bias, also with scale, with weight (3, 2) for (2, 2); name the --model"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_weights(nn.Linear(2, 2), weights, tmp_path / "w.pth", "x")


def test_the_fingerprint_knows_every_weight():
    torch.manual_seed(0)
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    assert fingerprint(first) != fingerprint(second)
    second.load_state_dict(first.state_dict())
    assert fingerprint(first) == fingerprint(second)
