"""The store: what is read is what was written, damage is noticed, and nothing is ever half there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from clip_tca.core import files
from clip_tca.core.folders import default_root
from clip_tca.datasets.image_set import Domain
from clip_tca.datasets.pictures import mark
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding import store
from clip_tca.encoding.base import Identity
from clip_tca.encoding.store import SHARD, Entry, Store, digest, image_key, model_key, shards, text_key


@pytest.fixture
def entry(tmp_path) -> Entry:
    return Store(tmp_path).entry({"weights": "abc"}, SHARD + 3, "pacs/photo")


@pytest.fixture
def rows(generator) -> torch.Tensor:
    return torch.randn(SHARD, 8, generator=generator)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("CLIP_TCA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "clip-tca"


def test_shards_cover_every_row_once_and_are_read_to_the_bit(entry, rows):
    assert [i for part in shards(2 * SHARD + 5) for i in part] == list(range(2 * SHARD + 5))
    assert entry.read(0) is None
    entry.write(0, rows)
    assert torch.equal(entry.read(0), rows)
    assert not entry.complete()
    entry.write(1, rows[:3])
    assert entry.complete()


def test_the_keys_of_old_stores_are_still_valid(tmp_path, monkeypatch):
    """Computed by version 0.1.0: another value here means that everybody's embeddings are encoded again."""
    preprocessing = {"size": [224, 224], "mode": "RGB", "mean": [0.5, 0.25, 0.125], "std": [1.0, 1.0, 1.0]}
    preprocessing |= {"interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}
    encoder = Identity("ViT-B-16-quickgelu", "openai", "ab" * 32, "0123456789abcdef" * 2, preprocessing, "fp32", 100.0)
    marks = [mark(b"one"), mark(bytes(range(256)) * 20)]
    assert marks == ["3:a10460a6d1056fc7", "5120:12adc9dff8068880"]
    domain = Domain(["dog/1.png", "house/ä.png"], marks, [0, 1], [None, None])
    entry = Store(tmp_path).entry(image_key(encoder, domain), 2, "")
    assert entry.path == tmp_path / "embeddings" / "0b7cc2674d8046363fe8d3f0622e994c"
    prompts = Prompts("single", ("a photo of a {}", "art of the {}."), ("dog", "house"))
    Store(tmp_path).keep_texts(text_key(encoder, prompts), torch.ones(2, 3))
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["6f264784ac8dcb06e90cb798bb700b86.safetensors"]
    monkeypatch.setattr(store, "version", lambda _: "3.2.0")
    assert digest(model_key("ViT-B-16-quickgelu", "", "openai")) == "eedff9ab2c1f4dd081280d74e9cb14f7"
    assert model_key("hf-hub:owner/name", "", None) is None


def test_an_identity_is_kept_until_its_weights_change(tmp_path):
    weights, kept = tmp_path / "weights", Store(tmp_path)
    weights.write_text("weights")
    identity = Identity("m", "", "w", "c", {}, "fp16", 2.0, -3.5)
    kept.keep_identity(["m"], identity, [weights])
    assert kept.identity(["m"], "fp16") == identity
    assert kept.identity(["other"], "fp16") is None
    weights.write_text("other weights")
    assert kept.identity(["m"], "fp16") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        lambda _: b"",
        lambda content: save({"embeddings": torch.ones(7, 8)}),
    ],
)
def test_a_damaged_shard_is_noticed_with_a_word(entry, rows, damage, caplog):
    entry.write(0, rows)
    file = entry.path / "00000.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert entry.read(0) is None
    assert "damaged" in caplog.text


def test_a_store_that_cannot_be_written_is_a_warning(entry, rows, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    blocked = Store(tmp_path / "file").entry({}, SHARD, "")
    with blocked.lock():
        blocked.write(0, rows)
    assert "going on without storing" in caplog.text

    def full(*_args, **_options):
        raise SafetensorError("Error while serializing: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    entry.write(0, rows)
    assert "No space left" in caplog.text
    assert list(entry.path.iterdir()) == []


def test_clear_touches_nothing_that_is_not_ours(tmp_path, rows):
    kept = Store(tmp_path)
    for name in ("abc", "abd"):
        kept.entry({"weights": name}, SHARD, name).write(0, rows)
    kept.keep_texts({"texts": "x"}, rows)
    for folder in ("texts", "embeddings"):
        (tmp_path / folder / "mine.pt").write_text("mine")
    assert kept.clear() == 2
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["mine.pt"] * 2


def test_a_link_stays_a_link_and_a_pipe_stays_a_pipe(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    files.write_tensors(tmp_path / "pipe", {"a": torch.arange(3)}, {})
    assert load(reader.communicate(timeout=10)[0])["a"].tolist() == [0, 1, 2]
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / f"{'ä' * 125}.json"  # 255 bytes
    files.write_text(path, "one")
    assert [(file, file.read_text()) for file in Path(tmp_path).iterdir()] == [(path, "one")]
