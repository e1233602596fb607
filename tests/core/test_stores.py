"""A file in a store is read like a local one, appears whole under its name or not at all, and is copied once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest
import torch
from PIL import Image

from clip_tca import LinearTCA, OfflineError, from_pretrained
from clip_tca.cli import main
from clip_tca.core.files import STAMPS, copied, local_copy, write_text
from clip_tca.core.remote import RemotePath, is_url, locate, stamp
from clip_tca.encoding.base import make_encoder
from tests.object_stores import content


def names(folder: Path) -> list[str]:
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in paths if name != STAMPS)


def test_a_path_without_a_scheme_is_local_and_imports_nothing():
    code = "import sys; from clip_tca.core.remote import locate; print(locate('a/b'), 'fsspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["a/b", "False"]


def test_urls_are_told_from_paths_and_have_the_names_of_pathlib(memory, tmp_path):
    assert locate(f"file://{tmp_path}/a.npy") == tmp_path / "a.npy"
    assert [is_url(each) for each in ("s3://a/b", "simplecache::s3://a/b", "a:b", "C:a")] == [True, True, False, False]
    path = locate(f"{memory}/a/b.tar.gz")
    assert (path.name, path.stem, path.suffix) == ("b.tar.gz", "b.tar", ".gz")
    assert str(path.parent / "c") == f"{memory}/a/c"


def test_what_is_written_is_read_listed_and_removed(place):
    path = locate(f"{place}/a/b.txt")
    assert not path.exists()
    write_text(path, "first")
    before = stamp(path)
    write_text(path, "second")
    assert (path.read_text(), path.stat().st_size, path.is_file(), path.is_dir()) == ("second", 6, True, False)
    assert stamp(path) != before
    assert path.parent.is_dir()
    assert [each.name for each in path.parent.iterdir()] == ["b.txt"]
    assert [each.name for each in locate(f"{place}/a/*.txt").matches()] == ["b.txt"]
    with local_copy(path) as local:
        assert local.read_text() == "second"
    assert not local.exists()
    path.unlink()
    path.unlink(missing_ok=True)
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match=r"a/b\.txt: no such file, folder or bucket"):
        path.read_bytes()


class CutError(OSError):
    pass


def test_an_upload_that_is_cut_leaves_the_old_object_and_keeps_the_new_file_here(place, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = locate(f"{place}/a.txt")
    write_text(path, "old")
    cut(path, monkeypatch)
    with pytest.raises(OSError, match=r"a\.txt can't be written \(cut\).*; it is kept in (\S+)") as caught:
        write_text(path, "x" * (6 << 20))
    kept = Path(str(caught.value).rpartition(" ")[2])
    assert kept.read_text() == "x" * (6 << 20)
    assert content(place) == {"a.txt": b"old"}


def cut(path: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store take the first half of what is uploaded."""
    if "memory" in path.fs.protocol:

        def half(self: object, local: str, key: str, **_: object) -> None:
            path.fs.pipe_file(key, b"half")
            raise CutError("cut")

        monkeypatch.setattr(type(path.fs), "put_file", half)
        return
    call = type(path.fs)._call_s3

    async def refuse(self: object, method: str, *arguments: object, **options: object) -> object:
        if method in ("complete_multipart_upload", "put_object"):
            raise CutError("cut")
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(type(path.fs), "_call_s3", refuse)


def test_a_store_without_whole_uploads_gets_a_temporary_name_first(memory, monkeypatch, tmp_path):
    (tmp_path / "a").write_text("x")
    uploads, store = [], type(fsspec.filesystem("memory"))
    put = store.put_file
    monkeypatch.setattr(store, "put_file", lambda self, local, key, **_: (uploads.append(key), put(self, local, key)))
    locate(f"{memory}/b").put(tmp_path / "a")
    assert uploads[0].rpartition("/")[2].startswith(".b.")
    assert content(memory) == {"b": b"x"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("gs://bucket/a.npy", "install gcsfs"),
        ("nowhere://a.npy", "Protocol not known: nowhere; allowed are paths and the URLs of fsspec"),
    ],
)
def test_a_store_that_can_t_be_opened_is_one_line(url, reason, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ValueError, match=reason):
        locate(url)


