"""Every format of embeddings keeps one contract: a range is read, it is written back, and damage is one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from clip_tca.data.formats import open_arrays, open_shard
from clip_tca.data.shards import ROWS, VALUES, Block, block_rows

Z = np.random.default_rng(0).standard_normal((53, 6)).astype(np.float16)
LONG = np.random.default_rng(0).standard_normal((5000, 6)).astype(np.float16)
FORMATS = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather")
TABLES = FORMATS[3:]


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
        fixed = table(z, pa.list_(pa.float16(), z.shape[1]))
        pyarrow.feather.write_feather(fixed, path, compression="uncompressed", chunksize=9)
    return path


def by_library(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    """Embeddings, labels and scores as the library of the format reads them."""
    path = paths["embeddings"]
    if path.suffix == ".npy":
        return {kind: np.load(path) for kind, path in paths.items()}
    if path.suffix in (".npz", ".safetensors"):
        arrays = np.load(path) if path.suffix == ".npz" else load_file(path)
        return {"embeddings": arrays["vectors"], "labels": arrays["labels"], "scores": arrays["scores"]}
    readers = {".parquet": pq.read_table, ".feather": pyarrow.feather.read_table}
    rows = readers.get(path.suffix, lambda path: pa.ipc.open_stream(path).read_all())(path)
    assert rows.column_names == ["id", "embedding", "tca_label", "tca_score"]
    assert rows.column("id").to_pylist() == [f"p{i}" for i in range(53)]
    assert pa.types.is_fixed_size_list(rows.schema.field("embedding").type) == (path.suffix == ".feather")
    columns = {"labels": rows.column("tca_label").to_numpy(), "scores": rows.column("tca_score").to_numpy()}
    return {"embeddings": np.array(rows.column("embedding").to_pylist(), np.float32), **columns}


@pytest.mark.parametrize("suffix", FORMATS)
class TestContract:
    @pytest.mark.parametrize("rows", [8, 53, 100])
    def test_blocks_have_one_size_and_hold_all_rows_in_order(self, suffix, rows, tmp_path):
        shard = open_shard(write(tmp_path / f"a{suffix}"))
        blocks = list(shard.blocks(rows))
        assert (shard.rows, shard.dim, shard.dtype) == (53, 6, np.float16)
        assert [block.first for block in blocks] == list(range(0, 53, rows))
        assert all(len(block) == rows for block in blocks[:-1])
        assert np.array_equal(np.concatenate([block.z for block in blocks]), Z)
        if suffix in TABLES:
            assert [name for block in blocks for name in block.others["id"].to_pylist()] == [f"p{i}" for i in range(53)]

    def test_runs_of_rows_are_read_where_they_are_asked_for(self, suffix, tmp_path):
        firsts = [0, 12, 31, 50]
        blocks = list(open_shard(write(tmp_path / f"a{suffix}")).runs(firsts, 5))
        assert [block.first for block in blocks] == firsts
        assert all(np.array_equal(block.z, Z[block.first : block.first + 5]) for block in blocks)

    def test_what_is_written_is_read_by_the_library_of_the_format(self, suffix, tmp_path):
        shard, out = open_shard(write(tmp_path / f"a{suffix}")), tmp_path / "out"
        scores = np.linspace(0, 1, 53, dtype="<f4")
        expected = {"embeddings": -Z.astype("<f4"), "labels": np.arange(53), "scores": scores}
        paths = {kind: out / name for kind, name in shard.outputs(tuple(expected)).items()}
        for path in paths.values():
            path.parent.mkdir(exist_ok=True, parents=True)
        writer = shard.writer(paths, {kind: array.dtype for kind, array in expected.items()})
        for block in shard.blocks(20):
            part = {kind: array[block.first : block.first + len(block)] for kind, array in expected.items()}
            writer.write(part, block.others)
        writer.close()
        for kind, array in by_library(paths).items():
            assert array.dtype == expected[kind].dtype
            assert np.array_equal(array, expected[kind])
        assert sorted(file.relative_to(out).as_posix() for file in out.rglob("*.*")) == shard.written(tuple(expected))

    def test_a_truncated_file_and_one_of_another_kind_are_one_line(self, suffix, tmp_path):
        path = write(tmp_path / f"a{suffix}", LONG)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
        with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
            list(open_shard(path).blocks())
        path.write_bytes(b"<html>404 Not Found</html>" * 20)
        with pytest.raises(ValueError, match=f"a{suffix}: truncated or damaged"):
            open_shard(path)

    def test_a_column_is_chosen_by_its_name(self, suffix, tmp_path):
        path, usual = write(tmp_path / f"a{suffix}"), "embedding" if suffix in TABLES else "vectors"
        if suffix == ".npy":
            with pytest.raises(ValueError, match=r"a\.npy: one array, without a name; leave out --column vectors"):
                open_shard(path, "vectors")
            return
        assert open_shard(path, usual).name == open_shard(path).name == usual
        with pytest.raises(ValueError, match=f"'middle'; there are {usual}"):
            open_shard(path, "middle")


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_run_is_read_without_the_rest_of_the_file(suffix, tmp_path):
    """The rest may be damaged: nothing of it is looked at."""
    path = write(tmp_path / f"a{suffix}", LONG)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    path.write_bytes(content)
    (block,) = open_shard(path).runs([100], 20)
    assert np.array_equal(block.z, LONG[100:120])


def test_the_other_byte_order_and_bfloat16_are_read(tmp_path):
    np.save(tmp_path / "big.npy", Z.astype(">f4"))
    block = next(open_shard(tmp_path / "big.npy").blocks())
    assert block.z.dtype == np.dtype("=f4")
    assert np.array_equal(block.z, Z.astype(np.float32))
    rounded = torch.from_numpy(Z.astype(np.float32)).bfloat16()
    save_tensors({"embeddings": rounded}, tmp_path / "b.safetensors")
    torch.save({"embeddings": rounded}, tmp_path / "b.pt")
    for name in ("b.safetensors", "b.pt"):
        assert np.array_equal(next(open_shard(tmp_path / name).blocks()).z, rounded.float().numpy())


def test_whole_tensors_are_what_the_library_of_safetensors_wrote(tmp_path):
    kinds = (torch.float16, torch.float32, torch.float64, torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64)
    tensors = {str(kind): torch.arange(-3, 9).reshape(3, 1, 4).to(kind) for kind in kinds} | {"none": torch.zeros(0, 4)}
    save_tensors(tensors, tmp_path / "a.safetensors", metadata={"scale": "30"})
    file = open_arrays(tmp_path / "a.safetensors")
    assert file.metadata == {"scale": "30"}
    assert all(torch.equal(file.read(name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(5, np.float32), "shape"),
        (np.zeros((2, 3, 4), np.float32), "shape"),
        (np.zeros((2, 3), np.int64), "dtype int64"),
        (np.asfortranarray(np.zeros((4, 3), np.float32)), "Fortran"),
        (np.array([[{"a": 1}]], dtype=object), r"a\.npy"),  # a pickle, which is not loaded
    ],
)
def test_an_array_that_holds_no_embeddings_is_refused(array, reason, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=reason):
        open_shard(tmp_path / "a.npy")


@pytest.mark.parametrize("shape", ["(1000000000000, 6)", "(-1, 6)", "(53, 1000000000000)"])
def test_a_header_that_claims_more_than_the_file_has_is_refused_before_memory_is_taken(shape, tmp_path):
    text = f"{{'descr': '<f2', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + text.encode() + Z.tobytes())
    with pytest.raises(ValueError, match=r"a\.npy: truncated or damaged \(shape"):
        open_shard(tmp_path / "a.npy")


def test_which_of_several_arrays_is_asked(tmp_path):
    save_file({"left": Z, "right": Z[:, :3].copy()}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"there are left, right; name it with --column"):
        open_shard(tmp_path / "a.safetensors")
    assert open_shard(tmp_path / "a.safetensors", "right").dim == 3


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize(
    ("rows", "bad", "reason"),
    [
        ([[1.0, 2.0], None, [3.0, None], [np.inf, -np.inf], [4.0, 5.0]], [1, 2, 3], None),
        ([None, None, [1.0, 2.0]], [0, 1], None),
        ([[1.0, 2.0]] * 4 + [[1.0]], None, "row 4 has 1 dimensions, the rows before it 2"),
        ([None, None], None, "every embedding in it is missing or empty"),
        ([None, []], None, "every embedding in it is missing or empty"),
    ],
)
def test_missing_lists_and_numbers_are_bad_rows_and_other_lengths_errors(suffix, rows, bad, reason, tmp_path):
    path, lists = tmp_path / f"a{suffix}", pa.table({"embedding": pa.array(rows, pa.list_(pa.float32()))})
    if suffix == ".parquet":
        pq.write_table(lists, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, lists.schema) as writer:
            writer.write_table(lists)
    if reason is not None:
        with pytest.raises(ValueError, match=f"a{suffix}: {reason}"):
            list(open_shard(path).blocks())
        return
    (block,) = open_shard(path).blocks()
    assert block.bad().tolist() == bad
    assert block.without(block.bad()).z.tolist() == [row for i, row in enumerate(rows) if i not in bad]


def test_a_sum_that_overflows_is_no_bad_row():
    assert Block(np.full((2, 4), 3e38, np.float32), 0).bad().tolist() == []


def test_blocks_of_long_rows_take_bounded_memory():
    assert block_rows(512) == block_rows(2048) == ROWS
    assert block_rows(40_000) * 40_000 <= VALUES
    assert block_rows(2 * VALUES) == 1


def test_a_column_of_the_name_of_an_added_one_is_refused(tmp_path):
    pq.write_table(table(Z).append_column("tca_label", [list(range(53))]), tmp_path / "a.parquet")
    shard = open_shard(tmp_path / "a.parquet")
    shard.check_added(("embeddings", "scores"))
    with pytest.raises(ValueError, match=r"a\.parquet: has a column 'tca_label' already; rename it"):
        shard.check_added(("labels",))
