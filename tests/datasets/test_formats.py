"""Files of embeddings of every format are read and written block by block, and errors name the file."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from clip_tca.datasets.formats import npy, registry
from clip_tca.datasets.formats.base import ROWS, VALUES, Block, Result, Target, block_rows
from clip_tca.datasets.formats.columns import regrouped
from clip_tca.datasets.formats.npy import NpyWriter
from clip_tca.datasets.formats.npz import NpzSink
from clip_tca.datasets.formats.registry import open_shard
from clip_tca.datasets.formats.safetensors import SafetensorsSink

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
    shard = open_shard(write(tmp_path / f"a{suffix}"))
    assert (shard.rows, shard.dim, shard.dtype) == (53, 6, np.float16)
    blocks = list(shard.blocks(rows))
    assert [len(block) for block in blocks] == [len(part) for part in np.split(Z, range(rows, 53, rows))]
    assert [block.first for block in blocks] == list(range(0, 53, rows))
    assert np.array_equal(np.concatenate([block.z for block in blocks]), Z)
    if suffix in (".parquet", ".arrow", ".feather"):
        carried = [name for block in blocks for name in block.others.column("id").to_pylist()]
        assert carried == [f"p{i}" for i in range(53)]


def test_the_other_byte_order_and_bfloat16_are_read(tmp_path):
    np.save(tmp_path / "big.npy", Z.astype(">f4"))
    block = next(open_shard(tmp_path / "big.npy").blocks())
    assert block.z.dtype == np.dtype("=f4")
    assert np.array_equal(block.z, Z.astype(np.float32))
    from safetensors.torch import save_file as save_torch

    rounded = torch.from_numpy(Z.astype(np.float32)).bfloat16()
    save_torch({"embeddings": rounded}, tmp_path / "b.safetensors")
    z = next(open_shard(tmp_path / "b.safetensors").blocks()).z
    assert np.array_equal(z, rounded.float().numpy())


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_truncated_file_is_said_to_be(suffix, tmp_path):
    path = write(tmp_path / f"a{suffix}", np.random.default_rng(0).standard_normal((5000, 6)).astype(np.float16))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
        list(open_shard(path).blocks())


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_no_such_file_at_all_is_said_to_be(suffix, tmp_path):
    (tmp_path / f"a{suffix}").write_bytes(b"<html>404 Not Found</html>" * 20)
    with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
        open_shard(tmp_path / f"a{suffix}")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(5, np.float32), "shape"),
        (np.zeros((2, 3, 4), np.float32), "shape"),
        (np.zeros((2, 3), np.int64), "dtype int64"),
        (np.asfortranarray(np.zeros((4, 3), np.float32)), "Fortran"),
    ],
)
def test_an_array_that_holds_no_embeddings_is_refused(array, reason, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=reason):
        open_shard(tmp_path / "a.npy")


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[{"a": 1}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy"):
        open_shard(tmp_path / "a.npy")


def test_which_array_is_asked_where_it_is_not_clear(tmp_path):
    save_file({"left": Z, "right": Z[:, :3].copy()}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"there are left, right; name it with --column"):
        open_shard(tmp_path / "a.safetensors")
    assert open_shard(tmp_path / "a.safetensors", "right").dim == 3
    with pytest.raises(ValueError, match="no tensor 'middle'"):
        open_shard(tmp_path / "a.safetensors", "middle")
    with pytest.raises(ValueError, match=r"z\.npy: one array, without a name; leave out --column vectors"):
        open_shard(write(tmp_path / "z.npy"), "vectors")


def test_rows_of_another_length_are_named(tmp_path):
    uneven = pa.array([[1.0, 2.0]] * 4 + [[1.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": uneven}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 4 has 1 dimensions, the rows before it 2"):
        list(open_shard(tmp_path / "a.parquet").blocks())


def test_missing_lists_and_numbers_are_bad_rows(tmp_path):
    rows = pa.array([[1.0, 2.0], None, [3.0, None], [float("inf"), float("-inf")], [4.0, 5.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": rows}), tmp_path / "a.parquet")
    block = next(open_shard(tmp_path / "a.parquet").blocks())
    assert block.bad().tolist() == [1, 2, 3]
    assert block.without(block.bad()).z.tolist() == [[1.0, 2.0], [4.0, 5.0]]


def test_rows_whose_text_is_too_large_for_one_batch_are_not_lost(monkeypatch):
    """Past 2 GB of text, pyarrow leaves a table in pieces; here it does so at once."""
    parts = table(Z).to_batches(max_chunksize=7)
    stubborn = SimpleNamespace(
        from_batches=lambda held: SimpleNamespace(combine_chunks=lambda: pa.Table.from_batches(held))
    )
    monkeypatch.setattr("clip_tca.datasets.formats.columns.pa", SimpleNamespace(Table=stubborn))
    assert pa.Table.from_batches(regrouped(parts, 20)).equals(pa.Table.from_batches(parts))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_first_list_may_be_missing(suffix, tmp_path):
    rows = pa.array([None, None, [1.0, 2.0]], pa.list_(pa.float32()))
    write_rows(tmp_path / f"a{suffix}", rows)
    shard = open_shard(tmp_path / f"a{suffix}")
    assert (shard.rows, shard.dim) == (3, 2)
    block = next(shard.blocks())
    assert block.bad().tolist() == [0, 1]
    write_rows(tmp_path / f"a{suffix}", rows[:2])
    with pytest.raises(ValueError, match=f"a{suffix}: every embedding in it is missing"):
        open_shard(tmp_path / f"a{suffix}")
    write_rows(tmp_path / f"a{suffix}", pa.array([None, []], pa.list_(pa.float32())))
    with pytest.raises(ValueError, match=f"a{suffix}: its first embedding is an empty list"):
        open_shard(tmp_path / f"a{suffix}")


def write_rows(path: Path, rows: pa.Array) -> None:
    table = pa.table({"embedding": rows})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


def test_a_sum_that_overflows_is_no_bad_row():
    assert Block(np.full((2, 4), 3e38, np.float32), 0).bad().tolist() == []


# -- writing -----------------------------------------------------------------------------------------------------------


def test_the_checksum_counted_while_writing_is_that_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(npy, "PIECE", 100)
    monkeypatch.setattr(npy, "BEHIND", 200)
    path = tmp_path / "a.npy"
    file = NpyWriter(path, np.dtype("<f2"), 6, rows=53)
    for part in (Z[:30], Z[30:]):
        file.write(part)
    assert file.close() == {path: zlib.crc32(path.read_bytes())}
    assert np.array_equal(np.load(path), Z)


def test_packed_files_are_those_of_the_libraries(tmp_path):
    dtypes = {"embeddings": np.dtype("<f2"), "labels": np.dtype("<i8"), "scores": np.dtype("<f4")}
    labels, scores = np.arange(53), np.linspace(0, 1, 53, dtype=np.float32)
    for suffix, packed in {".npz": NpzSink, ".safetensors": SafetensorsSink}.items():
        sink = packed(Target(dict.fromkeys(dtypes, tmp_path / f"a{suffix}"), dtypes), "vectors", 6)
        for part in (slice(0, 30), slice(30, 53)):
            sink.write(Result({"embeddings": Z[part], "labels": labels[part], "scores": scores[part]}))
        sink.close()
        arrays = load_file(tmp_path / f"a{suffix}") if suffix == ".safetensors" else np.load(tmp_path / f"a{suffix}")
        assert np.array_equal(arrays["vectors"], Z)
        assert np.array_equal(arrays["labels"], labels)
        assert np.array_equal(arrays["scores"], scores)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "a.safetensors"]


# -- the registry ------------------------------------------------------------------------------------------------------


def test_every_format_has_a_module_and_every_module_a_suffix():
    modules = {path.stem for path in Path(registry.__file__).parent.glob("*.py")}
    shared = {"__init__", "arrays", "base", "columns", "kinds", "registry", "stream"}
    assert {name.split(".")[0] for name in registry.FORMATS.values()} == modules - shared


def test_pyarrow_is_imported_only_for_a_table(tmp_path):
    write(tmp_path / "a.npy")
    code = "import sys; from pathlib import Path; from clip_tca.datasets.formats.registry import open_shard; "
    code += "open_shard(Path(sys.argv[1])); sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.npy"], check=True)


def test_blocks_of_long_rows_take_bounded_memory():
    assert block_rows(512) == block_rows(2048) == ROWS
    assert block_rows(40_000) * 40_000 <= VALUES
    assert block_rows(2 * VALUES) == 1
