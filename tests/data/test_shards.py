"""Shards come in order and agree; clip-retrieval's folders keep their layout and their metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from clip_tca import LinearTCA
from clip_tca.cli import main
from clip_tca.data.shards import open_embeddings
from tests.conftest import Shifted
from tests.data.test_formats import Z as ROWS
from tests.data.test_formats import write
from tests.object_stores import content, upload

SET = Shifted(classes=4, dim=24, images=60)
Z = SET.z.numpy().astype(np.float16)
CUTS = [(0, 0, 100), (2, 100, 130), (10, 130, 240)]
"""Number, first and last row of each part: 2 comes before 10."""


def test_shards_come_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 1, 100):
        write(tmp_path / f"emb_{number}.npy", ROWS[:number])
    (tmp_path / "notes.txt").write_text("not a shard")
    (tmp_path / ".hidden.npy").write_text("nor this")
    names = [shard.path.name for shard in open_embeddings(str(tmp_path)).shards]
    assert names == ["emb_1.npy", "emb_9.npy", "emb_10.npy", "emb_100.npy"]
    assert len(open_embeddings(str(tmp_path / "emb_1*.npy")).shards) == 3


@pytest.mark.parametrize(
    ("name", "z", "says"),
    [
        ("1.npy", ROWS[:, :5], r"1\.npy: dimensions 5, but 0\.npy has 6; all shards must agree"),
        ("1.npy", ROWS.astype(np.float32), r"1\.npy: dtype float32, but 0\.npy has float16"),
        ("1.npz", ROWS, r"\.npy and \.npz files; all shards must have one format"),
    ],
)
def test_shards_must_agree(name, z, says, tmp_path):
    write(tmp_path / "0.npy")
    write(tmp_path / name, z)
    with pytest.raises(ValueError, match=says):
        open_embeddings(str(tmp_path))


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file, folder or pattern"):
        open_embeddings(str(tmp_path / "none*.npy"))
    with pytest.raises(FileNotFoundError, match="no embeddings in this folder"):
        open_embeddings(str(tmp_path))
    with pytest.raises(ValueError, match="no rows"):
        open_embeddings(str(write(tmp_path / "a.npy", ROWS[:0])))


# -- clip-retrieval ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("text.npy", SET.g.text.numpy())
    for name in ("img_emb", "metadata", "text_emb"):
        (tmp_path / "shelf" / name).mkdir(parents=True)
    for number, start, stop in CUTS:
        np.save(f"shelf/img_emb/img_emb_{number}.npy", Z[start:stop])
        rows = range(start, stop)
        table = pa.table({"image_path": [f"p{i}" for i in rows], "caption": [None if i % 3 else "x" for i in rows]})
        pq.write_table(table, f"shelf/metadata/metadata_{number}.parquet", row_group_size=40)
    return tmp_path


def adapt(*words: str) -> int:
    return main(["adapt", *words, "--text", "text.npy", "--scale", str(SET.g.scale), "--method", "linear-tca"])


@pytest.mark.parametrize("kinds", ["embeddings", "embeddings,labels,scores", "labels"])
def test_the_output_has_the_same_layout_and_the_metadata_of_every_row(kinds, shelf):
    assert adapt("shelf", "-o", "out", "--write", kinds) == 0
    fitted = LinearTCA(SET.g).fit(SET.z.half())
    tables = [pq.read_table(f"out/metadata/metadata_{number}.parquet") for number, *_ in CUTS]
    for (number, start, stop), table in zip(CUTS, tables, strict=True):
        assert table["image_path"].to_pylist() == [f"p{i}" for i in range(start, stop)]
        assert table["caption"].null_count == sum(1 for i in range(start, stop) if i % 3)
        if "embeddings" in kinds:
            moved = np.load(f"out/img_emb/img_emb_{number}.npy")
            assert np.allclose(moved, fitted.transform(Z[start:stop]), atol=1e-3)
        else:
            assert not Path("out/img_emb").exists()
        if "labels" in kinds:
            assert np.array_equal(table["tca_label"].to_numpy(), fitted.predict(Z[start:stop]))
        assert ("tca_score" in table.column_names) == ("scores" in kinds)


def test_rows_that_are_dropped_are_dropped_in_both_files(shelf):
    z = np.load("shelf/img_emb/img_emb_2.npy")
    z[5] = np.nan
    np.save("shelf/img_emb/img_emb_2.npy", z)
    assert adapt("shelf", "-o", "out") == 1
    assert adapt("shelf", "-o", "out", "--drop-bad-rows") == 0
    assert len(np.load("out/img_emb/img_emb_2.npy")) == 29
    paths = pq.read_table("out/metadata/metadata_2.parquet")["image_path"].to_pylist()
    assert paths == [f"p{i}" for i in range(100, 130) if i != 105]


def test_it_may_be_in_a_store(shelf, memory):
    assert adapt("shelf", "-o", "out", "--write", "embeddings,labels") == 0
    upload(shelf / "shelf", f"{memory}/shelf")
    assert adapt(f"{memory}/shelf", "-o", f"{memory}/out", "--write", "embeddings,labels") == 0
    names = sorted(str(path.relative_to("out")) for path in Path("out").glob("[im]*/*_*"))
    assert len(names) == 6
    found = content(f"{memory}/out")
    assert all(found[name] == Path("out", name).read_bytes() for name in names)


def test_metadata_that_does_not_belong_to_the_rows_is_refused(shelf, capsys):
    table = pq.read_table("shelf/metadata/metadata_2.parquet")
    pq.write_table(table.slice(1), "shelf/metadata/metadata_2.parquet")
    assert adapt("shelf", "-o", "out") == 1
    assert "metadata_2.parquet: 29 rows, but img_emb_2.npy has 30; they belong row by row" in capsys.readouterr().err
    Path("shelf/metadata/metadata_2.parquet").unlink()
    assert adapt("shelf", "-o", "out") == 1
    assert "metadata_2.parquet is missing; copy it, or name img_emb/" in capsys.readouterr().err
    assert adapt("shelf/img_emb", "-o", "out") == 0  # without metadata, they are shards as any others
    shutil.rmtree("shelf/metadata")
    assert adapt("shelf", "-o", "again") == 0
    assert sorted(path.name for path in Path("again").glob("*.npy")) == sorted(
        path.name for path in Path("out").glob("*.npy")
    )


def test_the_input_is_never_written_over(shelf, capsys):
    assert adapt("shelf", "-o", "shelf", "--overwrite") == 1
    assert "output: shelf is the input; choose another name" in capsys.readouterr().err


def test_what_torch_saved_is_answered_with_the_line_that_converts_it(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    torch.save(torch.from_numpy(ROWS), tmp_path / "b.pt")
    for what in ("b.pt", "*"):
        with pytest.raises(ValueError, match=r"b\.pt: .*np\.save\('b\.npy', torch\.load\('b\.pt'\)\)"):
            open_embeddings(str(tmp_path / what))


def test_an_archive_of_single_embeddings_is_refused_by_its_name(tmp_path):
    (tmp_path / "0.tar").write_bytes(bytes(1024))
    for name, word in {
        "0.tar": "0.tar: not a file of embeddings by its name; allowed are .npy",
        "": "no embeddings",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=word):
            open_embeddings(str(tmp_path / name))
