"""Embeddings, class texts and labels, as ``clip-tca adapt`` takes them: files of every format, and a pipe."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.datasets.test_webdataset import npy as npy_bytes
from tests.datasets.test_webdataset import tar
from tests.robustness.fuzzing.damage import SIZES, damaged, damaged_text
from tests.robustness.fuzzing.target import Target, Unclear, command, content

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".tar")
DIM = 24
Z = np.random.default_rng(0).standard_normal((53, DIM)).astype(np.float32)
TEXT = content(lambda path: np.save(path, Z[:4]), ".npy")
KINDS = ("<f4", "<f2", "<f8", ">f4", "|O", "<c8", "<U9", "|V9", "f4,f4", "<f16", "|b1", "<M8[s]", "<i8")
MEMBERS = ("../x.npy", "/x.npy", "é.npy", ".npy", "a\nb.npy", "vectors.npy")


def encoded(z: np.ndarray, suffix: str, fixed: bool = False) -> bytes:
    """A file of embeddings as other programs write it, in tables beside a column of names."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    kind = pa.from_numpy_dtype(z.dtype)
    lists = pa.array(list(z), pa.list_(kind, z.shape[1]) if fixed else pa.list_(kind))
    table = pa.table({"id": [f"p{i}" for i in range(len(z))], "embedding": lists})

    def stream(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=17)

    compression = "snappy" if fixed else "zstd"
    write: Any = {
        ".npy": lambda path: np.save(path, z),
        ".npz": lambda path: np.savez_compressed(path, ids=np.arange(len(z)), vectors=z),
        ".safetensors": lambda path: save_file({"vectors": z, "ids": np.arange(len(z))}, path),
        ".parquet": lambda path: pq.write_table(table, path, row_group_size=20, compression=compression),
        ".arrow": stream,
        ".feather": lambda path: pyarrow.feather.write_feather(table, path),
        ".tar": lambda path: tar(path, {f"p{i}.vectors.npy": npy_bytes(row) for i, row in enumerate(z)}),
    }[suffix]
    return content(write, suffix)


def encodings(suffix: str) -> list[bytes]:
    """In both precisions, with lists of fixed and of variable length."""
    return [encoded(Z, suffix), encoded(Z.astype(np.float16), suffix, fixed=True), encoded(Z[:20], suffix, fixed=True)]


@st.composite
def npy(draw: DrawFn, zeros: int = 0) -> bytes:
    """A NumPy file with a made-up header before a little content, or before up to ``zeros`` bytes."""
    shape = draw(st.lists(st.sampled_from((*SIZES, -1, 1 << 70, DIM, 53)), max_size=3))
    kind, order = draw(st.sampled_from(KINDS)), draw(st.booleans())
    text = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {tuple(shape)}, }}"
    text = draw(damaged_text([text])) if draw(st.integers(0, 4)) == 4 else text
    header = text.encode("utf-8", "replace") + b"\n"
    length = (len(header) & 0xFFFF).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + header + bytes(draw(st.sampled_from((0, 24, 1272, zeros))))


@st.composite
def npz(draw: DrawFn) -> bytes:
    """An archive of such files under odd names; deflated zeros are many."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.npy", draw(npy(10**7)))
        for name in draw(st.lists(st.sampled_from(MEMBERS[:-1]), unique=True, max_size=2)):
            archive.writestr(name, draw(npy()))
    return file.getvalue()


def files(suffix: str, seeds: list[bytes]) -> SearchStrategy[bytes]:
    """Damaged files of a format; for NumPy's also files with made-up headers."""
    made_up = {".npy": npy(), ".npz": npz()}
    return damaged(seeds) | made_up[suffix] if suffix in made_up else damaged(seeds)


class Files(Target):
    """Embeddings in a file of one format."""

    share = 2.0

    def __init__(self, suffix: str) -> None:
        self.suffix, self.name = suffix, suffix.removeprefix(".")

    @cached_property
    def seeds(self) -> list[bytes]:
        return encodings(self.suffix)

    def cases(self) -> SearchStrategy[Any]:
        return st.tuples(files(self.suffix, self.seeds), st.sampled_from((None, None, "vectors", "embedding")))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Adapt it: as many rows as were announced are written or left out."""
        data, column = case
        (folder / f"case{self.suffix}").write_bytes(data)
        (folder / "text.npy").write_bytes(TEXT)
        words = ["adapt", f"case{self.suffix}", "--text", "text.npy", "--drop-bad-rows", "-o", "out"]
        if not command([*words, *(["--column", column] if column else [])], ("case", "text", "rows", "column")):
            return False
        record = json.loads(next((folder / "out").glob("*.json")).read_text(encoding="utf-8"))
        announced = record["input"]["shards"][0]["rows"]
        rows = record["rows"] + sum(shard["rows"] for shard in record["left_out"].values())
        if announced not in (None, rows):
            raise Unclear(f"{rows} rows, announced were {announced}")
        return True


class Pipe(Target):
    """Embeddings on standard input: an Arrow IPC stream, or a NumPy file."""

    name, share, names = "standard input", 2.0, ("standard input",)

    @cached_property
    def seeds(self) -> list[bytes]:
        return [*encodings(".arrow"), *encodings(".npy")]

    def cases(self) -> SearchStrategy[Any]:
        return st.tuples(damaged(self.seeds) | npy(), st.sampled_from(("embeddings", "labels", "labels,scores")))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Adapt it to standard output."""
        data, kinds = case
        (folder / "text.npy").write_bytes(TEXT)
        words = ["adapt", "-", "--text", "text.npy", "--write", kinds, "-o", "-"]
        return command(words, ("standard input", "text", "rows"), stdin=data)


class Texts(Target):
    """Files of class texts."""

    name = "class texts"

    @cached_property
    def seeds(self) -> dict[str, list[bytes]]:
        return {suffix: encodings(suffix) for suffix in (".npy", ".npz", ".safetensors")}

    def cases(self) -> SearchStrategy[Any]:
        data = st.sampled_from(sorted(self.seeds)).flatmap(
            lambda suffix: st.tuples(st.just(suffix), files(suffix, self.seeds[suffix]))
        )
        return st.tuples(data, st.sampled_from((None, None, "vectors")), st.sampled_from((None, "100")))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Adapt other embeddings with them."""
        (suffix, data), column, scale = case
        (folder / f"case{suffix}").write_bytes(data)
        (folder / "z.npy").write_bytes(self.seeds[".npy"][0])
        words = ["adapt", "z.npy", "--text", f"case{suffix}", "--write", "labels", "-o", "out.npy"]
        words += ["--text-column", column] if column else []
        words += ["--scale", scale] if scale else []
        return command(words, ("case", "text: ", "scale: ", "dimension", "classes"))


class Labels(Target):
    """Files of true classes."""

    name = "labels"

    @cached_property
    def seeds(self) -> list[bytes]:
        labels = np.arange(len(Z)) % 4
        return [content(lambda path: np.save(path, labels), ".npy"), "\n".join(map(str, labels)).encode()]

    def cases(self) -> SearchStrategy[Any]:
        return st.tuples(damaged(self.seeds) | npy(), st.sampled_from((".npy", ".txt")))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Score with them."""
        data, suffix = case
        (folder / f"case{suffix}").write_bytes(data)
        (folder / "z.npy").write_bytes(content(lambda path: np.save(path, Z), ".npy"))
        (folder / "text.npy").write_bytes(TEXT)
        words = ["adapt", "z.npy", "--text", "text.npy", "--labels", f"case{suffix}", "--write", "labels"]
        return command([*words, "-o", "out.npy"], ("case", "labels: "))
