"""webdataset shards with one embedding for each sample are read as a table of ids and embeddings."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from clip_tca.datasets.formats.registry import open_shard
from tests.datasets.test_formats import Z


def npy(z: np.ndarray) -> bytes:
    np.save(file := io.BytesIO(), z)
    return file.getvalue()


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def samples() -> dict[str, bytes]:
    """As webdataset writes them: the members of a sample beside each other."""
    members = {}
    for number, row in enumerate(Z):
        kinds = {"jpg": b"a picture", "npy": npy(row), "json": b"{}"}
        members |= {f"train/{number:06d}.{kind}": data for kind, data in kinds.items()}
    return members


def read(path: Path, column: str | None = None, rows: int = 16, start: int = 0) -> tuple[np.ndarray, list[str]]:
    blocks = list(open_shard(path, column).blocks(rows, start))
    return np.concatenate([b.z for b in blocks]), [key for b in blocks for key in b.others.column("id").to_pylist()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves the file open
def test_webdataset_itself_finds_the_same_keys_and_arrays(tmp_path):
    import webdataset as wds

    path = tar(tmp_path / "a.tar", samples())
    theirs = list(wds.WebDataset(str(path), shardshuffle=False).decode())
    z, ids = read(path, start=7)
    assert ids == [sample["__key__"] for sample in theirs][7:] == [f"train/{number:06d}" for number in range(7, 53)]
    assert np.array_equal(z, np.stack([sample["npy"] for sample in theirs])[7:])
    assert open_shard(path).rows == 53


def test_of_several_arrays_one_is_named_by_its_kind_and_a_row_of_a_matrix_is_an_embedding_too(tmp_path):
    members = {}
    for number, row in enumerate(Z):
        members[f"{number}.img_emb.npy"] = npy(row)
        members[f"{number}.txt_emb.npy"] = npy(-row[None].astype(">f4"))
    path = tar(tmp_path / "a.tar", members)
    with pytest.raises(ValueError, match=r"which member holds the embeddings\? there are img_emb\.npy, txt_emb\.npy"):
        open_shard(path)
    assert np.array_equal(read(path, "txt_emb.npy")[0], -Z.astype(np.float32))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"0.jpg": b"x"}, "no .npy member in it; each sample needs one embedding, KEY.npy"),
        ({"0.npy": npy(Z)}, r"0\.npy has shape \(53, 6\) of float16; one embedding \(d,\) is needed"),
        ({"0.npy": npy(np.arange(4))}, r"0\.npy has shape \(4,\) of int64"),
        ({"0.npy": b"\x93NUMPY\x01\x00"}, r"truncated or damaged \(0\.npy: "),
        ({"0.npy": npy(Z[0]), "1.npy": npy(Z[0, :5])}, r"1\.npy has 5 numbers of float16, the first one 6 of float16"),
        ({"0.npy": npy(Z[0]), "1.npy": bytes(9_000_000)}, r"1\.npy has 9000000 bytes; it is no embedding"),
    ],
)
def test_what_is_no_embedding_is_refused_with_its_name(members, reason, tmp_path):
    with pytest.raises(ValueError, match=rf"a\.tar: .*{reason}"):
        read(tar(tmp_path / "a.tar", members))


@pytest.mark.parametrize("change", ["head", "members", "end", "header"])
def test_an_archive_that_was_cut_or_damaged_is_noticed_wherever(change, tmp_path):
    path = tar(tmp_path / "a.tar", samples())
    whole = path.read_bytes()
    end = -(-len(whole.rstrip(b"\0")) // 512) * 512
    damaged = {
        "head": whole[:700],
        "members": whole[: 512 * 12],
        "end": whole[:end],
        "header": whole[: 512 * 60] + b"x" * 512 + whole[512 * 61 :],
    }
    path.write_bytes(damaged[change])
    with pytest.raises(ValueError, match=r"a\.tar: (truncated or damaged|no \.npy member)"):
        read(path)


def test_links_in_it_are_not_followed(tmp_path):
    path = tar(tmp_path / "a.tar", {"3.npy": npy(Z[0])})
    np.save(tmp_path / "secret.npy", Z[1])
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("4.npy")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.npy")
        archive.addfile(link)
    assert read(path)[1] == ["3"]
