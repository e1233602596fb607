from __future__ import annotations

import hashlib
import os

import pytest

from clip_tca.core import download as module
from clip_tca.core.download import DownloadError, download
from tests.file_server import FileServer

CONTENT = os.urandom(300_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


def test_a_file_comes_whole_and_is_not_loaded_again(tmp_path):
    with FileServer({"a.zip": CONTENT}) as server:
        download(server.url("a.zip"), tmp_path / "a", MD5.upper())
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_bytes() == CONTENT
        download(server.url("a.zip"), tmp_path / "a")
        assert server.requests == [("a.zip", "")]


def test_a_killed_download_goes_on_where_it_was(tmp_path):
    with FileServer({"a.zip": CONTENT}) as server:
        for there in (200_000, 300_000):
            (tmp_path / f"{there}.part").write_bytes(CONTENT[:there])
            download(server.url("a.zip"), tmp_path / str(there))
            assert (tmp_path / str(there)).read_bytes() == CONTENT
        assert server.requests == [("a.zip", "bytes=200000-"), ("a.zip", "bytes=300000-")]


def test_a_connection_that_breaks_is_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 20)
    with FileServer({"a.zip": CONTENT}, {"a.zip": "truncated"}) as server:
        download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert server.requests[:3] == [("a.zip", ""), ("a.zip", "bytes=100000-"), ("a.zip", "bytes=166666-")]


def test_what_was_loaded_stays_for_the_next_run_and_two_versions_are_never_put_together(tmp_path):
    with FileServer({"a.zip": CONTENT}, {"a.zip": "stuck"}) as server:
        with pytest.raises(DownloadError, match=r"broken off after 1 bytes \(300000 were announced\)"):
            download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a.part").stat().st_size == 1
        assert not (tmp_path / "a").exists()
        server.files["a.zip"], server.faults = CONTENT[::-1], {}
        download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == CONTENT[::-1]
        (tmp_path / "b.part").write_bytes(CONTENT + b"longer")
        download(server.url("a.zip"), tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == CONTENT[::-1]


def test_a_server_that_knows_no_ranges_sends_the_whole_file(tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT[:5])
    with FileServer({"a.zip": CONTENT}, {"a.zip": "deaf"}) as server:
        download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_hash_is_named_and_the_file_is_gone(tmp_path):
    reason = f"its MD5 is {MD5}, not {'0' * 32} as published"
    with FileServer({"a.zip": CONTENT}) as server, pytest.raises(DownloadError, match=reason):
        download(server.url("a.zip"), tmp_path / "a", "0" * 32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "must begin with http"),
        ("http://127.0.0.1:9/a", "Connection refused"),
        ("missing", r"^HTTP 404 Not Found$"),
        ("page", "the server sent a web page instead of the file"),
    ],
)
def test_the_reason_is_in_words(tmp_path, url, reason):
    with FileServer({"page": b""}, {"page": "page"}) as server, pytest.raises(DownloadError, match=reason):
        download(url if ":" in url else server.url(url), tmp_path / "a")


def test_too_little_room_is_found_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with FileServer({"a.zip": CONTENT}) as server, pytest.raises(DownloadError, match=r"0.0 GB are needed"):
        download(server.url("a.zip"), tmp_path / "a")
