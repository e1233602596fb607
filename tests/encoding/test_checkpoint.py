"""Checkpoints: read without running code, and refused in one line if they do not fit."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from clip_tca.encoding.checkpoint import read_checkpoint


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
