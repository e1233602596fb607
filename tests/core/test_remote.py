"""A file in a store is read like a local one, and appears whole under its name or not at all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest
import torch

from clip_tca import LinearTCA, from_pretrained
from clip_tca.cli import main
from clip_tca.core.files import local_copy, write_text
from clip_tca.core.remote import RemotePath, is_url, locate, stamp
from clip_tca.datasets.prompts import load_prompts
from tests.object_stores import content


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
    assert [str(each.name) for each in locate(f"{place}/a/*.txt").matches()] == ["b.txt"]
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
    names, store = [], type(fsspec.filesystem("memory"))
    put = store.put_file
    monkeypatch.setattr(store, "put_file", lambda self, local, key, **_: (names.append(key), put(self, local, key)))
    locate(f"{memory}/b").put(tmp_path / "a")
    assert names[0].rpartition("/")[2].startswith(".b.")
    assert content(memory) == {"b": b"x"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("gs://bucket/a.npy", r'a package for gs:// is missing; run pip install "\.\[gs\]" in a checkout'),
        ("nowhere://a.npy", "Protocol not known: nowhere; allowed are paths and the URLs of fsspec"),
    ],
)
def test_a_store_that_can_t_be_opened_is_one_line(url, reason, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ValueError, match=reason):
        locate(url)


def test_a_store_that_does_not_answer_is_one_line_with_the_address(s3, monkeypatch, capsys):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    assert main(["eval", "--dataset", f"{s3}/a.safetensors"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"{s3}/a.safetensors can't be read (" in lines[0]


def test_a_set_of_embeddings_and_its_record_may_be_in_a_store(place, capsys):
    assert main(["embed", "--dataset", "synthetic", "-o", f"{place}/z.safetensors"]) == 0
    words = ["--method", "linear-tca"]
    assert main(["eval", "--dataset", f"{place}/z.safetensors", *words, "-o", f"{place}/record.json"]) == 0
    printed = capsys.readouterr().out
    assert main(["eval", "--dataset", "synthetic", *words]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("linear-tca  ")]
    assert rows
    assert rows[0] in printed
    assert f'"path": "{place}/z.safetensors"' in content(place)["record.json"].decode()
    assert main(["explain", f"{place}/record.json"]) == 0


def test_prompts_shares_and_recipes_may_be_in_a_store(memory):
    texts = {"p.txt": "a {}.\n", "shares.txt": "1\n" * 6, "r.toml": '[[run]]\ndataset="demo"'}
    for name, text in texts.items():
        write_text(locate(f"{memory}/{name}"), text)
    words = ["--dataset", "synthetic", "--method"]
    assert main(["eval", *words, "linear-tca", "--shares", f"{memory}/shares.txt"]) == 0
    assert main(["eval", *words, "zero-shot", "--recipe", f"{memory}/r.toml"]) == 0
    assert load_prompts(f"{memory}/p.txt", ["cat"]).texts() == ["a cat."]


def test_a_state_is_kept_in_a_store(place, shifted):
    fitted = LinearTCA(shifted.g).fit(shifted.z)
    fitted.save(f"{place}/state.safetensors")
    again = from_pretrained(f"{place}/state.safetensors")
    assert isinstance(again, LinearTCA)
    assert torch.equal(again.W_, fitted.W_)
