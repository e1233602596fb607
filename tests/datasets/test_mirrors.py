from __future__ import annotations

import json
import re

import pytest

from clip_tca.datasets.mirrors import MIRRORS, Mirror, RemoteFile, mirrors_of
from clip_tca.datasets.registry import BENCHMARKS


def test_the_hub_comes_first_then_archives_with_hashes_of_the_right_length():
    for name, mirrors in MIRRORS.items():
        assert [bool(mirror.hub_id) for mirror in mirrors] == sorted(
            (bool(mirror.hub_id) for mirror in mirrors), reverse=True
        )
        assert (mirrors[0].hub_id or "") == BENCHMARKS[name].hub_id
        files = [file for mirror in mirrors for file in mirror.files]
        assert len({file.name for file in files}) == len(files)
        for file in files:
            assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in file.hashes.values())
    assert {"pacs", "officehome", "vlcs", "domainnet", "cifar10-c"} <= MIRRORS.keys()


def test_a_page_of_google_drive_means_the_file_behind_it():
    for page in ("uc?id=1skwblH1_okBwxWx", "file/d/1skwblH1_okBwxWx/view?usp=sharing", "open?id=1skwblH1_okBwxWx"):
        address = RemoteFile(f"https://drive.google.com/{page}").address
        assert re.fullmatch(r"https://drive\.usercontent\.google\.com/download\?.*id=1skwblH1_okBwxWx", address)
    assert RemoteFile("https://lab.example/VLCS.tar.gz").address == "https://lab.example/VLCS.tar.gz"


def test_own_mirrors_are_addresses_files_or_hub_ids(tmp_path):
    (tmp_path / "VLCS.zip").write_bytes(b"")
    assert Mirror.at("me/vlcs@v1") == Mirror("me/vlcs", "v1")
    assert Mirror.at(str(tmp_path / "VLCS.zip")).files[0].url == str(tmp_path / "VLCS.zip")
    assert str(Mirror.at("https://lab.example/a.zip")) == "https://lab.example/a.zip"
    for wrong in ("ftp://x/y.zip", str(tmp_path / "none.zip"), "me/vlcs.zip", "vlcs"):
        with pytest.raises(ValueError, match=r"mirror: .*allowed are http"):
            Mirror.at(wrong)


def test_a_file_of_own_mirrors_replaces_the_known_ones(tmp_path, monkeypatch):
    listed = tmp_path / "mirrors.json"
    listed.write_text(json.dumps({"vlcs": ["https://lab.example/VLCS.tar.gz"]}))
    monkeypatch.setenv("CLIP_TCA_MIRRORS", str(listed))
    assert [str(mirror) for mirror in mirrors_of("vlcs")] == ["https://lab.example/VLCS.tar.gz"]
    assert mirrors_of("pacs") == MIRRORS["pacs"]
    for damaged in ("[1]", "{", '{"vlcs": [3]}'):
        listed.write_text(damaged)
        with pytest.raises(ValueError, match="CLIP_TCA_MIRRORS"):
            mirrors_of("vlcs")
