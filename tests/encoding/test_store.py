"""The store: what is read is what was written, damage is noticed, and nothing is ever half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from clip_tca.core import files
from clip_tca.datasets.image_set import Domain
from clip_tca.datasets.pictures import mark
from clip_tca.datasets.prompts import Prompts
from clip_tca.encoding import store
from clip_tca.encoding.base import Identity
from clip_tca.encoding.store import SHARD, Entry, Store, default_root, digest, image_key, model_key, shards, text_key


@pytest.fixture
def entry(tmp_path) -> Entry:
    return Store(tmp_path).entry({"weights": "abc"}, SHARD + 3, {"title": "pacs/photo"})


@pytest.fixture
def rows(generator) -> torch.Tensor:
    return torch.randn(SHARD, 8, generator=generator)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("CLIP_TCA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "clip-tca"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home" / ".cache" / "clip-tca"


def test_shards_cover_every_row_once():
    assert [i for part in shards(2 * SHARD + 5) for i in part] == list(range(2 * SHARD + 5))
    assert [len(part) for part in shards(SHARD + 3)] == [SHARD, 3]


def test_what_is_written_is_read_to_the_bit(entry, rows):
    assert entry.read(0) is None
    entry.write(0, rows)
    assert torch.equal(entry.read(0), rows)
    assert not entry.complete()
    entry.write(1, rows[:3])
    assert entry.complete()


def test_another_identity_is_another_place(tmp_path):
    one, two = (Store(tmp_path).entry({"weights": name}, 5, {}) for name in ("abc", "abd"))
    assert one.path != two.path
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_the_keys_of_old_stores_are_still_valid(tmp_path, monkeypatch):
    """Computed by version 0.1.0: another value here means that everybody's embeddings are encoded again."""
    preprocessing = {"size": [224, 224], "mode": "RGB", "mean": [0.5, 0.25, 0.125], "std": [1.0, 1.0, 1.0]}
    preprocessing |= {"interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}
    encoder = Identity("ViT-B-16-quickgelu", "openai", "ab" * 32, "0123456789abcdef" * 2, preprocessing, "fp32", 100.0)
    marks = [mark(b"one"), mark(bytes(range(256)) * 20)]
    assert marks == ["3:a10460a6d1056fc7", "5120:12adc9dff8068880"]
    domain = Domain(["dog/1.png", "house/ä.png"], marks, [0, 1], lambda _: None)
    entry = Store(tmp_path).entry(image_key(encoder, domain), 2, {})
    assert entry.path == tmp_path / "embeddings" / "0b7cc2674d8046363fe8d3f0622e994c"
    prompts = Prompts("single", ("a photo of a {}", "art of the {}."), ("dog", "house"))
    Store(tmp_path).keep_texts(text_key(encoder, prompts), torch.ones(2, 3))
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["6f264784ac8dcb06e90cb798bb700b86.safetensors"]
    monkeypatch.setattr(store, "version", lambda _: "3.2.0")
    assert digest(model_key("ViT-B-16-quickgelu", "", "openai")) == "eedff9ab2c1f4dd081280d74e9cb14f7"
    assert digest(model_key("local-dir:/models/x", "/models/x", None)) == "41b0205cf7a99eaa278a469adc7440e4"
    assert model_key("hf-hub:owner/name", "", None) is None


def test_an_identity_of_an_old_store_is_read(tmp_path):
    """The file as version 0.1.0 wrote it."""
    (tmp_path / "weights").write_text("weights")
    stat = (tmp_path / "weights").stat()
    fields = {"model": "m", "pretrained": "", "weights": "w", "configuration": "c", "preprocessing": {}, "scale": 2.0}
    stamps = [[stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]]
    record = {"file": str(tmp_path / "weights"), "stamps": stamps, "identity": fields}
    kept = Store(tmp_path)
    path = tmp_path / "models" / f"{digest(['m', '', None, '3'])}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))
    identity = Identity("m", "", "w", "c", {}, "fp16", 2.0)
    assert kept.identity(["m", "", None, "3"], "fp16", None) == identity
    kept.keep_identity(["m", "", None, "3"], identity, tmp_path / "weights", None)
    assert json.loads(path.read_text()) == record
    (tmp_path / "weights").write_text("other weights")
    assert kept.identity(["m", "", None, "3"], "fp16", None) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "text"])
