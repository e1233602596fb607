"""Copies from mirrors on 127.0.0.1: the real code, with every fault that a mirror can have."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from clip_tca.cli import main
from clip_tca.datasets import image_source
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.local_copy import DOWNLOADS, RECEIPT, Getter, found
from clip_tca.datasets.mirrors import Mirror, RemoteFile
from clip_tca.datasets.registry import BENCHMARKS
from tests.datasets.test_archives import tarred, zipped
from tests.datasets.test_hub import pacs, repository
from tests.file_server import FileServer
from tests.hub import Hub

VLCS = BENCHMARKS["vlcs"]
SMALL = replace(VLCS, images=dict.fromkeys(VLCS.domains, 10), class_images={})


def images(each: dict[str, list[int]]) -> dict[str, bytes]:
    """The layout of DomainBed's archive; counting does not decode the images."""
    return {
        f"VLCS/{domain}/{name}/{i}.jpg": b"%d" % i
        for domain, counts in each.items()
        for name, count in zip(VLCS.classes, counts, strict=True)
        for i in range(count)
    }


def small(each: int = 2) -> bytes:
    return tarred(images({domain: [each] * 5 for domain in VLCS.domains}))


def getter(tmp_path, *mirrors: Mirror | str, benchmark=SMALL) -> Getter:
    return Getter(benchmark, [m if isinstance(m, Mirror) else Mirror.at(m) for m in mirrors], tmp_path / "data")


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path))
    monkeypatch.delenv("CLIP_TCA_DATA", raising=False)
    monkeypatch.setitem(BENCHMARKS, "vlcs", SMALL)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def gone(hub_id, *_):
        raise ValueError(f"{hub_id}: could not be loaded") from FileNotFoundError("it is gone from the hub")

    monkeypatch.setattr("clip_tca.datasets.hub.load_hub", gone)
    return tmp_path


def test_broken_mirrors_fall_through_to_the_next_and_the_receipt_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    files = {"cut.zip": small(), "wrong.tar.gz": small(), "few.tar.gz": small(1), "good.tar.gz": small(), "no": b"text"}
    files["other.zip"] = zipped({"notes/read.me": b"no images"})
    with FileServer(files, {"cut.zip": "stuck"}) as server:
        wrong = Mirror(files=(RemoteFile(server.url("wrong.tar.gz"), {"md5": "0" * 32}),))
        broken = [Mirror("nobody/vlcs"), *map(server.url, ("gone.zip", "cut.zip")), wrong]
        broken += map(server.url, ("few.tar.gz", "other.zip", "no"))
        folder = getter(tmp_path, *broken, server.url("good.tar.gz")).get()
        assert folder == tmp_path / "data" / "vlcs"
        receipt = json.loads((folder / RECEIPT).read_text())
        assert receipt["mirror"] == server.url("good.tar.gz")
        assert receipt["files"][0]["sha256"] == hashlib.sha256(files["good.tar.gz"]).hexdigest()
        assert {name: about["images"] for name, about in receipt["domains"].items()} == dict.fromkeys(VLCS.domains, 10)
        assert sorted(names(tmp_path / "data")) == [DOWNLOADS, ".vlcs.lock", "vlcs"]
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(ValueError, match="any of its 7 mirrors") as failure:
            getter(tmp_path, *broken).get()
    lines = str(failure.value).splitlines()
    reasons = [
        "Connection refused",
        "gone.zip: HTTP 404 Not Found",
        "bytes",
        "wrong.tar.gz: its MD5 is",
        "few.tar.gz: it is not complete (Caltech101 5 images of 10; LabelMe 5 images of 10; SUN09 5 images of 10; …)",
        "other.zip: it does not look like VLCS/{Caltech101",
        "no: ",
    ]
    for line, reason in zip(lines[1:], reasons, strict=False):
        assert reason in line
    assert lines[-1].startswith(
        "  the folder must look like VLCS/{Caltech101, LabelMe, SUN09, VOC2007}/{bird, car, chair"
    )
    assert not (tmp_path / "data" / "vlcs").exists()


