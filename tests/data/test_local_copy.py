"""Copies from mirrors on 127.0.0.1: the real code, with every fault that a mirror can have."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import suppress
from dataclasses import replace

import pytest

from clip_tca.cli import main
from clip_tca.data import local_copy
from clip_tca.data.image_source import ImageSource
from clip_tca.data.local_copy import DOWNLOADS, DRIVE, RECEIPT, get, mirrors_of, unpack
from clip_tca.data.registry import BENCHMARKS
from tests.data.test_hub import pacs, repository, run
from tests.file_server import FileServer
from tests.hub import Hub

VLCS = BENCHMARKS["vlcs"]


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def small(each: int = 2) -> bytes:
    """The layout of DomainBed's archive; counting does not decode the images."""
    places = [f"VLCS/{domain}/{name}/{i}.jpg" for domain in VLCS.domains for name in VLCS.classes for i in range(each)]
    return tarred({place: place.encode() for place in places})


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder for data, and a VLCS of ten images a domain."""
    monkeypatch.setenv("CLIP_TCA_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setitem(
        BENCHMARKS, "vlcs", replace(VLCS, images=dict.fromkeys(VLCS.domains, 10), class_images={}, mirrors=())
    )
    return tmp_path / "data"


def got(*addresses: str):
    return get("vlcs", [[address] for address in addresses])


def test_broken_mirrors_fall_through_to_the_next_and_the_receipt_says_which(data, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    files = {"cut.zip": small(), "wrong.tar.gz": small(), "few.tar.gz": small(1), "no": b"text", "good.tar.gz": small()}
    files["other.zip"] = zipped({"notes/read.me": b"no images"})
    with FileServer(files, {"cut.zip": "stuck"}) as server:
        reasons = {
            "nobody/vlcs": "http://127.0.0.1:9 can't be reached",
            server.url("gone.zip"): "HTTP 404 Not Found",
            server.url("cut.zip"): "broken off after 1 bytes",
            f"{server.url('wrong.tar.gz')}#md5={'0' * 32}": "its MD5 is",
            server.url("few.tar.gz"): "it is not complete (Caltech101 5 images of 10; LabelMe 5 images of 10; SUN09 5",
            server.url("other.zip"): "it does not look like VLCS/{Caltech101",
            server.url("no"): "neither a zip or tar archive nor a Parquet file",
        }
        folder = got(*reasons, server.url("good.tar.gz"))
        assert folder == data / "vlcs"
        receipt = json.loads((folder / RECEIPT).read_text())
        assert receipt["mirror"] == server.url("good.tar.gz")
        assert receipt["files"][0]["sha256"] == hashlib.sha256(files["good.tar.gz"]).hexdigest()
        assert {name: about["images"] for name, about in receipt["domains"].items()} == dict.fromkeys(VLCS.domains, 10)
        shutil.rmtree(data)
        with pytest.raises(ValueError, match="any of its 7 mirrors") as failure:
            got(*reasons)
    first, *lines, last = str(failure.value).splitlines()
    assert "--data-dir DIR" in first
    for line, (address, reason) in zip(lines, reasons.items(), strict=True):
        assert line.startswith(f"  {address.partition('#')[0]}")
        assert reason in line
    assert last.startswith("  the folder must look like VLCS/{Caltech101, LabelMe, SUN09, VOC2007}/{bird, car, chair")
    assert not folder.exists()


def test_the_hub_gives_the_parquet_files_of_a_pinned_commit(tmp_path):
    with Hub() as hub:
        hub.add_dataset("me/terra", repository(tmp_path / "repository", pacs(40, BENCHMARKS["terra"])))
        words = ("data", "get", "terra", "--mirror")
        folder = tmp_path / "data" / "terra"
        assert run(hub, tmp_path, *words, "me/terra@main", HF_HUB_OFFLINE="1").returncode == 1
        wrong = run(hub, tmp_path, *words, f"me/terra@{'f' * 40}")
        assert (wrong.returncode, folder.exists()) == (1, False)
        assert "Invalid rev id" in wrong.stderr
        done = run(hub, tmp_path, *words, f"me/terra@{hub.revision}")
        assert "terra: 40 images, 4 domains, no published counts to compare with, from me/terra@" in done.stdout
        assert json.loads((folder / RECEIPT).read_text())["revision"] == hub.revision
        assert (folder / "data" / "train-00000-of-00001.parquet").is_file()


def test_what_is_there_is_not_got_again_and_never_removed(data):
    with FileServer({"good.tar.gz": small()}) as server:
        folder = got(server.url("good.tar.gz"))
        assert got(server.url("good.tar.gz")) == folder
        assert len(server.requests) == 1
    (folder / RECEIPT).unlink()
    got()
    assert json.loads((folder / RECEIPT).read_text())["mirror"] == "put there by hand"
    (folder / RECEIPT).unlink()
    shutil.rmtree(folder / "VLCS" / "SUN09" / "dog")
    with pytest.raises(ValueError, match=r"is there already, but it is not complete \(SUN09 8 images of 10\); move it"):
        got()
    assert (folder / "VLCS" / "SUN09" / "car" / "0.jpg").is_file()


def test_a_run_that_ended_while_unpacking_leaves_nothing_that_looks_complete_and_loads_nothing_twice(data, monkeypatch):
    def interrupted(_archive, folder):
        (folder / "half.jpg").write_bytes(b"")
        raise KeyboardInterrupt

    with FileServer({"good.tar.gz": small()}) as server:
        monkeypatch.setattr(local_copy, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            got(server.url("good.tar.gz"))
        monkeypatch.setattr(local_copy, "unpack", unpack)
        assert not (data / "vlcs").exists()
        (data / ".vlcs.part").mkdir()
        (data / ".vlcs.part" / "half.jpg").write_bytes(b"")  # as a kill leaves it
        assert not list(got(server.url("good.tar.gz")).rglob("half.jpg"))
        assert len(server.requests) == 1
    assert not (data / DOWNLOADS / "vlcs").exists()


def test_get_goes_on_after_a_kill_and_check_finds_it_complete(data, capsys):
    content = small() + os.urandom(1_000_000)  # gzip files may be followed by anything
    with FileServer({"VLCS.tar.gz": content}, {"VLCS.tar.gz": "slow"}) as server:
        words = ["data", "get", "vlcs", "--mirror", server.url("VLCS.tar.gz")]
        killed = subprocess.Popen([sys.executable, "-m", "clip_tca", *words])
        part = None
        while part is None or part.stat().st_size < 400_000:
            assert killed.poll() is None
            time.sleep(0.05)
            part = next((data / DOWNLOADS / "vlcs").glob("*-VLCS.tar.gz.part"), None)
        killed.kill()
        killed.wait()
        there = part.stat().st_size
        server.faults.clear()
        assert main(words) == 0
        assert server.requests == [("VLCS.tar.gz", ""), ("VLCS.tar.gz", f"bytes={there}-")]
        out, err = capsys.readouterr()
        assert err == ""
        assert f"vlcs: 40 images, 4 domains, as published, from {server.url('VLCS.tar.gz')}\n" in out
    assert main(["data", "check", "--dataset", "vlcs"]) == 0
    assert capsys.readouterr().out.endswith("\ncomplete\n")


def test_a_benchmark_that_is_not_here_is_got_from_the_listed_mirrors(data, tmp_path, monkeypatch):
    listed = tmp_path / "mirrors.json"
    monkeypatch.setenv("CLIP_TCA_MIRRORS", str(listed))
    with FileServer({"VLCS.tar.gz": small()}) as server:
        listed.write_text(json.dumps({"vlcs": ["http://127.0.0.1:9/a.zip", server.url("VLCS.tar.gz")]}))
        loaded = ImageSource("vlcs").load()
    assert loaded.differences() == []
    assert loaded.origin["mirror"] == server.url("VLCS.tar.gz")
    assert len(ImageSource("vlcs", domains=["SUN09"]).load().domains["SUN09"]) == 10
    assert mirrors_of("pacs") == [[address] for address in BENCHMARKS["pacs"].mirrors]
    for damaged in ("[1]", "{"):
        listed.write_text(damaged)
        with pytest.raises(ValueError, match="CLIP_TCA_MIRRORS"):
            mirrors_of("vlcs")


def test_unknown_names_and_addresses_are_refused_before_anything_is_loaded(tmp_path, capsys):
    for words, reason in {
        ("pacs", "imagenet"): "'imagenet' has no known mirror; allowed are pacs, officehome, ",
        ("terra",): "'terra' has no known mirror; allowed are .*, or terra with --mirror ADDRESS",
        ("terra", "--mirror", "ftp://x/y.zip"): "mirror: 'ftp://x/y.zip'; allowed are http",
        ("terra", "--mirror", str(tmp_path / "none.zip")): "mirror: .*none.zip'; allowed are http",
        ("terra", "vlcs", "--mirror", "me/terra"): "an address has one data set",
    }.items():
        assert main(["data", "get", *words]) == 1
        assert re.search(reason, capsys.readouterr().err)
    assert mirrors_of("terra", ["me/terra@v1"]) == [["me/terra@v1"]]


def test_a_page_of_google_drive_means_the_file_behind_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(local_copy, "download", lambda url, *_: asked.append(url) or {})
    pages = ("uc?id=1skwblH1_okBwxWx", "file/d/1skwblH1_okBwxWx/view?usp=sharing", "open?id=1skwblH1_okBwxWx")
    for page in pages:
        with pytest.raises(ValueError, match="any of its 1 mirrors"):
            got(f"https://drive.google.com/{page}")
    assert asked == [f"{DRIVE}1skwblH1_okBwxWx"] * 3


# -- archives ----------------------------------------------------------------------------------------------------------

FILES = {"VLCS/SUN09/dog/1.jpg": b"a" * 5000, "VLCS/SUN09/dog/2.jpg": b"", "VLCS/Real World/x.jpg": b"b"}


@pytest.mark.parametrize("content", [zipped(FILES), tarred(FILES), tarred(FILES, "w")], ids=["zip", "tar.gz", "tar"])
def test_archives_are_unpacked_whatever_their_names_and_damaged_ones_are_named(tmp_path, content):
    (tmp_path / "download").write_bytes(content)
    unpack(tmp_path / "download", tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.jpg")}
    assert {name: path.read_bytes() for name, path in found.items()} == FILES
    middle = content.index(b"1.jpg") + 8 if content[:2] == b"PK" else len(content) // 2
    (tmp_path / "VLCS").write_bytes(content[:middle])
    with pytest.raises(ValueError, match=r"VLCS is (damaged|neither a zip)"):
        unpack(tmp_path / "VLCS", tmp_path / "again")


@pytest.mark.parametrize("name", ["../evil.jpg", "/evil.jpg", "a/../../evil.jpg"])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_nothing_is_written_outside_the_folder(tmp_path, name, pack):
    (tmp_path / "a").write_bytes(pack({name.replace("/evil", f"{tmp_path}/evil") if name[0] == "/" else name: b"x"}))
    with suppress(ValueError):
        unpack(tmp_path / "a", tmp_path / "in" / "out")
    inside = (tmp_path / "in" / "out").resolve()
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(inside)]
    assert [path.name for path in outside] == ["a"]


def test_a_link_that_leads_out_of_the_folder_is_not_unpacked(tmp_path):
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.addfile(link)
    with pytest.raises(ValueError, match="a is damaged or not safe"):
        unpack(tmp_path / "a", tmp_path / "in")
