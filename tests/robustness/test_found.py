"""What fuzzing found, and what was mended: damaged or hostile input is a result or one clear line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from clip_tca import LinearTCA
from clip_tca.cli import main
from clip_tca.datasets.embedding_set import load_embeddings
from clip_tca.datasets.synthetic import synthetic
from clip_tca.results.record import read
from tests.tiny_clip import MODEL


def npy(shape: str, kind: str = "<f4") -> bytes:
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(48)


@pytest.fixture
def adapt(tmp_path, capsys):
    """``clip-tca adapt`` on a file in ``tmp_path``: its exit code and what it says."""

    def run_adapt(name: str, *options: object, dim: int = 6) -> tuple[int, str]:
        np.save(tmp_path / "text.npy", np.random.default_rng(1).standard_normal((3, dim)).astype(np.float32))
        words = ["adapt", tmp_path / name, "--text", tmp_path / "text.npy", "--drop-bad-rows", "--overwrite", *options]
        code = main([*map(str, words), "-o", str(tmp_path / "out" / name)])
        return code, capsys.readouterr().err.removeprefix("clip-tca: ").removeprefix(str(tmp_path))

    (tmp_path / "out").mkdir()
    return run_adapt


@pytest.mark.parametrize("shape", ["(-1, -4)", "(9223372036854775807, -1)", "(2, 6", "(2, 6)) + (", f"(1, {1 << 40})"])
def test_a_header_that_is_not_so_is_refused(shape, adapt, tmp_path):
    for name in ("a.npy", "a.npz"):
        if name == "a.npy":
            (tmp_path / name).write_bytes(npy(shape))
        else:
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("embeddings.npy", npy(shape))
        code, message = adapt(name)
        assert code == 1
        assert f"{name}: " in message


def test_a_damaged_archive_is_refused_in_a_short_line(adapt, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", vectors=np.random.default_rng(0).standard_normal((50, 6)))
    whole = (tmp_path / "a.npz").read_bytes()
    codes = set()
    for place in range(30, 400, 7):
        (tmp_path / "a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        code, message = adapt("a.npz", "--column", "vectors", "--scale", "5")
        codes.add(code)
        assert len(message.splitlines()) == code
        assert len(message) < 300
    assert 1 in codes


def test_labels_that_are_no_array_are_refused(adapt, tmp_path):
    np.save(tmp_path / "z.npy", np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32))
    (tmp_path / "a.npy").write_bytes(npy("(2, 6"))
    np.savez(tmp_path / "b.npz", labels=np.arange(3))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    for name in ("a.npy", "b.npy"):
        code, message = adapt("z.npy", "--labels", tmp_path / name)
        assert code == 1
        assert message.startswith("labels: ")


def test_class_texts_in_the_other_byte_order_are_read(tmp_path):
    rng = np.random.default_rng(0)
    text, outputs = rng.standard_normal((4, 6)), []
    np.save(tmp_path / "z.npy", rng.standard_normal((50, 6)).astype(np.float32))
    for order in "<>":
        np.save(tmp_path / "text.npy", text.astype(f"{order}f4"))
        assert (
            main(["adapt", f"{tmp_path}/z.npy", "--text", f"{tmp_path}/text.npy", "-o", f"{tmp_path}/{order}.npy"]) == 0
        )
        outputs.append(np.load(tmp_path / f"{order}.npy"))
    assert np.array_equal(*outputs)


def test_a_few_bytes_of_parquet_do_not_become_gigabytes(adapt, tmp_path):
    """A run of one number takes no room in a file: 626 bytes once took 4 GB and a minute."""
    zeros = pa.array(np.zeros(1 << 24, np.float32))
    pq.write_table(pa.table({"embedding": pa.ListArray.from_arrays([0, len(zeros)], zeros)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    adapt("nowhere.parquet")  # the imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, message = adapt("a.parquet")
    assert code == 1
    assert re.search(r"a\.parquet: .*at most \d+", message)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_offsets_beyond_the_end_of_an_arrow_file_are_not_followed(adapt, tmp_path):
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 6], pa.int32()), pa.array(np.ones(6, np.float32)))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, pa.schema({"e": lists.type})) as out:
        out.write(pa.record_batch({"e": lists}))
    data = (tmp_path / "a.arrow").read_bytes()
    offsets = np.array([0, 3, 6], "<i4").tobytes()
    assert data.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(data.replace(offsets, np.array([0, 3, 60_000_000], "<i4").tobytes()))
    code, message = adapt("a.arrow", dim=3)
    assert code == 1
    assert message.startswith("/a.arrow: truncated or damaged")


def test_columns_of_one_name_are_refused(adapt, tmp_path):
    lists = pa.array([[1.0, 2.0]], pa.list_(pa.float32()))
    table = pa.table([lists, lists], names=["e", "e"])
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    code, message = adapt("a.arrow", dim=2)
    assert code == 1
    assert message.startswith("/a.arrow: two columns have the same name")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: t.update({"clean.labels": t["clean.labels"][:-1].clone()}), "labels: shape"),
        (lambda t: t.update({"clean.labels": t["clean.labels"] + 100}), "labels: values"),
        (lambda t: t.update({"clean.embeddings": t["clean.embeddings"].long()}), "clean: dtype"),
        (lambda t: t.update({"clean.embeddings": t["clean.embeddings"][:, :3].clone()}), "clean: dimension 3"),
        (lambda t: [t.pop(name) for name in list(t) if not name.startswith("text")], "no domain"),
    ],
)
def test_stored_embeddings_that_do_not_fit_are_refused_by_name(spoil, reason, tmp_path):
    synthetic(0, 4, 8, 20).save(path := tmp_path / "a.safetensors")
    tensors = load_file(path)
    spoil(tensors)
    save_file(tensors, path, {"scale": "100", "classes": "null", "about": "{}"})
    with pytest.raises(ValueError, match=rf"a\.safetensors: not stored embeddings \({reason}"):
        load_embeddings(path, "text.single")


@pytest.mark.parametrize("metadata", [{"scale": "-1"}, {"classes": '["a"]'}, {"classes": "[1, 2]"}, {"about": "[]"}])
def test_stored_embeddings_with_odd_metadata_are_refused(metadata, tmp_path):
    synthetic(0, 4, 8, 20).save(path := tmp_path / "a.safetensors")
    save_file(load_file(path), path, {"scale": "100", "classes": "null", "about": "{}", **metadata})
    with pytest.raises(ValueError, match=r"a\.safetensors: not stored embeddings"):
        load_embeddings(path, "text.single")


def test_one_flipped_bit_in_a_saved_state_is_noticed(shifted, tmp_path):
    LinearTCA(shifted.g).fit(shifted.z).save(path := tmp_path / "a.safetensors")
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in range(start, len(whole), len(whole) // 20):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a\.safetensors: .*its checksum is wrong"):
            LinearTCA.from_pretrained(path)


@pytest.mark.parametrize(("key", "value"), [("accuracy", float("nan")), ("domain", 3), ("method", None)])
def test_a_record_with_an_odd_row_is_refused(key, value, tmp_path):
    import clip_tca

    record = clip_tca.evaluate("synthetic", methods=["zero-shot"])
    record["rows"][0][key] = value
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"a\.json: not a whole record"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize("version", [2, "x" * 9999, {"rows": [0] * 9999}])
def test_a_record_of_another_schema_is_refused_in_a_short_line(version, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(ValueError, match=r"a\.json: schema .{1,40}, this version of clip-tca reads 1; evaluate again"):
        read(tmp_path / "a.json")


def test_an_error_is_one_line_whatever_stands_in_it(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "a\nb.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# -- names that try to be something else -------------------------------------------------------------------------------


def test_hostile_folder_and_file_names_go_through_eval_and_report_as_text(tmp_path, capsys):
    from PIL import Image

    classes = ("<script>alert(1)<script>", "<img src=x onerror=alert(1)>")
    for number, name in enumerate(classes):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for i in range(3):
            shade = Image.effect_noise((40, 40), 20 * (number + 1) + i).convert("RGB")
            shade.save(folder / f"{i}<b>.png")
        with contextlib.suppress(OSError):  # a file system that takes UTF-8 only
            os.rename(folder / "0<b>.png", os.fsencode(folder) + b"/\xff\xfe.png")
    options = ["--dataset", "folder", "--data-dir", str(tmp_path / "data"), "--model", MODEL, "--workers", "0"]
    result = tmp_path / "r.json"
    methods = ["--method", "zero-shot", "--method", "linear-tca", "--examples", "3"]
    assert main(["eval", *options, *methods, "-o", str(result)]) == 0
    assert main(["report", str(result), "-o", str(tmp_path / "r.html")]) == 0
    assert main(["compare", str(result)]) == 0
    capsys.readouterr()
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;script&gt;" in page


def test_no_name_leads_out_of_its_folder():
    from clip_tca.cli import parser
    from clip_tca.cli.eval import recipe_lines
    from clip_tca.core.folders import resource

    for name in ("../../pyproject", "../reported/clip_vit_b16", "/etc/passwd\0"):
        with pytest.raises((FileNotFoundError, ValueError)):
            recipe_lines(name, parser(), [])
    for name in ("eval/../pyproject.toml", "/etc/passwd", "prompts/../../x"):
        with pytest.raises(FileNotFoundError, match=r"not a resource|not found"):
            resource(name)


def test_a_data_set_can_t_name_files_that_are_not_its_own(tmp_path):
    from PIL import Image

    from clip_tca.datasets.hub import load_hub

    Image.new("RGB", (9, 9)).save(tmp_path / "private.png")
    (tmp_path / "set").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "set" / "own.png")
    for name, wrong in {"own.png": None, "../private.png": "row 0 names"}.items():
        table = pa.table({"image": [str(tmp_path / "set" / name)] * 2, "label": ["a", "b"]})
        pq.write_table(table, tmp_path / "set" / "rows.parquet")
        if wrong is None:
            assert len(load_hub(str(tmp_path / "set" / "rows.parquet"), None).domains) == 1
        else:
            with pytest.raises(ValueError, match=wrong):
                load_hub(str(tmp_path / "set" / "rows.parquet"), None)
