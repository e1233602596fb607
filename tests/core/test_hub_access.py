"""A machine without the hub says so at once, uses what it has, and its environment stays as it was."""

from __future__ import annotations

import os
import re

import pytest

from clip_tca.core.hub_access import cached_file, hub_reachable, told_offline
from tests.hub import Hub

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("HF_HUB_OFFLINE", *PROXIES, *map(str.lower, PROXIES)):
        monkeypatch.delenv(name, raising=False)


def test_a_hub_that_answers_and_one_that_does_not(monkeypatch):
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert hub_reachable()
    before = dict(os.environ)
    assert not hub_reachable()
    assert not told_offline()
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "https_proxy"])
def test_where_the_client_decides_nobody_is_asked(name, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, "1")
    assert hub_reachable()
    assert told_offline() == (name == "HF_HUB_OFFLINE")


def test_what_is_not_in_the_cache_is_named(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    line = "http://127.0.0.1:9 can't be reached, and its cache has no a.safetensors of nobody/nothing"
    with pytest.raises(ConnectionError, match=re.escape(line)):
        cached_file("nobody/nothing", "a.safetensors", "a.bin")