def test_the_hub_gives_parquet_files_of_a_pinned_commit(tmp_path, monkeypatch):
    with Hub() as hub:
        hub.add_dataset("me/vlcs", repository(tmp_path / "repository", pacs(40, VLCS)))
        for name, value in hub.environment(tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        folder = getter(tmp_path, Mirror("me/vlcs", hub.revision)).get()
        receipt = json.loads((folder / RECEIPT).read_text())
        assert receipt["revision"] == hub.revision
        assert f"/datasets/me/vlcs/resolve/{hub.revision}/data/train-00000-of-00001.parquet" in hub.requests
        assert names(folder) == [RECEIPT, "train-00000-of-00001.parquet"]
        with pytest.raises(ValueError, match="Invalid rev id"):
            replace(getter(tmp_path, Mirror("me/vlcs", "f" * 40)), root=tmp_path / "other").get()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ValueError, match="me/vlcs on the hub: HF_HUB_OFFLINE is set"):
            replace(getter(tmp_path, Mirror("me/vlcs")), root=tmp_path / "other").get()


def test_what_is_there_is_not_got_again_and_never_removed(tmp_path):
    with FileServer({"good.tar.gz": small()}) as server:
        one = getter(tmp_path, server.url("good.tar.gz"))
        assert one.get() == one.get()
        assert len(server.requests) == 1
    (one.folder / RECEIPT).unlink()  # as if put there by hand
    one.get()
    assert json.loads((one.folder / RECEIPT).read_text())["mirror"] == "put there by hand"
    (one.folder / RECEIPT).unlink()
    shutil.rmtree(one.folder / "VLCS" / "SUN09" / "dog")
    with pytest.raises(
        ValueError, match=r"is there already, but it is not complete \(SUN09 8 images of 10\); move it away"
    ):
        one.get()
    assert (one.folder / "VLCS" / "SUN09" / "car" / "0.jpg").is_file()


def test_a_run_that_was_killed_while_unpacking_leaves_nothing_that_looks_complete(tmp_path):
    with FileServer({"good.tar.gz": small()}) as server:
        one = getter(tmp_path, server.url("good.tar.gz"))
        (one.root / ".vlcs.part" / "VLCS" / "SUN09" / "dog").mkdir(parents=True)
        (one.root / ".vlcs.part" / "VLCS" / "SUN09" / "dog" / "half.jpg").write_bytes(b"")
        assert not one.folder.exists()
        assert not list(one.get().rglob("half.jpg"))


