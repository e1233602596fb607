"""Fuzzing: no damaged picture, array, table or saved state ends in a traceback, a hang, a crash or a flood of memory.

    FUZZ_CASES=1000 python -m pytest tests/robustness/test_fuzz.py -n 2 --hypothesis-seed 0

Each case damages a valid file, or makes one up, and gives it to the code that reads such files. Hypothesis draws the
cases and shrinks those that fail. A crash of the interpreter ends a worker of pytest-xdist, which names the test.
Without ``FUZZ_CASES`` there are a few cases, the same in every run.
"""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, DrawFn
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save

import clip_tca
from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.data.embeddings import synthetic
from clip_tca.data.image_source import ImageSource
from clip_tca.data.pictures import MAX_PIXELS, decode, mark
from tests.robustness import answers
from tests.robustness.answers import TooLong, answered, command
from tests.robustness.damage import SIZES, damaged

CASES = int(os.environ.get("FUZZ_CASES", "0"))
DIM = 24
Z = np.random.default_rng(0).standard_normal((53, DIM)).astype(np.float32)


def fuzz(share: float = 1.0) -> Callable[[Any], Any]:
    """A test of many cases, drawn from its argument ``data``."""
    return lambda test: settings(
        max_examples=round((CASES or 30) * share),
        derandomize=not CASES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )(given(data=st.data())(test))


def content(write: Callable[[Path], object], suffix: str) -> bytes:
    """The bytes that ``write(path)`` writes to a file of that suffix."""
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder) / f"seed{suffix}")
        return path.read_bytes()


# -- what the fuzzing itself must notice -------------------------------------------------------------------------------


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda: {}["x"], "KeyError"),
        (lambda: fail(ValueError("")), "empty message"),
        (lambda: fail(ValueError("wrong")), "does not name the file"),
        (lambda: fail(ValueError("case " + "x" * 9999)), "letters"),
        (lambda: np.ones(1 << 29), "MemoryError"),
    ],
)
def test_an_unclear_answer_is_noticed(wrong, reason):
    with pytest.raises(AssertionError, match=reason), answered("case"):
        wrong()


def test_a_hang_is_noticed(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.1)
    with pytest.raises(TooLong), answered():
        [None for _ in iter(int, 1)]  # for ever
    monkeypatch.setattr(answers, "PATIENCE", 0.1)
    with pytest.raises(TooLong), answered():
        time.sleep(60)
    assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_PROF) == (0, 0)


# -- pictures ----------------------------------------------------------------------------------------------------------


