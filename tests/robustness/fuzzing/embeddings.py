"""Files and streams of embeddings, class texts and labels."""

from __future__ import annotations

import io
import random
import zipfile
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.fuzzing.mutations import NUMBERS, damaged, damaged_text
from benchmarks.fuzzing.target import Target, Unclear, made

Z = np.random.default_rng(0).standard_normal((53, 6)).astype(np.float32)


class Shelf(Target):
    """Files of embeddings of one format."""

    share = 2.0

    def __init__(self, suffix: str) -> None:
        """Of this suffix."""
        self.suffix, self.name = suffix, suffix.removeprefix(".")

    @cached_property
    def seeds(self) -> list[bytes]:
        """As others write them."""
        return [made(lambda path, z=z: self._write(path, z), self.suffix) for z in (Z, Z.astype(np.float16), Z[:, :3])]

    def _write(self, path: Path, z: np.ndarray) -> None:
        import pyarrow as pa
        import pyarrow.feather
        import pyarrow.parquet as pq
        from safetensors.numpy import save_file

        if self.suffix == ".npy":
            np.save(path, z)
        elif self.suffix == ".npz":
            np.savez_compressed(path, ids=np.arange(len(z)), vectors=z)
        elif self.suffix == ".safetensors":
            save_file({"vectors": np.ascontiguousarray(z), "ids": np.arange(len(z))}, path)
        else:
            wide = np.random.default_rng(1).standard_normal((len(z), 16 * z.shape[1]))  # rows of a usual length
            z = wide.astype(z.dtype)
            kind = pa.from_numpy_dtype(z.dtype)
            lists = pa.array(
                list(z), pa.list_(kind, 96) if z.shape[1] == 96 and kind == pa.float16() else pa.list_(kind)
            )
            table = pa.table({"id": [f"p{i}" for i in range(len(z))], "embedding": lists})
            if self.suffix == ".parquet":
                pq.write_table(table, path, row_group_size=20, compression="snappy" if z.shape[1] == 96 else "zstd")
            elif self.suffix == ".arrow":
                with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table, max_chunksize=17)
            else:
                pyarrow.feather.write_feather(table, path)

    def content(self, rng: random.Random) -> bytes:
        """A damaged file, or one whose header says what is not so."""
        if self.suffix in (".npy", ".npz") and rng.random() < 0.3:
            return _headed(self.suffix, rng)
        return damaged(rng.choice(self.seeds), rng, self.seeds)

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read to the end as ``adapt`` does; rows and dimensions must be what was announced."""
        from clip_tca.bulk.reading import pieces
        from clip_tca.bulk.shards import open_shelf

        path = folder / f"case{self.suffix}"
        path.write_bytes(self.content(rng))
        shelf = open_shelf(str(path), rng.choice((None, None, None, "vectors", "embedding")))
        read = 0
        for piece in pieces(shelf, shelf.units()[:100], drop_bad=True):
            read += piece.read
            if piece.block.z.shape[1] != shelf.dim:
                raise Unclear(f"{piece.block.z.shape[1]} dimensions, announced were {shelf.dim}")
        if shelf.rows is not None and len(shelf.units()) <= 100 and read != shelf.rows:
            raise Unclear(f"{read} rows, announced were {shelf.rows}")
        return None


def _headed(suffix: str, rng: random.Random) -> bytes:
    """A NumPy file with a made-up header before a little content; in an archive of deflated zeros, many of them."""
    sizes = (*NUMBERS, -1, 1 << 70, 6, 53)
    shape = tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 2, 2, 2, 2, 3))))
    kind = rng.choice(("<f4", "<f2", "<f8", ">f4", "|O", "<c8", "<U9", "|V9", "f4,f4", "<f16", "|b1", "<M8[s]", "<i8"))
    text = f"{{'descr': {kind!r}, 'fortran_order': {rng.choice((False, True))}, 'shape': {shape}, }}"
    text = damaged_text(text, rng) if rng.random() < 0.2 else text
    header = text.encode("utf-8", "replace") + b"\n"
    data = b"\x93NUMPY\x01\x00" + (len(header) & 0xFFFF).to_bytes(2, "little") + header
    if suffix == ".npy":
        return data + rng.randbytes(rng.choice((0, 24, 1272)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.npy", data + bytes(rng.choice((0, 24, 1272, 10**7))))
        for _ in range(rng.randrange(3)):
            archive.writestr(rng.choice(("../x.npy", "/x.npy", "é.npy", ".npy", "a\nb.npy", "vectors.npy")), data)
    return file.getvalue()


class Pipe(Target):
    """Rows on standard input."""

    name, names = "rows", ("standard input",)

    @cached_property
    def seeds(self) -> list[bytes]:
        """Rows of 6 and of 3."""
        return [b"".join(len(r).to_bytes(4, "little") + r.tobytes() for r in Z[:, :d]) for d in (6, 3)]

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read to the end."""
        from clip_tca.bulk.pipe import RowStream

        stream = RowStream(io.BytesIO(damaged(rng.choice(self.seeds), rng, self.seeds)))
        for block in stream.blocks(0, 0, rng.choice((1, 7, 8192))):
            block.bad()
        return None


class Texts(Target):
    """Files of text embeddings and of labels, as ``adapt`` takes them."""

    name, names = "texts, labels", ("case", "labels: ", "text: ", "scale: ")

    @cached_property
    def seeds(self) -> dict[str, list[bytes]]:
        """By suffix."""
        one, two, three = Shelf(".npy"), Shelf(".npz"), Shelf(".safetensors")
        labels = [made(lambda path: np.save(path, np.arange(9) % 3), ".npy"), b"0 1 2\n0\n1\n"]
        return {".npy": one.seeds, ".npz": two.seeds, ".safetensors": three.seeds, "labels": labels}

    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """Read them."""
        from clip_tca.bulk.class_texts import read_texts
        from clip_tca.cli.adapt import read_labels

        kind = rng.choice(sorted(self.seeds))
        path = folder / f"case{kind if kind != 'labels' else rng.choice(('.npy', '.txt'))}"
        data = damaged(rng.choice(self.seeds[kind]), rng, [part for parts in self.seeds.values() for part in parts])
        path.write_bytes(_headed(kind, rng) if kind in (".npy", ".npz") and rng.random() < 0.3 else data)
        if kind == "labels":
            read_labels(path, 3)
        else:
            read_texts(path, rng.choice((None, None, "vectors")), rng.choice((None, 100.0)), "cpu")
        return None