def test_a_run_that_was_interrupted_after_its_download_does_not_load_it_again(tmp_path, monkeypatch):
    with FileServer({"good.tar.gz": small()}) as server:
        one = getter(tmp_path, server.url("good.tar.gz"))
        with monkeypatch.context() as patch:
            patch.setattr("clip_tca.datasets.local_copy.unpack", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                one.get()
        assert not one.folder.exists()
        one.get()
        assert len(server.requests) == 1
        assert not (one.root / DOWNLOADS / "vlcs").exists()


def test_get_goes_on_after_a_kill_and_check_finds_it_complete(own_cache, monkeypatch, capsys):
    content = small() + os.urandom(1_000_000)  # gzip files may be followed by anything
    with FileServer({"VLCS.tar.gz": content}, {"VLCS.tar.gz": "slow"}) as server:
        words = ["data", "get", "vlcs", "--mirror", server.url("VLCS.tar.gz")]
        part = own_cache / "data" / DOWNLOADS / "vlcs" / f"{RemoteFile(server.url('VLCS.tar.gz')).name}.part"
        killed = subprocess.Popen([sys.executable, "-m", "clip_tca", *words])
        while not (part.is_file() and part.stat().st_size >= 400_000):
            assert killed.poll() is None
            time.sleep(0.05)
        killed.kill()
        killed.wait()
        there = part.stat().st_size
        server.faults.clear()
        assert main(words) == 0
        assert server.requests == [("VLCS.tar.gz", ""), ("VLCS.tar.gz", f"bytes={there}-")]
        out, err = capsys.readouterr()
        assert err == ""
        assert f"vlcs: 40 images, 4 domains, as published, from {server.url('VLCS.tar.gz')}\n" in out
        assert not part.exists()
    assert main(["data", "check", "--dataset", "vlcs"]) == 0
    assert capsys.readouterr().out.endswith("\ncomplete\n")


def test_eval_takes_the_archive_when_the_hub_copy_is_gone_and_says_so(own_cache, monkeypatch, caplog):
    with FileServer({"VLCS.zip": zipped(images({domain: [2] * 5 for domain in VLCS.domains}))}) as server:
        (own_cache / "mirrors.json").write_text(json.dumps({"vlcs": [server.url("VLCS.zip")]}))
        monkeypatch.setenv("CLIP_TCA_MIRRORS", str(own_cache / "mirrors.json"))
        with caplog.at_level(logging.WARNING, "clip_tca"):
            data = ImageSource("vlcs").load()
        assert data.differences() == []
        assert data.origin["mirror"] == server.url("VLCS.zip")
        assert caplog.messages == [
            "vlcs: ai22mtech12002/DG_VLCS on the hub failed (it is gone from the hub); got it from "
            f"{server.url('VLCS.zip')}, into {own_cache / 'data' / 'vlcs'}"
        ]
    caplog.clear()
    assert found("vlcs") == own_cache / "data" / "vlcs"
    again = ImageSource("vlcs", domains=["SUN09"]).load()
    assert len(again.domains["SUN09"]) == 10
    assert caplog.messages == []
    with pytest.raises(ValueError, match="could not be loaded"):
        ImageSource("vlcs", hub_id="me/vlcs").load()


def test_when_every_mirror_fails_one_message_names_each_and_the_layout(own_cache, monkeypatch):
    (own_cache / "mirrors.json").write_text(json.dumps({"vlcs": ["http://127.0.0.1:9/a.zip"]}))
    monkeypatch.setenv("CLIP_TCA_MIRRORS", str(own_cache / "mirrors.json"))
    with pytest.raises(ValueError, match="any of its 2 mirrors") as failure:
        ImageSource("vlcs").load()
    told = str(failure.value).replace("[Errno 111] ", "").splitlines()
    assert told[1:] == [
        "  ai22mtech12002/DG_VLCS on the hub: it is gone from the hub",
        "  http://127.0.0.1:9/a.zip: Connection refused",
        f"  the folder must look like {VLCS.layout()}",
    ]
    monkeypatch.setattr(image_source, "told_offline", lambda: True)
    with pytest.raises(ValueError, match="A folder must look like VLCS/"):
        ImageSource("vlcs").load()


def test_unknown_names_and_addresses_are_refused_before_anything_is_loaded():
    with pytest.raises(ValueError, match=r"'imagenet' can't be got; allowed are pacs, officehome, vlcs"):
        Getter.of("imagenet")
    with pytest.raises(ValueError, match=r"'terra' can't be got; allowed are .*, or terra with --mirror ADDRESS"):
        Getter.of("terra")
    assert Getter.of("terra", ["me/terra"]).mirrors == (Mirror("me/terra"),)


def test_two_runs_do_not_get_the_same_data_set_at_once(tmp_path):
    with FileServer({"good.tar.gz": small()}) as server:
        one = getter(tmp_path, server.url("good.tar.gz"))
        one.root.mkdir()
        code = (
            "import sys, time; from pathlib import Path; from clip_tca.core.files import lock; "
            "lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(1.5); Path(sys.argv[2]).touch()"
        )
        (one.root / ".vlcs.lock").touch()
        released = tmp_path / "released"
        other = subprocess.Popen(
            [sys.executable, "-c", code, one.root / ".vlcs.lock", released], stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        one.get()
        assert released.exists()
        other.communicate()
