from __future__ import annotations

import hashlib
import os

import pytest

from clip_tca.core import download as module
from clip_tca.core.download import DownloadError, download
from tests.file_server import FileServer

CONTENT = os.urandom(300_000)
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


def test_a_file_comes_whole_with_its_hashes(tmp_path):
    with FileServer({"a.zip": CONTENT}) as server:
        assert download(server.url("a.zip"), tmp_path / "a", {"md5": MD5.upper()}) == {"md5": MD5, "sha256": SHA256}
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_bytes() == CONTENT
        download(server.url("a.zip"), tmp_path / "a")
        assert server.requests == [("a.zip", "")], "a file that is there is not loaded again"


def test_a_killed_download_goes_on_where_it_was(tmp_path):
    with FileServer({"a.zip": CONTENT}) as server:
        (tmp_path / "a.part").write_bytes(CONTENT[:200_000])
        assert download(server.url("a.zip"), tmp_path / "a")["sha256"] == SHA256
        (tmp_path / "b.part").write_bytes(CONTENT)
        assert download(server.url("a.zip"), tmp_path / "b")["sha256"] == SHA256
        assert server.requests == [("a.zip", "bytes=200000-"), ("a.zip", "bytes=300000-")]


def test_a_connection_that_breaks_is_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 20)
    with FileServer({"a.zip": CONTENT}, {"a.zip": "truncated"}) as server:
        assert download(server.url("a.zip"), tmp_path / "a")["sha256"] == SHA256
        assert server.requests[:3] == [("a.zip", ""), ("a.zip", "bytes=100000-"), ("a.zip", "bytes=166666-")]


def test_what_was_loaded_of_a_broken_download_stays_for_the_next_run(tmp_path):
    with FileServer({"a.zip": CONTENT}, {"a.zip": "stuck"}) as server:
        with pytest.raises(DownloadError, match="ended after 1 of 300000 bytes"):
            download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a.part").stat().st_size == 1
        assert not (tmp_path / "a").exists()
        server.faults.clear()
        assert download(server.url("a.zip"), tmp_path / "a")["sha256"] == SHA256


def test_two_versions_of_a_file_are_never_put_together(tmp_path):
    with FileServer({"a.zip": b"old " * 1000}, {"a.zip": "stuck"}) as server:
        with pytest.raises(DownloadError):
            download(server.url("a.zip"), tmp_path / "a")
        server.files["a.zip"], server.faults = CONTENT, {}
        assert download(server.url("a.zip"), tmp_path / "a")["sha256"] == SHA256
        (tmp_path / "b.part").write_bytes(CONTENT + b"longer")
        assert download(server.url("a.zip"), tmp_path / "b")["sha256"] == SHA256
        server.faults["a.zip"] = "deaf"
        (tmp_path / "c.part").write_bytes(CONTENT[:5])
        assert download(server.url("a.zip"), tmp_path / "c")["sha256"] == SHA256


def test_a_wrong_hash_is_named_and_the_file_is_gone(tmp_path):
    reason = f"its MD5 is {MD5}, not {'0' * 32} as published"
    with FileServer({"a.zip": CONTENT}) as server, pytest.raises(DownloadError, match=reason):
        download(server.url("a.zip"), tmp_path / "a", {"md5": "0" * 32})
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_google_drive_is_answered_and_any_other_page_is_no_file(tmp_path):
    with FileServer({"drive": CONTENT, "page": b""}, {"drive": "asks", "page": "page"}) as server:
        assert download(server.url("drive?id=x"), tmp_path / "a")["sha256"] == SHA256
        with pytest.raises(DownloadError, match="a web page came instead of the file"):
            download(server.url("page"), tmp_path / "b")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "begins neither with http"),
        ("http://127.0.0.1:9/a", "Connection refused"),
        ("http://nowhere.invalid/a", "[Nn]ame|[Tt]emporary"),
    ],
)
def test_the_reason_is_in_words(tmp_path, url, reason):
    with pytest.raises(DownloadError, match=reason):
        download(url, tmp_path / "a")
    with FileServer({}) as server, pytest.raises(DownloadError, match=r"^HTTP 404 Not Found$"):
        download(server.url("a"), tmp_path / "a")


def test_too_little_room_is_found_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with FileServer({"a.zip": CONTENT}) as server, pytest.raises(DownloadError, match=r"0.0 GB are needed"):
        download(server.url("a.zip"), tmp_path / "a")