def test_a_damaged_shard_is_noticed_with_a_word(entry, rows, damage, caplog):
    entry.write(0, rows)
    file = entry.path / "00000.safetensors"
    content = file.read_bytes()
    changed = {
        "truncate": content[: len(content) // 2],
        "flip": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        "empty": b"",
        "text": b"not a shard",
    }
    file.write_bytes(changed[damage])
    assert entry.read(0) is None
    assert "damaged" in caplog.text


def test_a_shard_of_the_wrong_length_counts_as_missing(entry, rows):
    entry.write(0, rows[:7])
    assert entry.read(0) is None


def test_an_interrupted_write_leaves_nothing(entry, rows, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        entry.write(0, rows)
    assert [path.name for path in entry.path.iterdir()] == ["entry.json"]


def test_a_store_that_cannot_be_written_is_a_warning(tmp_path, rows, caplog):
    (tmp_path / "file").write_text("in the way")
    entry = Store(tmp_path / "file").entry({}, SHARD, {})
    with entry.lock():
        entry.write(0, rows)
    assert "going on without storing" in caplog.text


def test_strays_of_a_killed_run_go_when_the_next_one_begins(entry, rows):
    entry.write(0, rows)
    (entry.path / f".00001.safetensors.xyz{files.PART}").write_bytes(b"half")
    with entry.lock():
        pass
    assert sorted(path.name for path in entry.path.iterdir()) == ["00000.safetensors", "entry.json"]


def test_a_second_run_waits_for_the_first(entry, tmp_path, caplog):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom clip_tca.encoding.store import Store\n"
        "entry = Store(Path(sys.argv[1])).entry({'weights': 'abc'}, 259, {})\n"
        "with entry.lock():\n    print('locked', flush=True)\n    time.sleep(1)\n    (entry.path / 'done').touch()\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline().strip() == "locked"
    with entry.lock():
        assert (entry.path / "done").exists()
    assert first.wait() == 0
    first.stdout.close()
    assert "another run is encoding pacs/photo" in caplog.text


def test_a_killed_run_does_not_keep_its_lock(entry, tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom clip_tca.encoding.store import Store\n"
        "with Store(Path(sys.argv[1])).entry({'weights': 'abc'}, 259, {}).lock():\n"
        "    print('locked', flush=True)\n    time.sleep(60)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline().strip() == "locked"
    first.kill()
    first.wait()
    first.stdout.close()
    began = time.monotonic()
    with entry.lock():
        assert time.monotonic() - began < 50  # the other would have slept for 60


def test_list_and_clear(tmp_path, rows):
    kept = Store(tmp_path)
    for number, name in enumerate(("abc", "abd")):
        kept.entry({"weights": name}, SHARD + number, {"title": f"pacs/{name}"}).write(0, rows)
    kept.keep_texts({"texts": "x"}, rows)
    assert {(about["title"], complete) for _, about, _, complete in kept.entries()} == {
        ("pacs/abc", True),
        ("pacs/abd", False),
    }
    key = kept.entries()[0][0]
    with pytest.raises(ValueError, match="no entry 'zzz'"):
        kept.clear(["zzz"])
    assert kept.clear([key[:8]]) == 1
    assert kept.texts({"texts": "x"}) is not None
    assert kept.clear() == 1
    assert kept.entries() == []
    assert kept.texts({"texts": "x"}) is None
    assert list(Path(tmp_path).iterdir()) == []


def test_an_unreadable_description_does_not_break_the_list(tmp_path, rows):
    entry = Store(tmp_path).entry({}, 5, {})
    entry.write(0, rows[:5])
    (entry.path / "entry.json").write_text(json.dumps([1]))
    assert [complete for *_, complete in Store(tmp_path).entries()] == [False]


def test_clear_touches_nothing_that_is_not_ours(tmp_path, rows):
    for folder in ("models", "texts", "embeddings"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.pt").write_text("mine")
    Store(tmp_path).entry({}, 5, {}).write(0, rows[:5])
    Store(tmp_path).keep_texts({}, rows)
    assert Store(tmp_path).clear() == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["mine.pt"] * 3


def test_a_full_disk_is_a_warning(entry, rows, monkeypatch, caplog):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    entry.write(0, rows)
    assert "No space left" in caplog.text
    assert not list(entry.path.glob(".*"))


def test_a_link_stays_a_link_and_a_pipe_stays_a_pipe(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True)
    files.write_text(tmp_path / "pipe", "through")
    assert reader.communicate(timeout=10)[0] == "through"
    assert (tmp_path / "pipe").is_fifo()
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    files.write_tensors(tmp_path / "pipe", {"a": torch.arange(3)}, {})
    assert load(reader.communicate(timeout=10)[0])["a"].tolist() == [0, 1, 2]
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / f"{'ä' * 125}.json"  # 255 bytes
    files.write_text(path, "one")
    with pytest.raises(FileNotFoundError), files.atomic(path) as part:
        part.rename(part.with_name("elsewhere"))
    assert [(file, file.read_text()) for file in tmp_path.iterdir()] == [(path, "one")]
