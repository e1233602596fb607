"""The store: what is read is what was written, and nothing is ever half there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from clip_tca.core import files
from clip_tca.core.folders import default_root
from clip_tca.data.pictures import Domain, Picture, content, mark
from clip_tca.encoding import store
from clip_tca.encoding.base import Identity
from clip_tca.encoding.store import NAME, Store, encoder_key, image_key, text_key

ENTRIES = {f"key {i}": bytes([i]) * 2000 for i in range(60)}


def domain(*paths: Path) -> Domain:
    return Domain([Picture(path.name, mark(path), 0, str(path)) for path in paths])


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("CLIP_TCA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "clip-tca"


def test_what_is_got_is_what_was_put(tmp_path):
    kept = Store(tmp_path / "store")
    assert kept.get(ENTRIES) == {}
    kept.put(ENTRIES)
    assert Store(tmp_path / "store").get([*ENTRIES, "another"]) == ENTRIES
    many = {str(i): b"%d" % i for i in range(2 * store.KEYS + 1)}
    kept.put(many)
    assert kept.get(many) == many
    kept.put({"0": b"new"})
    assert kept.get(["0"]) == {"0": b"new"}


def test_a_key_depends_on_all_that_decides_an_embedding():
    one = Identity("m", "", "w", "c", {"size": 224}, "fp32", 100.0)
    others = [
        Identity("m2", "", "w", "c", {"size": 224}, "fp32", 100.0),
        Identity("m", "", "w2", "c", {"size": 224}, "fp32", 100.0),
        Identity("m", "", "w", "c2", {"size": 224}, "fp32", 100.0),
        Identity("m", "", "w", "c", {"size": 225}, "fp32", 100.0),
        Identity("m", "", "w", "c", {"size": 224}, "bf16", 100.0),
    ]
    keys = [image_key(encoder_key(identity), "a") for identity in (one, *others)]
    model = encoder_key(one)
    keys += [image_key(model, "b"), image_key(model, "a", "fog:1 name"), text_key(model, "a")]
    assert len(set(keys)) == len(keys)


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path, monkeypatch):
    kept, path = Store(tmp_path / "store"), tmp_path / "a.bmp"
    path.write_bytes(b"a" * 9000)
    assert kept.contents(domain(path)) == [content(path)]
    monkeypatch.setattr(store, "content", lambda _: "read again")
    assert kept.contents(domain(path)) == [content(path)]
    os.utime(path, (1, 1))
    assert kept.contents(domain(path)) == ["read again"]
    assert kept.contents(Domain([Picture("a", "mark", 0, b"bytes")])) == ["mark"]


def test_the_store_of_version_0_3_is_read_and_written(tmp_path):
    with closing(sqlite3.connect(tmp_path / NAME)) as db, db:
        db.execute("CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB, checksum INTEGER)")
        db.execute("INSERT INTO entries VALUES (?, ?, ?)", (b"old", b"row", 1))
    kept = Store(tmp_path)
    kept.put({"new": b"another"})
    assert kept.get(["old", "new"]) == {"old": b"row", "new": b"another"}


@pytest.mark.parametrize("damage", ["empty", "text", "header only", "cut short"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    kept = Store(tmp_path)
    kept.put(ENTRIES)
    whole = (tmp_path / NAME).read_bytes()
    damaged = {"empty": b"", "text": b"no database" * 999, "header only": whole[:16], "cut short": whole[:-40_000]}
    (tmp_path / NAME).write_bytes(damaged[damage])
    assert kept.get(ENTRIES) == {}
    kept.put(ENTRIES)
    kept.put(ENTRIES)
    assert kept.get(ENTRIES) == ENTRIES


def test_a_store_that_cannot_be_written_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    blocked = Store(tmp_path / "file")
    with blocked.lock("key", "title"):
        blocked.put(ENTRIES)
        blocked.put(ENTRIES)
    assert caplog.text.count("going on without storing") == 1
    assert blocked.get(ENTRIES) == {}


def _put(root: Path, start: int) -> None:
    for i in range(start, start + 50):
        Store(root).put({f"key {i}": b"%d" % i, "shared": b"x"})


def test_several_processes_write_at_once(tmp_path):
    with ProcessPoolExecutor(3, get_context("fork")) as processes:
        list(processes.map(_put, [tmp_path] * 3, (0, 50, 100)))
    assert Store(tmp_path).get(f"key {i}" for i in range(150)) == {f"key {i}": b"%d" % i for i in range(150)}


def test_a_write_that_was_killed_is_undone(tmp_path):
    """As a kill in the middle of a transaction leaves it: pages written, and the journal to undo them."""
    kept = Store(tmp_path)
    kept.put(ENTRIES)
    with closing(sqlite3.connect(tmp_path / NAME)) as db:
        db.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        db.execute("UPDATE entries SET value = zeroblob(2000)")
        shutil.copytree(tmp_path, tmp_path / "killed")
    assert (tmp_path / "killed" / f"{NAME}-journal").stat().st_size
    assert Store(tmp_path / "killed").get(ENTRIES) == ENTRIES


def test_clear_touches_nothing_that_is_not_ours(tmp_path):
    kept = Store(tmp_path)
    kept.put(ENTRIES)
    (tmp_path / "mine.pt").write_text("mine")
    assert kept.clear() == len(ENTRIES)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine.pt"]
    assert kept.clear() == 0


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
