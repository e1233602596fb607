from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from clip_tca.datasets.archives import is_archive, unpack


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w:gz", extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member in extra:
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


FILES = {"VLCS/SUN09/dog/1.jpg": b"a" * 5000, "VLCS/SUN09/dog/2.jpg": b"", "VLCS/Real World/x.jpg": b"b"}


@pytest.mark.parametrize("content", [zipped(FILES), tarred(FILES), tarred(FILES, "w")], ids=["zip", "tar.gz", "tar"])
def test_all_kinds_are_unpacked_whatever_their_names(tmp_path, content):
    (tmp_path / "download").write_bytes(content)
    assert is_archive(tmp_path / "download")
    unpack(tmp_path / "download", tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.jpg")}
    assert {name: path.read_bytes() for name, path in found.items()} == FILES


@pytest.mark.parametrize("name", ["../evil.jpg", "/evil.jpg", "a/../../evil.jpg", "..\\evil.jpg", "C:/evil.jpg"])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_nothing_is_written_outside_the_folder(tmp_path, name, pack):
    (tmp_path / "a").write_bytes(pack({name: b"x"}))
    with pytest.raises(ValueError, match="leads out of its folder"):
        unpack(tmp_path / "a", tmp_path / "in" / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]


def test_links_and_devices_are_left_out(tmp_path):
    link, device = tarfile.TarInfo("out"), tarfile.TarInfo("null")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, str(tmp_path), tarfile.CHRTYPE
    (tmp_path / "a").write_bytes(tarred({"x.jpg": b"1"}, extra=(link, device)))
    unpack(tmp_path / "a", tmp_path / "out")
    assert [path.name for path in Path(tmp_path / "out").iterdir()] == ["x.jpg"]


@pytest.mark.parametrize("content", [zipped(FILES), tarred(FILES)], ids=["zip", "tar.gz"])
def test_a_damaged_archive_is_named(tmp_path, content):
    middle = len(content) // 2 if content[:2] != b"PK" else content.index(b"1.jpg") + 8
    (tmp_path / "VLCS").write_bytes(content[:middle] + b"????" + content[middle + 4 :])
    with pytest.raises(ValueError, match="VLCS is damaged"):
        unpack(tmp_path / "VLCS", tmp_path / "out")