@cache
def pictures() -> list[bytes]:
    """Every format that counts as an image, in several modes."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (33, 40, 3), dtype=np.uint8))
    deep = Image.fromarray(np.random.default_rng(1).integers(0, 65536, (20, 20)).astype(np.uint16))
    variants: list[tuple[Any, str, dict[str, Any]]] = [
        (noise, "JPEG", {}), (noise, "JPEG", {"progressive": True}), (noise.convert("CMYK"), "JPEG", {}),
        (noise.convert("L"), "JPEG", {}), (noise, "PNG", {}), (noise.convert("RGBA"), "PNG", {}), (deep, "PNG", {}),
        (noise.convert("P"), "PNG", {"transparency": 3}), (noise.convert("1"), "PNG", {}), (noise, "WEBP", {}),
        (noise, "WEBP", {"lossless": True}), (noise.convert("RGBA"), "WEBP", {}), (noise, "BMP", {}),
        (noise.convert("P"), "BMP", {}), (noise, "TIFF", {}), (noise, "TIFF", {"compression": "tiff_lzw"}),
        (noise, "TIFF", {"compression": "tiff_deflate"}), (noise, "TIFF", {"compression": "jpeg"}),
        (deep, "TIFF", {}), (noise.convert("F").resize((9, 9)), "TIFF", {}), (noise.convert("LAB"), "TIFF", {}),
        (noise.convert("P"), "GIF", {"save_all": True, "append_images": [noise.rotate(90), noise.rotate(180)]}),
        (noise, "PPM", {}), (deep, "PPM", {}),
    ]  # fmt: skip
    contents = []
    for image, form, options in variants:
        image.save(file := io.BytesIO(), form, **options)
        contents.append(file.getvalue())
    return contents


@fuzz(6)
def test_a_picture_that_can_be_decoded_is_rgb_of_a_sane_size(data: DataObject):
    source: bytes | Path = data.draw(damaged(pictures()))
    with answered() as folder:
        if data.draw(st.booleans()):
            (folder / "case.img").write_bytes(source)  # type: ignore[arg-type]
            source = folder / "case.img"
        mark(source)
        picture = decode(source)
        assert picture.mode == "RGB"
        assert 0 < picture.width * picture.height <= MAX_PIXELS


@fuzz()
def test_parquet_of_pictures(data: DataObject):
    rows = [
        {"image": {"bytes": pictures()[4], "path": None}, "label": ("cat", "dog")[i % 2], "domain": "ab"[i // 8]}
        for i in range(16)
    ]
    whole = content(lambda path: pq.write_table(pa.Table.from_pylist(rows), path), ".parquet")
    case = data.draw(damaged([whole]))
    with answered("case", "label", "domain", "image", "class") as folder:
        (folder / "case.parquet").write_bytes(case)
        for domain in ImageSource("folder", hub_id=str(folder / "case.parquet")).load().domains.values():
            with suppress(ValueError):  # a damaged picture is reported with its place by what decodes it
                domain.image(0)


# -- embeddings --------------------------------------------------------------------------------------------------------

SUFFIXES = (".npy", ".safetensors", ".parquet", ".arrow")
KINDS = ("<f4", "<f2", "<f8", ">f4", "|O", "<c8", "<U9", "|V9", "f4,f4", "<f16", "|b1", "<M8[s]", "<i8")


@cache
def encodings(suffix: str) -> list[bytes]:
    """Files of embeddings as other programs write them, in both precisions, with lists of fixed and variable length."""

    def write(path: Path, z: np.ndarray, fixed: bool) -> None:
        kind = pa.from_numpy_dtype(z.dtype)
        lists = pa.array(list(z), pa.list_(kind, z.shape[1]) if fixed else pa.list_(kind))
        table = pa.table({"id": [f"p{i}" for i in range(len(z))], "embedding": lists})
        if suffix == ".npy":
            np.save(path, z)
        elif suffix == ".safetensors":
            save_file({"vectors": z, "ids": np.arange(len(z))}, path)
        elif suffix == ".parquet":
            pq.write_table(table, path, row_group_size=20, compression="snappy" if fixed else "zstd")
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=17)

    variants = ((Z, False), (Z.astype(np.float16), True), (Z[:20], True))
    return [content(lambda path, case=case: write(path, *case), suffix) for case in variants]


@st.composite
def npy(draw: DrawFn) -> bytes:
    """A NumPy file with a made-up header before a little content."""
    shape = draw(st.lists(st.sampled_from((*SIZES, -1, 1 << 70, DIM, 53)), max_size=3))
    kind, order = draw(st.sampled_from(KINDS)), draw(st.booleans())
    header = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {tuple(shape)}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(draw(st.sampled_from((0, 1272))))


def embedding_files(suffix: str) -> Any:
    return damaged(encodings(suffix)) | (npy() if suffix == ".npy" else st.nothing())


@pytest.mark.parametrize("suffix", SUFFIXES)
@fuzz(2)
def test_as_many_rows_as_are_announced_are_adapted_or_left_out(data: DataObject, suffix: str):
    case, column = data.draw(embedding_files(suffix)), data.draw(st.sampled_from((None, None, "vectors", "embedding")))
    with answered() as folder:
        (folder / f"case{suffix}").write_bytes(case)
        np.save(folder / "text.npy", Z[:4])
        words = ["adapt", f"case{suffix}", "--text", "text.npy", "--drop-bad-rows", "-o", "out"]
        if command([*words, *(["--column", column] if column else [])], "case", "text", "row", "column", "dimension"):
            record = json.loads(next((folder / "out").glob("*.json")).read_text(encoding="utf-8"))
            rows = record["rows"] + sum(shard["rows"] for shard in record["left_out"].values())
            assert record["input"]["shards"][0]["rows"] in (None, rows)


@pytest.mark.parametrize("option", ["--text", "--labels", "--head"])
@fuzz()
def test_the_other_inputs_of_adapt(data: DataObject, option: str):
    heads = [content(lambda path: save_file({"weight": Z[:4], "bias": np.zeros(4, np.float32)}, path), "")]
    labels = [content(lambda path: np.save(path, np.arange(len(Z)) % 4), ".npy")]
    cases = {"--text": embedding_files(".npy"), "--labels": damaged(labels) | npy(), "--head": damaged(heads)}
    suffix = ".safetensors" if option == "--head" else ".npy"
    case = data.draw(cases[option])
    with answered() as folder:
        (folder / f"case{suffix}").write_bytes(case)
        np.save(folder / "z.npy", Z)
        np.save(folder / "text.npy", Z[:4])
        words = ["adapt", "z.npy", option, f"case{suffix}", "--write", "labels", "-o", "out.npy"]
        words += ["--text", "text.npy"] if option == "--labels" else []
        command(words, "case", "text: ", "labels: ", "head", "scale: ", "dimension", "classes")


# -- our own safetensors files: stored embeddings and saved states -----------------------------------------------------


@st.composite
def altered(draw: DrawFn, contents: list[bytes]) -> bytes:
    """A whole safetensors file with tensors and metadata lost, replaced or renamed."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(draw(st.sampled_from(contents)))
        with safe_open(file.name, "pt") as source:
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118 (not a dict)
            metadata = dict(source.metadata() or {})
    name = draw(st.sampled_from(sorted(tensors)))
    old, kind = tensors[name], draw(st.integers(0, 7))
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))].clone()
    elif kind == 2:
        tensors[name] = torch.zeros(draw(st.lists(st.sampled_from((0, 1, 2, 5, 8)), max_size=3))).to(old.dtype)
    elif kind == 3:
        kinds = (torch.float16, torch.int64, torch.uint8, torch.bool, torch.float64)
        tensors[name] = old.to(draw(st.sampled_from(kinds)))
    elif kind == 4 and old.is_floating_point() and old.numel():
        tensors[name] = old.clone()
        tensors[name].view(-1)[-1] = draw(st.sampled_from((float("nan"), float("inf"), 1e30, -1e-30)))
    elif kind == 5 and old.ndim:
        tensors[name] = old[: max(0, len(old) - 1)].clone()
    elif kind == 6:
        tensors[draw(st.sampled_from(("x", "a.embeddings", "<script>.embeddings")))] = tensors.pop(name)
    elif metadata:
        values = st.sampled_from(("nan", "-1", "0", "1e400", "x", "", "[]", "{}", "null", "[[1]]", '{"format": 3}'))
        metadata[draw(st.sampled_from(sorted(metadata)))] = draw(values)
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))


