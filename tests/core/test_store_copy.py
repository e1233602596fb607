"""Pictures and weights in a store are copied once; then only what has changed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from clip_tca.cli import main
from clip_tca.core.files import STAMPS, copied, write_text
from clip_tca.core.remote import RemotePath, locate
from clip_tca.encoding.base import make_encoder


def names(folder: Path) -> list[str]:
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if name != STAMPS)


def test_a_folder_is_copied_once_and_follows_the_store(place, tmp_path, monkeypatch):
    for name in ("a/1.txt", "a/2.txt", "b/c/3.txt"):
        write_text(locate(f"{place}/{name}"), name)
    folder = copied(locate(place), tmp_path / "copies")
    assert names(folder) == ["a/1.txt", "a/2.txt", "b/c/3.txt"]
    assert (folder / "b/c/3.txt").read_text() == "b/c/3.txt"
    fetched = []
    get = RemotePath.get
    monkeypatch.setattr(RemotePath, "get", lambda self, local: (fetched.append(self.name), get(self, local))[1])
    assert copied(locate(place), tmp_path / "copies") == folder
    assert fetched == []
    write_text(locate(f"{place}/a/2.txt"), "changed")
    locate(f"{place}/a/1.txt").unlink()
    copied(locate(place), tmp_path / "copies")
    assert fetched == ["2.txt"]
    assert names(folder) == ["a/2.txt", "b/c/3.txt"]
    assert (folder / "a/2.txt").read_text() == "changed"


def test_a_copy_that_was_interrupted_goes_on(memory, tmp_path, monkeypatch):
    for number in range(4):
        write_text(locate(f"{memory}/{number}.txt"), str(number))
    get, fetched = RemotePath.get, []

    def broken(self, local):
        fetched.append(self.name)
        if len(fetched) == 3:
            raise OSError("the network is gone")
        get(self, local)

    monkeypatch.setattr(RemotePath, "get", broken)
    with pytest.raises(OSError, match="the network is gone"):
        copied(locate(memory), tmp_path)
    (folder,) = tmp_path.iterdir()
    with (folder / STAMPS).open("a") as log:
        log.write('["2.t')  # as a kill leaves it
    copied(locate(memory), tmp_path)
    assert fetched == ["0.txt", "1.txt", "2.txt", "2.txt", "3.txt"]
    assert names(folder) == ["0.txt", "1.txt", "2.txt", "3.txt"]


def test_nothing_at_the_address_is_one_line(memory, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file, folder or bucket"):
        copied(locate(f"{memory}/nothing"), tmp_path)


def test_pictures_in_a_store_are_evaluated(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLIP_TCA_DATA", str(tmp_path / "data"))
    for number, (label, shade) in enumerate([("cat", 40), ("cat", 90), ("dog", 140), ("dog", 200)] * 2):
        file = tmp_path / "one.png"
        Image.new("RGB", (32, 32), (shade, 255 - shade, number * 9)).save(file)
        locate(f"{place}/{label}/{number}.png").put(file)
    words = ["--dataset", "folder", "--data-dir", place, "--model", "demo"]
    assert main(["embed", *words, "-o", str(tmp_path / "e.safetensors")]) == 0
    assert "8 images, 384 dimensions" in capsys.readouterr().out
    assert len(list((tmp_path / "data" / "stores").glob("*/*/*.png"))) == 8


def test_weights_in_a_store_are_copied(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path))
    write_text(locate(f"{memory}/weights.safetensors"), "not weights")
    encoder = make_encoder("torchvision:resnet18", f"{memory}/weights.safetensors", "cpu")
    assert (next((tmp_path / "weights").glob("*")) / "weights.safetensors").read_text() == "not weights"
    with pytest.raises(ValueError, match=r"weights\.safetensors"):
        encoder.identity  # noqa: B018
