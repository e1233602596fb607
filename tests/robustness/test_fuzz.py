"""Fuzzing: no input to clip-tca ends in a traceback, a hang, a crash or a flood of memory.

    FUZZ_CASES=1000 python -m pytest tests/robustness/test_fuzz.py -n 2 --hypothesis-seed 0

Each case damages a valid file, or makes one up, and gives it to the code that reads such files. Hypothesis draws the
cases and shrinks those that fail. A crash of the interpreter ends a worker of pytest-xdist, which names the test.
Without ``FUZZ_CASES`` there are a few cases, the same in every run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, DrawFn, SearchStrategy
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save

import clip_tca
from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.bulk.run import RECORD
from clip_tca.cli import parser
from clip_tca.cli.eval import recipe_lines
from clip_tca.core.folders import resource
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.pictures import MAX_PIXELS, decode, fault, mark
from clip_tca.datasets.prompts import class_names, load_prompts, read_classes
from clip_tca.datasets.synthetic import synthetic
from tests.datasets.test_webdataset import npy as npy_bytes
from tests.datasets.test_webdataset import tar
from tests.robustness import answers
from tests.robustness.answers import TooLong, answered, command
from tests.robustness.damage import SIZES, damaged, damaged_document, damaged_json, damaged_text, text_files

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


def npy_file(array: np.ndarray) -> bytes:
    return content(lambda path: np.save(path, array), ".npy")


# -- what the fuzzing itself must notice -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda: {}["x"], "KeyError"),
        (lambda: (_ for _ in ()).throw(ValueError("")), "empty message"),
        (lambda: (_ for _ in ()).throw(ValueError("wrong")), "does not name the file"),
        (lambda: (_ for _ in ()).throw(ValueError("case " + "x" * 9999)), "letters"),
        (lambda: np.ones(1 << 40), "MemoryError"),
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


# -- pictures and weights ----------------------------------------------------------------------------------------------


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
def test_what_can_be_decoded_is_rgb_of_a_sane_size(data: DataObject):
    source: bytes | Path = data.draw(damaged(pictures()))
    with answered() as folder:
        if data.draw(st.booleans()):
            (folder / "case.img").write_bytes(source)  # type: ignore[arg-type]
            source = folder / "case.img"
        reason = fault(source)
        mark(source)
        assert reason is None or (reason.strip() and "\n" not in reason)
        picture = decode(source)
        assert picture.mode == "RGB"
        assert 0 < picture.width * picture.height <= MAX_PIXELS


@cache
def parquet_pictures() -> list[bytes]:
    def picture(shade: int) -> bytes:
        Image.new("RGB", (16, 16), (shade, 99, 255 - shade)).save(file := io.BytesIO(), "PNG")
        return file.getvalue()

    rows = [
        {"image": {"bytes": picture(9 * i), "path": None}, "label": ("cat", "dog")[i % 2], "domain": "ab"[i // 8]}
        for i in range(16)
    ]
    table = pa.Table.from_pylist(rows)
    return [
        content(lambda p, how=how: pq.write_table(table, p, compression=how), ".parquet") for how in ("zstd", "none")
    ]


@fuzz()
def test_parquet_of_pictures(data: DataObject):
    case = data.draw(damaged(parquet_pictures()))
    with answered("case", "label", "domain", "image", "class") as folder:
        (folder / "case.parquet").write_bytes(case)
        for domain in ImageSource("folder", hub_id=str(folder / "case.parquet")).load().domains.values():
            with suppress(ValueError):  # a damaged picture is reported with its place by what decodes it
                domain.image(0)


@fuzz()
def test_the_files_of_cifar_10_c(data: DataObject):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    files = {"fog.npy": npy_file(pixels), "labels.npy": npy_file(np.arange(20) % 4)}
    name = data.draw(st.sampled_from(sorted(files)))
    files[name] = data.draw(damaged([files[name]]) | npy())
    with answered("fog", "labels", "case") as folder:
        for each, bytes_ in files.items():
            (folder / each).write_bytes(bytes_)
        for domain in ImageSource("cifar10-c", data_dir=folder, corruptions=["fog"]).load().domains.values():
            domain.image(0)


# -- embeddings, class texts, labels -----------------------------------------------------------------------------------

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".tar")
KINDS = ("<f4", "<f2", "<f8", ">f4", "|O", "<c8", "<U9", "|V9", "f4,f4", "<f16", "|b1", "<M8[s]", "<i8")
MEMBERS = ("../x.npy", "/x.npy", "é.npy", ".npy", "a\nb.npy")


def encoded(z: np.ndarray, suffix: str, fixed: bool = False) -> bytes:
    """A file of embeddings as other programs write it, in tables beside a column of names."""
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


@cache
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
        for name in draw(st.lists(st.sampled_from(MEMBERS), unique=True, max_size=2)):
            archive.writestr(name, draw(npy()))
    return file.getvalue()


def files(suffix: str) -> SearchStrategy[bytes]:
    """Damaged files of a format; for NumPy's also files with made-up headers."""
    made_up = {".npy": npy(), ".npz": npz()}
    return damaged(encodings(suffix)) | made_up.get(suffix, st.nothing())


