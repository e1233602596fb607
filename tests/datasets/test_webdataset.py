"""webdataset shards with one embedding for each sample are read as a table of ids and embeddings."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from clip_tca.datasets.formats.registry import open_shard

Z = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float16)


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


def samples(z: np.ndarray = Z, suffix: str = "npy") -> dict[str, bytes]:
    """As webdataset writes them: the members of a sample beside each other."""
    members = {}
    for number, row in enumerate(z):
        members[f"train/{number:06d}.jpg"] = b"a picture"
        members[f"train/{number:06d}.{suffix}"] = npy(row)
        members[f"train/{number:06d}.json"] = b"{}"
    return members


def read(path: Path, column: str | None = None, rows: int = 16) -> tuple[np.ndarray, list[str]]:
    blocks = list(open_shard(path, column).blocks(rows))
    return np.concatenate([b.z for b in blocks]), [key for b in blocks for key in b.others.column("id").to_pylist()]


def test_embeddings_come_in_order_with_the_keys_of_their_samples(tmp_path):
    z, ids = read(tar(tmp_path / "a.tar", samples()))
    assert z.dtype == np.float16
    assert np.array_equal(z, Z)
    assert ids == [f"train/{number:06d}" for number in range(40)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves the file open
def test_webdataset_itself_finds_the_same_keys_and_arrays(tmp_path):
    import webdataset as wds

    path = tar(tmp_path / "a.tar", samples())
    z, ids = read(path)
    theirs = list(wds.WebDataset(str(path), shardshuffle=False).decode())
    assert [sample["__key__"] for sample in theirs] == ids
    assert np.array_equal(np.stack([sample["npy"] for sample in theirs]), z)


def test_a_row_of_a_matrix_is_an_embedding_too(tmp_path):
    path = tar(tmp_path / "a.tar", {f"{i}.npy": npy(row[None].astype(">f4")) for i, row in enumerate(Z)})
    assert np.array_equal(read(path)[0], Z.astype(np.float32))


def test_of_several_arrays_one_is_named_by_its_kind(tmp_path):
    members = {}
    for number, row in enumerate(Z):
        members[f"{number}.img_emb.npy"] = npy(row)
        members[f"{number}.txt_emb.npy"] = npy(-row)
    path = tar(tmp_path / "a.tar", members)
    with pytest.raises(ValueError, match=r"which member holds the embeddings\? there are img_emb\.npy, txt_emb\.npy"):
        open_shard(path)
    assert np.array_equal(read(path, "txt_emb.npy")[0], -Z)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"0.jpg": b"x"}, "no .npy member in it; each sample needs one embedding, KEY.npy"),
        ({"0.npy": npy(Z)}, r"0\.npy has shape \(40, 6\) of float16; one embedding \(d,\) is needed"),
        ({"0.npy": npy(np.float32(3))}, r"0\.npy has shape \(\)"),
        ({"0.npy": npy(np.arange(4))}, r"0\.npy has shape \(4,\) of int64"),
        ({"0.npy": b"\x93NUMPY\x01\x00"}, r"truncated or damaged \(0\.npy: "),
        ({"0.npy": npy(Z[0])[:-2]}, r"truncated or damaged \(0\.npy: 10 bytes of 12"),
        ({"0.npy": npy(Z[0]), "1.npy": npy(Z[0, :5])}, r"1\.npy has 5 numbers of float16, the first one 6 of float16"),
        ({"0.npy": npy(Z[0]), "1.npy": npy(Z[0].astype("f4"))}, r"1\.npy has 6 numbers of float32"),
        ({"0.npy": npy(Z[0]), "1.npy": bytes(9_000_000)}, r"1\.npy has 9000000 bytes; it is no embedding"),
    ],
)
def test_what_is_no_embedding_is_refused_with_its_name(members, reason, tmp_path):
    with pytest.raises(ValueError, match=rf"a\.tar: .*{reason}"):
        read(tar(tmp_path / "a.tar", members))


@pytest.mark.parametrize("cut", [700, 512 * 9, 512 * 12, -10240 - 512, -10240])
def test_an_archive_that_was_cut_is_noticed_wherever(cut, tmp_path):
    path = tar(tmp_path / "a.tar", samples())
    whole = path.read_bytes()
    end = whole.rstrip(b"\0")
    path.write_bytes(whole[:cut] if cut > 0 else end[: len(end) // 512 * 512 + cut + 10240])
    with pytest.raises(ValueError, match=r"a\.tar: (truncated or damaged|no \.npy member)"):
        read(path)


def test_a_damaged_header_in_the_middle_is_no_end(tmp_path):
    path = tar(tmp_path / "a.tar", samples())
    data = bytearray(path.read_bytes())
    data[512 * 60 : 512 * 61] = b"x" * 512
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.tar: truncated or damaged"):
        read(path)


def test_links_and_folders_in_it_are_not_followed(tmp_path):
    path = tmp_path / "a.tar"
    (tmp_path / "secret.npy").write_bytes(npy(Z[1]))
    with tarfile.open(path, "w") as archive:
        for kind, name in ((tarfile.SYMTYPE, "0.npy"), (tarfile.LNKTYPE, "1.npy"), (tarfile.DIRTYPE, "2.npy")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret.npy")
            archive.addfile(member)
        member = tarfile.TarInfo("3.npy")
        member.size = len(npy(Z[0]))
        archive.addfile(member, io.BytesIO(npy(Z[0])))
    z, ids = read(path)
    assert ids == ["3"]
    assert np.array_equal(z, Z[:1])
