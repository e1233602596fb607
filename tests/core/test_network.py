"""Without a network there is an answer at once; a broken download continues; a file is whole and checked, or absent."""

from __future__ import annotations

import hashlib
import re

import pytest

from clip_tca import OfflineError
from clip_tca.core import network
from clip_tca.core.network import cached_file, download, hub_reachable, told_offline
from tests.file_server import FileServer
from tests.hub import Hub

CONTENT = bytes(i * i % 251 for i in range(300_000))
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def plain(monkeypatch):
    for name in ("HF_HUB_OFFLINE", *PROXIES, *map(str.lower, PROXIES)):
        monkeypatch.delenv(name, raising=False)


def test_a_hub_that_answers_and_one_that_does_not(plain, monkeypatch):
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert hub_reachable()
    assert not hub_reachable()
    line = f"{hub.endpoint} can't be reached, and its cache has no a.safetensors of nobody/nothing"
    with pytest.raises(OfflineError, match=re.escape(line)):
        cached_file("nobody/nothing", "a.safetensors", "a.bin")


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "https_proxy"])
def test_the_hub_is_not_asked_where_only_its_client_knows(name, plain, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, "1")
    assert hub_reachable()
    assert told_offline() == (name == "HF_HUB_OFFLINE")


def test_a_file_comes_whole_and_is_not_loaded_again(tmp_path):
    with FileServer({"a.zip": CONTENT}) as server:
        download(server.url("a.zip"), tmp_path / "a", MD5.upper())
        download(server.url("a.zip"), tmp_path / "a")
        assert server.requests == [("a.zip", "")]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("part", "fault", "asked"),
    [
        (CONTENT[:200_000], "", ["bytes=200000-"]),
        (b"", "truncated", ["", "bytes=100000-", "bytes=166666-"]),
        (CONTENT[:5], "deaf", ["bytes=5-"]),
        (CONTENT + b"longer", "", ["bytes=300006-", ""]),
    ],
)
def test_a_download_continues(part, fault, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(network, "ATTEMPTS", 20)
    (tmp_path / "a.part").write_bytes(part)
    with FileServer({"a.zip": CONTENT}, {"a.zip": fault}) as server:
        download(server.url("a.zip"), tmp_path / "a", MD5)
        assert [start for _, start in server.requests][:3] == asked
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert not (tmp_path / "a.part").exists()


def test_what_a_broken_connection_brought_stays_for_the_next_run(tmp_path):
    with FileServer({"a.zip": CONTENT}, {"a.zip": "stuck"}) as server:
        with pytest.raises(OfflineError, match=r"broken off after 1 bytes \(300000 were announced\)"):
            download(server.url("a.zip"), tmp_path / "a")
        assert (tmp_path / "a.part").read_bytes() == CONTENT[:1]
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("url", "md5", "kind", "reason"),
    [
        ("file:///etc/passwd", "", ValueError, "must begin with http"),
        ("http://127.0.0.1:9/a", "", OfflineError, "Connection refused"),
        ("missing", "", ValueError, "HTTP 404 Not Found"),
        ("page", "", ValueError, "the server sent a web page instead of the file"),
        ("a", "0" * 32, ValueError, f"its MD5 is {MD5}, not {'0' * 32} as published"),
    ],
)
def test_what_can_t_be_downloaded_is_named_and_leaves_nothing(url, md5, kind, reason, tmp_path):
    files, faults = {"page": b"", "a": CONTENT}, {"page": "page"}
    with FileServer(files, faults) as server, pytest.raises(ValueError, match=reason) as caught:
        download(url if ":" in url else server.url(url), tmp_path / "a", md5)
    assert type(caught.value) is kind
    assert list(tmp_path.iterdir()) == []