def some(draw: DataObject, *options: str) -> list[str]:
    """``--option value`` of some of the options, given as ``--option=value``."""
    return [option for option in options if draw.draw(st.booleans())]


@pytest.mark.parametrize("suffix", SUFFIXES)
@fuzz(2)
def test_as_many_rows_as_are_announced_are_adapted_or_left_out(data: DataObject, suffix: str):
    case, column = data.draw(files(suffix)), data.draw(st.sampled_from((None, None, "vectors", "embedding")))
    with answered() as folder:
        (folder / f"case{suffix}").write_bytes(case)
        (folder / "text.npy").write_bytes(npy_file(Z[:4]))
        words = ["adapt", f"case{suffix}", "--text", "text.npy", "--drop-bad-rows", "-o", "out"]
        if command([*words, *(["--column", column] if column else [])], "case", "text", "row", "column", "dimension"):
            record = json.loads(next((folder / "out").glob("*.json")).read_text(encoding="utf-8"))
            rows = record["rows"] + sum(shard["rows"] for shard in record["left_out"].values())
            assert record["input"]["shards"][0]["rows"] in (None, rows)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@fuzz()
def test_class_texts(data: DataObject, suffix: str):
    case, more = data.draw(files(suffix)), some(data, "--text-column=vectors", "--scale=100")
    with answered() as folder:
        (folder / f"case{suffix}").write_bytes(case)
        (folder / "z.npy").write_bytes(npy_file(Z))
        words = ["adapt", "z.npy", "--text", f"case{suffix}", "--write", "labels", "-o", "out.npy", *more]
        command(words, "case", "text: ", "scale: ", "dimension", "classes")


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
@fuzz()
def test_labels(data: DataObject, suffix: str):
    labels = np.arange(len(Z)) % 4
    case = data.draw(damaged([npy_file(labels), "\n".join(map(str, labels)).encode()]) | npy())
    with answered() as folder:
        (folder / f"case{suffix}").write_bytes(case)
        (folder / "z.npy").write_bytes(npy_file(Z))
        (folder / "text.npy").write_bytes(npy_file(Z[:4]))
        words = ["adapt", "z.npy", "--text", "text.npy", "--labels", f"case{suffix}", "--write", "labels"]
        command([*words, "-o", "out.npy"], "case", "labels: ")