@fuzz()
def test_stored_embeddings(data: DataObject):
    seeds = [content(lambda path: synthetic(0, 4, 8, 20).save(path), ".safetensors")]
    case = data.draw(damaged(seeds) | altered(seeds))
    with answered() as folder:
        (folder / "case.safetensors").write_bytes(case)
        command(["eval", "--dataset", "case.safetensors", "--method", "zero-shot", "--method", "linear-tca"], "case")


@cache
def states() -> tuple[torch.Tensor, list[bytes]]:
    """Embeddings, and a saved adapter of every class that was fitted to them."""
    made = synthetic(0, 4, 8, 20)
    g, z = ZeroShotClassifier(made.text, made.scale), made.domains["shifted"][0]
    adapters = (LinearTCA(g), LinearTCA(g, shares="global"), MLPTCA(g, steps=2), ConditionalTCA(g))
    return z, [content(adapter.fit(z).save, ".safetensors") for adapter in adapters]


@fuzz(3)
def test_saved_adapters(data: DataObject):
    z, contents = states()
    case = data.draw(damaged(contents) | altered(contents))
    use = data.draw(st.sampled_from(("load", "explain", "out.onnx", "out.safetensors")))
    with answered("case") as folder:
        (folder / "case.safetensors").write_bytes(case)
        if use == "explain":
            command(["explain", "case.safetensors"], "case")
        elif use == "load":
            adapter = clip_tca.from_pretrained("case.safetensors")
            adapter.predict(z)
            adapter.partial_fit(z[:30]).transform(z)
        else:
            command(["export", "case.safetensors", "-o", use], "case", "MLPTCA is not linear")