def test_a_store_that_does_not_answer_is_offline_with_the_address(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(OfflineError, match=rf"{s3}/a\.npy can't be read \("):
        locate(f"{s3}/a.npy").exists()


def test_every_input_and_output_of_a_run_may_be_in_a_store(place, capsys, shifted):
    assert main(["embed", "--dataset", "synthetic", "-o", f"{place}/z.safetensors"]) == 0
    write_text(locate(f"{place}/shares.txt"), "1\n" * 6)
    write_text(locate(f"{place}/r.toml"), '[[run]]\ndataset="demo"')
    words = ["--method", "linear-tca", "--shares", f"{place}/shares.txt", "--recipe", f"{place}/r.toml"]
    capsys.readouterr()
    printed = []
    for source in (f"{place}/z.safetensors", "synthetic"):
        assert main(["eval", "--dataset", source, *words, "-o", f"{place}/record.json", "--overwrite"]) == 0
        printed.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("linear-tca  ")])
    assert printed[0] == printed[1] != []
    assert main(["explain", f"{place}/record.json"]) == 0
    fitted = LinearTCA(shifted.g).fit(shifted.z)
    fitted.save(f"{place}/state.safetensors")
    assert torch.equal(from_pretrained(f"{place}/state.safetensors").W_, fitted.W_)


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_folder_is_copied_once_and_follows_the_store(place, tmp_path, monkeypatch):
    for name in ("a/1.txt", "a/2.txt", "b/c/3.txt"):
        write_text(locate(f"{place}/{name}"), name)
    folder = copied(locate(place), tmp_path / "copies")
    assert names(folder) == ["a/1.txt", "a/2.txt", "b/c/3.txt"]
    assert (folder / "b/c/3.txt").read_text() == "b/c/3.txt"
    fetched, get = [], RemotePath.get
    monkeypatch.setattr(RemotePath, "get", lambda self, local: (fetched.append(self.name), get(self, local))[1])
    assert copied(locate(place), tmp_path / "copies") == folder
    assert fetched == []
    write_text(locate(f"{place}/a/2.txt"), "changed")
    locate(f"{place}/a/1.txt").unlink()
    copied(locate(place), tmp_path / "copies")
    assert fetched == ["2.txt"]
    assert names(folder) == ["a/2.txt", "b/c/3.txt"]
    assert (folder / "a/2.txt").read_text() == "changed"


def test_a_copy_that_was_interrupted_continues(memory, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(("name", "reason"), [("", "no such file, folder or bucket"), ("a/../../b", "leads out of")])
def test_what_can_t_be_copied(name, reason, memory, tmp_path, monkeypatch):
    if name:
        monkeypatch.setattr(RemotePath, "files", lambda self: {name: (self, [])})
    with pytest.raises((FileNotFoundError, ValueError), match=reason):
        copied(locate(f"{memory}/nothing"), tmp_path)


def test_pictures_and_weights_in_a_store_are_copied(memory, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLIP_TCA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path))
    for number, (label, shade) in enumerate([("cat", 40), ("cat", 90), ("dog", 140), ("dog", 200)] * 2):
        Image.new("RGB", (32, 32), (shade, 255 - shade, number * 9)).save(tmp_path / "one.png")
        locate(f"{memory}/pictures/{label}/{number}.png").put(tmp_path / "one.png")
    words = ["--dataset", "folder", "--data-dir", f"{memory}/pictures", "--model", "demo"]
    assert main(["embed", *words, "-o", str(tmp_path / "e.safetensors")]) == 0
    assert "8 images, 384 dimensions" in capsys.readouterr().out
    assert len(list((tmp_path / "data" / "stores").glob("*/*/*.png"))) == 8
    write_text(locate(f"{memory}/weights.safetensors"), "not weights")
    make_encoder("torchvision:resnet18", f"{memory}/weights.safetensors", "cpu")
    assert (next((tmp_path / "weights").glob("*")) / "weights.safetensors").read_text() == "not weights"