@fuzz()
def test_linear_heads(data: DataObject):
    heads = ({"weight": Z[:4], "bias": np.zeros(4, np.float32)}, {"weight": Z[:4].astype(np.float16)})
    case = data.draw(damaged([content(lambda path, head=head: save_file(head, path), "") for head in heads]))
    with answered() as folder:
        (folder / "case.safetensors").write_bytes(case)
        (folder / "z.npy").write_bytes(npy_file(Z))
        words = ["adapt", "z.npy", "--head", "case.safetensors", "--write", "labels", "-o", "out.npy"]
        command(words, "case", "head", "dimension", "classes")


@fuzz()
def test_folders_of_clip_retrieval(data: DataObject):
    whole = {"img_emb/img_emb_1.npy": encoded(Z, ".npy"), "metadata/metadata_1.parquet": encoded(Z, ".parquet")}
    name = data.draw(st.sampled_from(sorted(whole)))
    seeds = [whole[name], encoded(Z[:7], Path(name).suffix)]
    case = data.draw(damaged(seeds) | npy() if name.endswith(".npy") else damaged(seeds))
    with answered() as folder:
        (folder / "text.npy").write_bytes(npy_file(Z[:4]))
        for kind, seed in whole.items():
            (folder / "case" / kind).parent.mkdir(parents=True)
            for number in "01":
                (folder / "case" / kind.replace("1", number)).write_bytes(seed)
        (folder / "case" / name).write_bytes(case)
        words = ["adapt", "case", "--text", "text.npy", "--write", "embeddings,labels", "--drop-bad-rows", "-o", "out"]
        if command(words, "case", "row", "dimension"):
            for number in "01":
                rows = pq.read_metadata(folder / f"out/metadata/metadata_{number}.parquet").num_rows
                assert len(np.load(folder / f"out/img_emb/img_emb_{number}.npy")) == rows


NETWORKS = ("http", "ftp", "s3", "gs:", "gcs", "hf:", "ssh", "smb", "git", "hdfs", "abfs", "az:", "dav", "oci", "oss")
ADDRESSES = [
    "memory://case/in", "memory://case/in/0.npy", "memory://case/*.npy", "memory:///", "memory://", "nowhere://case",
    "file://case/in", "simplecache::memory://case/in", "::", "a::b://c", "memory://case/\0",
]  # fmt: skip


@fuzz()
def test_odd_addresses_as_input_text_output_and_state(data: DataObject):
    import fsspec

    address = data.draw(damaged_text(ADDRESSES) | st.sampled_from(ADDRESSES))
    place = data.draw(st.sampled_from((1, 3, 5, 7)))
    if any(scheme in address.lower() for scheme in NETWORKS):
        return
    store = fsspec.filesystem("memory")
    for name, z in {"in/0.npy": Z, "in/1.npy": Z + 1, "text.npy": Z[:4]}.items():
        store.pipe_file(f"/case/{name}", npy_file(z))
    words = ["adapt", "memory://case/in", "--text", "memory://case/text.npy", "-o", "memory://case/out"]
    words += ["--save-state", "memory://case/state"]
    words[place] = address
    try:
        with answered():
            command(words, codes=(0, 1, 2))
    finally:
        store.store.clear()
        store.pseudo_dirs[:] = [""]


# -- our own files: unfinished runs, states, stored embeddings, records ------------------------------------------------


@fuzz()
def test_a_killed_run_goes_on_to_the_undisturbed_result_though_one_of_its_files_is_damaged(data: DataObject):
    number, share = data.draw(st.integers(0, 99)), data.draw(st.floats(0, 1))  # marks hold times: their bytes differ
    piece, length = data.draw(st.binary(max_size=9)), data.draw(st.sampled_from((0, 1, 100, 1 << 30)))
    with answered() as folder:
        (folder / "in").mkdir()
        (folder / "text.npy").write_bytes(npy_file(Z[:4]))
        for shard in range(3):
            (folder / "in" / f"{shard}.npy").write_bytes(npy_file(Z + shard))
        words = ["adapt", "in", "--text", "text.npy", "-o", "out"]
        command(words, codes=(0,))
        whole = {path.name: path.read_bytes() for path in (folder / "out").glob("*.npy")}
        assert len(whole) == 3
        for name in ("2.npy", ".clip-tca/2.npy.json", RECORD):  # as if it had been killed before its last shard
            (folder / "out" / name).unlink()
        left = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
        path = left[number % len(left)]
        whole_file, at = path.read_bytes(), int(share * path.stat().st_size)
        path.write_bytes(whole_file[:at] + piece + whole_file[at + length :])
        if not command(words, "out"):  # it can't tell whose the files are
            command([*words, "--overwrite"], codes=(0,))
        assert {path.name: path.read_bytes() for path in (folder / "out").glob("*.npy")} == whole


