"""Shards come in order, and their output appears whole or not at all."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from clip_tca.bulk.hub_stream import HubShard, open_hub
from clip_tca.bulk.overlap import read_ahead, write_behind
from clip_tca.bulk.shards import open_embeddings
from clip_tca.bulk.staging import Staging
from tests.datasets.test_formats import Z, write


def test_shards_come_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 1, 100):
        write(tmp_path / f"emb_{number}.npy", Z[:number])
    (tmp_path / "notes.txt").write_text("not a shard")
    (tmp_path / ".hidden.npy").write_text("nor this")
    assert [shard.path.name for shard in open_embeddings(str(tmp_path)).shards] == [
        "emb_1.npy", "emb_9.npy", "emb_10.npy", "emb_100.npy"
    ]  # fmt: skip
    assert len(open_embeddings(str(tmp_path / "emb_1*.npy")).shards) == 3


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_shards_must_agree(tmp_path):
    write(tmp_path / "0.npy")
    write(tmp_path / "1.npy", Z[:, :5])
    with pytest.raises(ValueError, match=r"1\.npy: dimensions 5, but 0\.npy has 6"):
        open_embeddings(str(tmp_path))
    write(tmp_path / "1.npy", Z.astype(np.float32))
    with pytest.raises(ValueError, match=r"1\.npy: dtype float32, but 0\.npy has float16"):
        open_embeddings(str(tmp_path))
    write(tmp_path / "1.npz")
    with pytest.raises(ValueError, match=r"\.npy and \.npz files; all shards must have one format"):
        open_embeddings(str(tmp_path))


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
    monkeypatch.setattr("clip_tca.bulk.hub_stream.hub_reachable", lambda: True)
    with pytest.raises(ValueError, match=r"00001\.parquet: dimensions 3, but 00000\.parquet has 2; all shards must"):
        open_hub("a/b")


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        open_embeddings(str(write(tmp_path / "a.npy", Z[:0])))


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file, folder or pattern"):
        open_embeddings(str(tmp_path / "none*.npy"))
    with pytest.raises(FileNotFoundError, match="no embeddings in this folder"):
        open_embeddings(str(tmp_path))


# -- reading ahead, writing behind -------------------------------------------------------------------------------------


def test_reading_runs_ahead_but_not_away():
    fetched = []

    def items():
        for number in range(50):
            fetched.append(number)
            yield number

    numbers = read_ahead(items(), depth=2)
    assert next(numbers) == 0
    time.sleep(0.3)
    assert 2 <= len(fetched) <= 4
    assert list(numbers) == list(range(1, 50))


def test_an_error_ahead_comes_out_and_the_thread_ends():
    before = threading.active_count()

    def items():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(read_ahead(items()))
    unfinished = read_ahead(iter(range(100)))
    next(unfinished)
    unfinished.close()
    assert threading.active_count() == before


def test_an_error_behind_comes_out_at_the_next_call():
    def fail() -> None:
        raise OSError("full")

    with write_behind() as call:
        call(fail)
        with pytest.raises(OSError, match="full"):
            call(lambda: None)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_staging_leaves_nothing_behind(tmp_path):
    def fail() -> None:
        with Staging(tmp_path / "out", single=False) as stage:
            (stage.staged()[0] / "x").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_away(tmp_path):
    (tmp_path / ".out.part" / "out").mkdir(parents=True)
    (tmp_path / ".out.part" / "out" / "half.npy").write_text("half")
    with Staging(tmp_path / "out", single=False) as stage:
        (stage.staged()[0] / "whole").write_text("whole")
        stage.record.write_text("{}")
        stage.commit()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["_clip-tca.json", "out", "whole"]


def test_two_runs_do_not_write_the_same_output(tmp_path):
    with Staging(tmp_path / "out", single=False), pytest.raises(ValueError, match="another run is writing"):
        Staging(tmp_path / "out", single=False).__enter__()


def test_only_a_folder_of_ours_is_ever_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_text("precious")
    with pytest.raises(ValueError, match="did not write"):
        Staging(tmp_path / "photos", single=False, overwrite=True)
    assert (tmp_path / "photos" / "holiday.jpg").read_text() == "precious"
