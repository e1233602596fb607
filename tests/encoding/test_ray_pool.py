"""Encoding by tasks of Ray gives what one process gives, even if a worker is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from clip_tca.cli import main
from clip_tca.core.machine import connect
from clip_tca.data.folder import load_folder
from clip_tca.encoding import ray_pool
from clip_tca.encoding.embedder import PART, Embedder
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.ray_pool import RayPool
from clip_tca.encoding.store import Store
from tests.tiny_clip import MODEL

encode_part = ray_pool.encode_part


def dying(part, *arguments):
    """Dies when it is asked for the second part, once."""
    mark = Path(os.environ["DIED"])
    if part[0] == PART and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return encode_part(part, *arguments)


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, red in {"cat": 0, "dog": 255}.items():
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(PART - 50):
            Image.new("RGB", (32, 32), (red, i % 256, i // 2)).save(tmp_path / "own" / name / f"{i:04d}.png")
    return tmp_path / "own"


def test_workers_of_which_one_is_killed_give_the_embeddings_of_one_process(folder, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    encoder = OpenClipEncoder(MODEL, device="cpu")
    (expected,) = Embedder(encoder, workers=0).pictures(load_folder(folder)).values()
    monkeypatch.setattr(ray_pool, "encode_part", dying)
    monkeypatch.setattr(ray_pool, "CPUS", max(1, os.cpu_count() // 2))
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    store = Store(tmp_path / "store")
    with connect(), RayPool("", encoder) as pool:
        (z,) = Embedder(encoder, store, pool=pool).pictures(load_folder(folder)).values()
    assert (tmp_path / "died").read_text() != str(os.getpid())
    assert torch.equal(z, expected)
    again = Embedder(encoder, store)
    assert torch.equal(next(iter(again.pictures(load_folder(folder)).values())), expected)
    assert again.encoded == 0


def test_without_the_package_there_is_one_line(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["embed", "--dataset", "folder", "--data-dir", str(folder), "--model", MODEL, "--no-cache", "--ray"]
    assert main(words) == 1
    assert 'pip install ".[ray]"' in capsys.readouterr().err
    assert main([*words, "--device", "mps"]) == 1