@st.composite
def altered(draw: DrawFn, contents: list[bytes]) -> bytes:
    """A whole safetensors file with tensors and metadata lost, replaced or renamed."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(draw(st.sampled_from(contents)))
        with safe_open(file.name, "pt") as source:
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118 (not a dict)
            metadata = dict(source.metadata() or {})
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        name = draw(st.sampled_from(sorted(tensors)))
        old, kind = tensors[name], draw(st.integers(0, 8))
        if kind == 0 and len(tensors) > 1:
            del tensors[name]
        elif kind == 1:
            tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))].clone()
        elif kind == 2:
            shape = draw(st.lists(st.sampled_from((0, 1, 2, 5, 8)), max_size=3))
            tensors[name] = torch.zeros(shape).to(old.dtype)
        elif kind == 3:
            kinds = (torch.float16, torch.int64, torch.uint8, torch.bool, torch.float64)
            tensors[name] = old.to(draw(st.sampled_from(kinds)))
        elif kind == 4 and old.is_floating_point() and old.numel():
            tensors[name] = old.clone()
            number = draw(st.sampled_from((float("nan"), float("inf"), 1e30, -1e-30)))
            tensors[name].view(-1)[draw(st.integers(0, old.numel() - 1))] = number
        elif kind == 5 and not old.is_floating_point():
            tensors[name] = old + draw(st.sampled_from((-1, 1, 10**6, -(1 << 40))))
        elif kind == 6 and old.ndim:
            tensors[name] = old[: max(0, len(old) - 1)].clone()
        elif kind == 7:
            tensors[draw(st.sampled_from(("x", "a.embeddings", "<script>.embeddings")))] = tensors.pop(name)
        elif metadata:
            key = draw(st.sampled_from(sorted(metadata)))
            try:
                metadata[key] = json.dumps(draw(damaged_json([json.loads(metadata[key])])))
            except ValueError:
                metadata[key] = draw(st.sampled_from(("nan", "-1", "0", "1e400", "x", "")))
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))


@cache
def stored() -> list[bytes]:
    return [content(lambda path: synthetic(0, 4, 8, 20).save(path), ".safetensors")]


@fuzz(0.5)
def test_stored_embeddings(data: DataObject):
    case = data.draw(damaged(stored()) | altered(stored()))
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


@cache
def records() -> list[Any]:
    """With examples and an oracle, with shuffles, and two of a recipe."""
    methods = ["zero-shot", "linear-tca", "conditional-tca", "linear-tca:reference"]
    examples = clip_tca.evaluate("synthetic", methods=methods, examples=2, domains=["clean", "skewed"])
    shuffled = clip_tca.evaluate(
        "synthetic", methods=["zero-shot", "t3a+tca"], seeds=2, setting="online", domains=["clean"]
    )
    return [json.loads(json.dumps(each)) for each in (examples, shuffled, {"records": [examples, shuffled]})]


@fuzz(4)
def test_records_through_every_command_that_reads_them(data: DataObject):
    case = data.draw(damaged_document(records()))
    formats = st.sampled_from(("table", "json", "csv", "markdown", "latex"))
    name = data.draw(st.sampled_from(("compare", "report", "explain")))
    more = {"compare": ["--format", data.draw(formats)], "report": ["-o", "page.html"], "explain": []}[name]
    with answered() as folder:
        (folder / "case.json").write_bytes(case)
        if command([name, "case.json", *more], "case") and name == "report":
            page = (folder / "page.html").read_text(encoding="utf-8")
            assert "<script>" not in page.split("<main")[1].split("</main>")[0]


# -- what people write: prompts, recipes, commands ---------------------------------------------------------------------


@fuzz()
def test_files_of_templates_and_class_names(data: DataObject):
    seeds = [resource(f"prompts/{name}.txt").read_text() for name in ("watt", "single", "classes/officehome")]
    case, use = data.draw(text_files(seeds)), data.draw(st.sampled_from(("templates", "classes", "names")))
    with answered("case") as folder:
        (path := folder / "case.txt").write_bytes(case)
        if use == "templates":
            prompts = load_prompts(str(path), ["dog", "{}", "house"])
            assert len(prompts.texts()) == 3 * len(prompts.templates)
        elif use == "classes":
            read_classes(path)
        else:
            class_names(["dog", "Alarm_Clock", "<script>"], str(path))


@fuzz()
def test_recipes(data: DataObject):
    """To command lines, and these to options; running them would take hours."""
    mixed = 'title = "x"\n[all]\nset = {steps = 5, lr = 0.1}\nno-cache = true\n[[run]]\ndataset = "synthetic"\nk = 3\n'
    seeds = [mixed, *[resource(f"eval/recipes/{name}.toml").read_text() for name in ("clip", "batch_size")]]
    case = data.draw(text_files(seeds))
    with answered("case") as folder:
        (folder / "case.toml").write_bytes(case)
        evaluate = subcommands()["eval"]
        for line in recipe_lines(str(folder / "case.toml"), evaluate, []):
            with suppress(SystemExit):
                evaluate.parse_args(line)


@cache
def subcommands() -> dict[str, argparse.ArgumentParser]:
    return dict(parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr,arg-type]


FILES = ("set.safetensors", "state.safetensors", "record.json", "z.npy", "z.npz", "text.npy", "names.txt", "r.toml")
VALUES = (
    "", "-", "--", "-1", "0", "1", "2", "7", "0.5", "1e999", "nan", "auto", "none", "true", "x", "é犬", "a\nb",
    "\udcff", ".", "..", "/", "../x", "~", "*", "[", "x" * 300, "synthetic", "zero-shot", "linear-tca",
    "conditional-tca", "photo", "single", "watt", "raw", "clean", "cpu", "cuda:9", "k=3", "steps=2", "k=", "=3",
    "seed=-1", "labels,scores", "embeddings", "out.json", "out.html", "out.onnx", "out.safetensors", "out.npy", "out",
    "no/where.json", "0x10", "٣", "1" * 5000, *FILES,
)  # fmt: skip
USUAL = {
    "--dataset": ("set.safetensors", "set.safetensors", "synthetic", "folder", "x.safetensors"),
    "--seeds": ("1", "2", "0", "x"),
    "--seed": ("0", "1", "-5", "x", "9" * 30),
    "--method": ("zero-shot", "linear-tca", "t3a", "tda+tca", "conditional-tca", "linear-tca:reference", "tent", "x"),
    "--data-dir": ("pictures", "nowhere", "z.npy", "", "."),
    "--text": ("text.npy", "text.npy", "z.npy", "state.safetensors", "names.txt", "x"),
    "--output": ("out.json", "out.npy", "out.npz", "out", "out.onnx", "out.html", "nowhere/x", ".", ""),
    "--hub-id": ("", "nowhere", "z.npy", "../x", "a/b/c"),
    "--model": ("x", "", "local-dir:.", "local-dir:", "hf-hub:", "ViT-B-16", "é"),
    "--k": ("3", "auto", "0", "-1", "x", "1e999", "0.5", "99999999999"),
    "--set": (
        "k=3", "steps=2", "seed=-1", "rounds=0", "rounds=2", "memory=2", "memory=none", "lr=nan", "lr=-1",
        "shrinkage=2", "layers=9", "refresh=0", "refresh=1", "hidden=0", "anchor=-1", "anchor=1e30", "normalize=maybe",
        "uncertainty=entropy", "uncertainty=", "k=1e3", "lr=1e30", "classifier=1", "steps=true", "normalize=false",
    ),
    "--solver": ("monge", "coral", "gradient", "mean", "x", ""),
    "--shares": ("estimated", "uniform", "predicted", "global", "oracle", "x"),
    "--batch-size": ("1", "2", "7", "128", "0", "x", "1" * 30),
    "--scale": ("100", "1e-30", "1e30", "-1", "x"),
    "--examples": ("1", "-1", "x"),
    "--recipe": ("r.toml", "x", "../clip", "", "\0"),
    "": ("z.npy", "z.npy", "z.npz", "record.json", "record.json", "state.safetensors", "state.safetensors", "-"),
}  # fmt: skip
COMMANDS = ("eval", "adapt", "explain", "report", "compare", "export", "embed", "data", "cache", "study", "methods")
SLOW = ("demo", "k", "map", "toy", "efficiency", "alignment", "batch-size", "test-size", "upper-bound", "forgetting")
"""Words that are right, and ask for much work."""
NOT_HERE = ("--ray",)
"""Options that start other processes."""


@st.composite
def words(draw: DrawFn) -> list[str]:
    """A command with some of its options, each with a usual value, or any."""
    name = draw(st.sampled_from(COMMANDS))
    chosen, line = subcommands()[name], [name]
    while inner := [action for action in chosen._actions if isinstance(action, argparse._SubParsersAction)]:
        line.append(draw(st.sampled_from(sorted(inner[0].choices))))
        chosen = inner[0].choices[line[-1]]
    actions = [action for action in chosen._actions if not set(action.option_strings) & set(NOT_HERE)]
    needed = [action for action in actions if action.required or action.option_strings[:1] in ([], ["--dataset"])]
    others = [action for action in actions if action not in needed]
    taken = needed[draw(st.integers(0, 19)) == 19 :]  # at times without the first of them
    taken += draw(st.lists(st.sampled_from(others), max_size=4)) if others else []
    for action in taken:
        option = max(action.option_strings, key=len, default="")
        line += [option] if option else []
        if action.nargs != 0:
            allowed = [str(word) for word in action.choices or () if word not in SLOW]
            usual = allowed or USUAL.get(option, ())
            line.append(draw(st.sampled_from(usual if usual and draw(st.integers(0, 9)) < 9 else VALUES)))
    if draw(st.integers(0, 19)) == 19:
        line.insert(draw(st.integers(0, len(line))), draw(st.sampled_from(VALUES)))
    return line


@fuzz(1.5)
def test_any_words_for_any_command_on_small_files_of_which_one_may_be_damaged(data: DataObject):
    contents = {
        "set.safetensors": stored()[0],
        "state.safetensors": states()[1][0],
        "record.json": json.dumps(records()[0]).encode(),
        "z.npy": encodings(".npy")[0],
        "z.npz": encodings(".npz")[0],
        "text.npy": encodings(".npy")[2],
        "names.txt": b"dog\nhouse = a house\n",
        "r.toml": b'[[run]]\ndataset = "set.safetensors"\nmethod = ["zero-shot", "linear-tca"]\n',
    }
    line, name = data.draw(words()), data.draw(st.none() | st.sampled_from(FILES))
    if name:
        contents[name] = data.draw(damaged([contents[name]]))
    with answered() as folder:
        for each, bytes_ in contents.items():
            (folder / each).write_bytes(bytes_)
        (folder / "pictures" / "dog").mkdir(parents=True)
        command(line, codes=(0, 1, 2))
