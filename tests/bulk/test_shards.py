"""Files of embeddings of every format are read and written block by block, and what is wrong with one is said."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from clip_tca.bulk.block import Block, Result
from clip_tca.bulk.columns import regrouped
from clip_tca.bulk.hub_stream import HubShard, open_hub
from clip_tca.bulk.layout import lay_out
from clip_tca.bulk.overlap import Behind, ahead
from clip_tca.bulk.pipe import RowSink, RowStream
from clip_tca.bulk.shards import Shelf, Unit, open_shelf, share
from clip_tca.bulk.sinks import ArrayFile
from clip_tca.bulk.staging import Staging

Z = np.random.default_rng(0).standard_normal((53, 6)).astype(np.float16)


def table(z: np.ndarray, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table(
        {"id": [f"p{i}" for i in range(len(z))], "embedding": pa.array(list(z), kind or pa.list_(pa.float16()))}
    )


def write(path: Path, z: np.ndarray = Z) -> Path:
    """``z`` in the format of the suffix, as others write it."""
    if path.suffix == ".npy":
        np.save(path, z)
    elif path.suffix == ".npz":
        np.savez_compressed(path, ids=np.arange(len(z)), vectors=z)
    elif path.suffix == ".safetensors":
        save_file({"vectors": z, "ids": np.arange(len(z))}, path)
    elif path.suffix == ".parquet":
        pq.write_table(table(z), path, row_group_size=10)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table(z).schema) as writer:
            writer.write_table(table(z), max_chunksize=7)
    else:
        pyarrow.feather.write_feather(table(z, pa.list_(pa.float16(), z.shape[1])), path)
    return path


FORMATS = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather")


@pytest.mark.parametrize("rows", [8, 53, 100])
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_rows_in_blocks_of_one_size(suffix, rows, tmp_path):
    shelf = open_shelf(str(write(tmp_path / f"a{suffix}")))
    assert (shelf.rows, shelf.dim, shelf.dtype) == (53, 6, np.float16)
    blocks = list(shelf.shards[0].blocks(0, 53, rows))
    assert [len(block) for block in blocks] == [len(part) for part in np.split(Z, range(rows, 53, rows))]
    assert [block.first for block in blocks] == list(range(0, 53, rows))
    assert np.array_equal(np.concatenate([block.z for block in blocks]), Z)
    if suffix in (".parquet", ".arrow", ".feather"):
        carried = [name for block in blocks for name in block.others.column("id").to_pylist()]
        assert carried == [f"p{i}" for i in range(53)]


def test_any_range_of_an_npy_file_can_be_read(tmp_path):
    shard = open_shelf(str(write(tmp_path / "a.npy"))).shards[0]
    assert np.array_equal(np.concatenate([block.z for block in shard.blocks(11, 40, 6)]), Z[11:40])


def test_the_other_byte_order_and_bfloat16_are_read(tmp_path):
    np.save(tmp_path / "big.npy", Z.astype(">f4"))
    block = next(open_shelf(str(tmp_path / "big.npy")).shards[0].blocks(0, 53))
    assert block.z.dtype == np.dtype("=f4")
    assert np.array_equal(block.z, Z.astype(np.float32))
    from safetensors.torch import save_file as save_torch

    rounded = torch.from_numpy(Z.astype(np.float32)).bfloat16()
    save_torch({"embeddings": rounded}, tmp_path / "b.safetensors")
    found = next(open_shelf(str(tmp_path / "b.safetensors")).shards[0].blocks(0, 53)).z
    assert np.array_equal(found, rounded.float().numpy())


def test_shards_come_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 1, 100):
        write(tmp_path / f"emb_{number}.npy", Z[:number])
    (tmp_path / "notes.txt").write_text("not a shard")
    (tmp_path / ".hidden.npy").write_text("nor this")
    assert [shard.path.name for shard in open_shelf(str(tmp_path)).shards] == [
        "emb_1.npy", "emb_9.npy", "emb_10.npy", "emb_100.npy"
    ]  # fmt: skip
    assert len(open_shelf(str(tmp_path / "emb_1*.npy")).shards) == 3


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_truncated_file_is_said_to_be(suffix, tmp_path):
    path = write(tmp_path / f"a{suffix}", np.random.default_rng(0).standard_normal((5000, 6)).astype(np.float16))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
        list(open_shelf(str(path)).shards[0].blocks(0, 5000))


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_no_such_file_at_all_is_said_to_be(suffix, tmp_path):
    (tmp_path / f"a{suffix}").write_bytes(b"<html>404 Not Found</html>" * 20)
    with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
        open_shelf(str(tmp_path / f"a{suffix}"))


def test_shards_must_agree(tmp_path):
    write(tmp_path / "0.npy")
    write(tmp_path / "1.npy", Z[:, :5])
    with pytest.raises(ValueError, match=r"1\.npy: dimensions 5, but 0\.npy has 6"):
        open_shelf(str(tmp_path))
    write(tmp_path / "1.npy", Z.astype(np.float32))
    with pytest.raises(ValueError, match=r"1\.npy: dtype float32, but 0\.npy has float16"):
        open_shelf(str(tmp_path))
    write(tmp_path / "1.npz")
    with pytest.raises(ValueError, match=r"\.npy and \.npz files; a shelf is of one format"):
        open_shelf(str(tmp_path))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(5, np.float32), "shape"),
        (np.zeros((2, 3, 4), np.float32), "shape"),
        (np.zeros((2, 3), np.int64), "dtype int64"),
        (np.asfortranarray(np.zeros((4, 3), np.float32)), "Fortran"),
        (np.zeros((0, 3), np.float32), "no rows"),
    ],
)
def test_an_array_that_holds_no_embeddings_is_refused(array, reason, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=reason):
        open_shelf(str(tmp_path / "a.npy"))


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[{"a": 1}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy"):
        open_shelf(str(tmp_path / "a.npy"))


def test_which_array_is_asked_where_it_is_not_clear(tmp_path):
    save_file({"left": Z, "right": Z[:, :3].copy()}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"there are left, right; name it with --column"):
        open_shelf(str(tmp_path / "a.safetensors"))
    assert open_shelf(str(tmp_path / "a.safetensors"), "right").dim == 3
    with pytest.raises(ValueError, match="no tensor 'middle'"):
        open_shelf(str(tmp_path / "a.safetensors"), "middle")
    with pytest.raises(ValueError, match=r"z\.npy: one array, without a name; leave out --column vectors"):
        open_shelf(str(write(tmp_path / "z.npy")), "vectors")


def test_rows_of_another_length_are_named(tmp_path):
    uneven = pa.array([[1.0, 2.0]] * 4 + [[1.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": uneven}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 4 has 1 dimensions, the rows before it 2"):
        list(open_shelf(str(tmp_path / "a.parquet")).shards[0].blocks(0, 5))


def test_missing_lists_and_numbers_are_bad_rows(tmp_path):
    rows = pa.array([[1.0, 2.0], None, [3.0, None], [float("inf"), float("-inf")], [4.0, 5.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": rows}), tmp_path / "a.parquet")
    block = next(open_shelf(str(tmp_path / "a.parquet")).shards[0].blocks(0, 5))
    assert block.bad().tolist() == [1, 2, 3]
    assert block.without(block.bad()).z.tolist() == [[1.0, 2.0], [4.0, 5.0]]


def test_rows_whose_text_is_too_large_for_one_batch_are_not_lost(monkeypatch):
    """Past 2 GB of text, pyarrow leaves a table in pieces; here it does so at once."""
    parts = table(Z).to_batches(max_chunksize=7)
    stubborn = SimpleNamespace(
        from_batches=lambda held: SimpleNamespace(combine_chunks=lambda: pa.Table.from_batches(held))
    )
    monkeypatch.setattr("clip_tca.bulk.columns.pa", SimpleNamespace(Table=stubborn))
    assert pa.Table.from_batches(regrouped(parts, 20)).equals(pa.Table.from_batches(parts))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_first_list_may_be_missing(suffix, tmp_path):
    rows = pa.array([None, None, [1.0, 2.0]], pa.list_(pa.float32()))
    write_rows(tmp_path / f"a{suffix}", rows)
    shelf = open_shelf(str(tmp_path / f"a{suffix}"))
    assert (shelf.rows, shelf.dim) == (3, 2)
    block = next(shelf.shards[0].blocks(0, 3))
    assert block.bad().tolist() == [0, 1]
    write_rows(tmp_path / f"a{suffix}", rows[:2])
    with pytest.raises(ValueError, match=f"a{suffix}: every embedding in it is missing"):
        open_shelf(str(tmp_path / f"a{suffix}"))
    write_rows(tmp_path / f"a{suffix}", pa.array([None, []], pa.list_(pa.float32())))
    with pytest.raises(ValueError, match=f"a{suffix}: its first embedding is an empty list"):
        open_shelf(str(tmp_path / f"a{suffix}"))


def write_rows(path: Path, rows: pa.Array) -> None:
    table = pa.table({"embedding": rows})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


@pytest.mark.parametrize(("lists", "dim"), [([None, [1.0, 2.0]], 2), ([None, None], None)])
def test_the_first_list_on_the_hub_may_be_missing(lists, dim):
    from datasets import Dataset

    source = Dataset(pa.table({"embedding": pa.array(lists, pa.list_(pa.float32()))})).to_iterable_dataset()
    if dim:
        assert HubShard(source, 0, "a/b", None).dim == dim
    else:
        with pytest.raises(ValueError, match="a/b, shard 0: every embedding in it is missing"):
            HubShard(source, 0, "a/b", None)


def test_shards_on_the_hub_must_agree(monkeypatch):
    import datasets

    rows = pa.table({"embedding": pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]], pa.list_(pa.float32()))})
    source = datasets.Dataset(rows).to_iterable_dataset(num_shards=2)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: source)
    with pytest.raises(ValueError, match=r"00001\.parquet: dimensions 3, but 00000\.parquet has 2; all shards must"):
        open_hub("a/b")


def test_a_sum_that_overflows_is_no_bad_row():
    assert Block(np.full((2, 4), 3e38, np.float32), 0).bad().tolist() == []


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file, folder or pattern"):
        open_shelf(str(tmp_path / "none*.npy"))
    with pytest.raises(FileNotFoundError, match="no embeddings in this folder"):
        open_shelf(str(tmp_path))


# -- units -------------------------------------------------------------------------------------------------------------


class Pretended:
    def __init__(self, rows, splittable=True):
        self.rows, self.splittable, self.dim, self.dtype, self.path = rows, splittable, 6, np.dtype("f2"), Path("x.npy")


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_every_row_belongs_to_one_process(processes):
    shelf = Shelf([Pretended(200_000), Pretended(5), Pretended(0), Pretended(90_000, splittable=False)], False)
    units = shelf.units()
    assert [unit.number for unit in units] == list(range(len(units)))
    shares = [share(units, rank, processes) for rank in range(processes)]
    assert [unit for mine in shares for unit in mine] == units
    position = 0
    for unit in units:
        assert unit.first == position
        position += unit.stop - unit.start
    assert position == 290_005
    assert len([unit for unit in units if unit.shard == 3]) == 1


def test_work_is_shared_evenly():
    units = [Unit(i, 0, 10 * i, 10 * i + 10, 10 * i) for i in range(64)]
    assert [len(share(units, rank, 4)) for rank in range(4)] == [16] * 4


# -- rows on a pipe ----------------------------------------------------------------------------------------------------


def piped(z: np.ndarray) -> bytes:
    return b"".join(len(row).to_bytes(4, "little") + row.astype("<f4").tobytes() for row in z)


def test_rows_on_a_pipe():
    stream = RowStream(io.BytesIO(piped(Z)))
    assert stream.dim == 6
    blocks = list(stream.blocks(0, 0, 20))
    assert [len(block) for block in blocks] == [20, 20, 13]
    assert np.array_equal(np.concatenate([block.z for block in blocks]), Z.astype(np.float32))
    out = io.BytesIO()
    result = Result({"labels": np.array([3, 4]), "scores": np.array([0.5, 0.25], np.float32)})
    RowSink(out, ("labels", "scores")).write(result)
    assert out.getvalue() == piped(np.array([[3, 0.5], [4, 0.25]]))


def test_only_what_was_asked_for_goes_down_a_pipe():
    out = io.BytesIO()
    RowSink(out, ("scores",)).write(Result({"labels": np.array([3, 4]), "scores": np.array([0.5, 0.25], np.float32)}))
    assert out.getvalue() == piped(np.array([[0.5], [0.25]]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no rows"),
        (b"\x01\x00", "begins with 0100"),
        (b"\xff\xff\xff\xff123", "begins with ffffffff"),
        (piped(Z[:2])[:-3], "row 1: ends after 21 of 24 bytes"),
        (piped(Z[:2]) + piped(Z[:1, :3]), "row 2: begins with 03000000, not with the length 6"),
    ],
)
def test_a_pipe_of_something_else_is_refused(content, reason):
    with pytest.raises(ValueError, match=reason):
        list(RowStream(io.BytesIO(content)).blocks(0, 0))


# -- reading ahead, writing behind -------------------------------------------------------------------------------------


def test_reading_runs_ahead_but_not_away():
    fetched = []

    def items():
        for number in range(50):
            fetched.append(number)
            yield number

    found = ahead(items(), depth=2)
    assert next(found) == 0
    time.sleep(0.3)
    assert 2 <= len(fetched) <= 4
    assert list(found) == list(range(1, 50))


def test_an_error_ahead_comes_out_and_the_thread_ends():
    before = threading.active_count()

    def items():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(ahead(items()))
    unfinished = ahead(iter(range(100)))
    next(unfinished)
    unfinished.close()
    assert threading.active_count() == before


def test_an_error_behind_comes_out_at_the_next_call():
    def fail() -> None:
        raise OSError("full")

    with Behind() as behind:
        behind.call(fail)
        with pytest.raises(OSError, match="full"):
            behind.call(lambda: None)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_several_processes_write_one_npy_file(tmp_path):
    for start, stop in ((20, 53), (0, 20)):  # in any order
        file = ArrayFile(tmp_path / "a.npy", np.dtype("<f2"), 6, start)
        file.write(Z[start:stop])
        file.close(53)
    assert np.array_equal(np.load(tmp_path / "a.npy"), Z)


def test_staging_leaves_nothing_behind(tmp_path):
    def fail() -> None:
        with Staging(tmp_path / "out", single=False) as stage:
            (stage.inside()[0] / "x").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_away(tmp_path):
    (tmp_path / ".out.part" / "out").mkdir(parents=True)
    (tmp_path / ".out.part" / "out" / "half.npy").write_text("half")
    with Staging(tmp_path / "out", single=False) as stage:
        (stage.inside()[0] / "whole").write_text("whole")
        stage.record.write_text("{}")
        stage.commit()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["_clip-tca.json", "out", "whole"]


def test_two_runs_do_not_write_the_same_output(tmp_path):
    with Staging(tmp_path / "out", single=False), pytest.raises(ValueError, match="another run is writing"):
        Staging(tmp_path / "out", single=False).__enter__()


def test_a_process_that_fails_leaves_alone_what_another_run_is_writing(tmp_path):
    with Staging(tmp_path / "out", single=False) as other:
        with pytest.raises(RuntimeError), Staging(tmp_path / "out", single=False, first=False):
            raise RuntimeError
        assert other.inside()[0].is_dir()


def test_a_process_that_fails_after_the_first_has_died_removes_what_it_left(tmp_path):
    (tmp_path / ".out.part" / "out").mkdir(parents=True)
    with pytest.raises(RuntimeError), Staging(tmp_path / "out", single=False, first=False):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_not_written_where_the_run_has_been_given_up(tmp_path):
    layout = lay_out(open_shelf(str(write(tmp_path / "a.npy"))), tmp_path / "out", ("labels",), Z.dtype)
    with pytest.raises(FileNotFoundError):
        layout.sink(tmp_path / ".out.part" / "out", layout.shelf.shards[0])


def test_only_a_folder_of_ours_is_ever_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_text("dear")
    with pytest.raises(ValueError, match="did not write"):
        Staging(tmp_path / "photos", single=False, overwrite=True)
    assert (tmp_path / "photos" / "holiday.jpg").read_text() == "dear"


def test_packed_files_are_those_of_the_libraries(tmp_path):
    from clip_tca.bulk.sinks import PackedSink

    dtypes = {"embeddings": np.dtype("<f2"), "labels": np.dtype("<i8"), "scores": np.dtype("<f4")}
    labels, scores = np.arange(53), np.linspace(0, 1, 53, dtype=np.float32)
    for suffix in (".npz", ".safetensors"):
        names = {"embeddings": "vectors", "labels": "labels", "scores": "scores"}
        sink = PackedSink(tmp_path / f"a{suffix}", names, dtypes, 6)
        for part in (slice(0, 30), slice(30, 53)):
            sink.write(Result({"embeddings": Z[part], "labels": labels[part], "scores": scores[part]}))
        sink.close()
        found = load_file(tmp_path / f"a{suffix}") if suffix == ".safetensors" else np.load(tmp_path / f"a{suffix}")
        assert np.array_equal(found["vectors"], Z)
        assert np.array_equal(found["labels"], labels)
        assert np.array_equal(found["scores"], scores)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "a.safetensors"]
