"""``clip-tca adapt`` gives what the library gives, in the format of the input, or one clear line and no file."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA
from clip_tca.adapters.registry import PUBLIC_CODE
from clip_tca.cli import main
from clip_tca.datasets.formats.registry import open_shard
from tests.conftest import INTERRUPTIBLE, Shifted
from tests.datasets.test_formats import FORMATS, table, write
from tests.hub import Hub
from tests.methods.small import EMBEDDING
from tests.tiny_clip import MODEL

SET = Shifted(classes=4, dim=24, images=60)
Z, Y = SET.z.numpy().astype(np.float16), SET.y.numpy()
SCALE = SET.g.scale


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("text.npy", SET.g.text.numpy())
    np.save("y.npy", Y)
    np.save("z.npy", Z)
    return tmp_path


def adapt(*words: str) -> int:
    if "--load-state" in words:
        return main(["adapt", *words])
    method = [] if "--method" in words else ["--method", "linear-tca"]
    return main(["adapt", *words, *method, "--text", "text.npy", "--scale", str(SCALE)])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def fitted() -> LinearTCA:
    return LinearTCA(SET.g).fit(torch.from_numpy(Z))


def test_it_is_the_library_s_fit_and_transform(folder, fitted, capsys):
    assert adapt("z.npy", "-o", "out.npy", "--labels", "y.npy") == 0
    out = np.load("out.npy")
    assert out.dtype == np.float16
    assert np.abs(out.astype(np.float32) - fitted.transform(Z.astype(np.float32))).max() < 1e-3
    record = json.loads(Path("out.npy.json").read_text())
    right, before = (int((predict(Z.astype(np.float32)) == Y).sum()) for predict in (fitted.predict, SET.g.predict))
    assert record["scored"]["correct"] == right
    assert record["scored"]["correct_zero_shot"] == before
    assert record["rows"] == len(Z)
    assert record["pseudo_source_counts"] == fitted.pseudo_source_counts_.tolist()
    assert f"zero-shot {100 * before / len(Z):.2f}, linear-tca {100 * right / len(Z):.2f}" in capsys.readouterr().out


def test_conditional_tca_is_the_default_and_takes_shares_from_a_file(folder):
    words = ["adapt", "z.npy", "--text", "text.npy", "--scale", str(SCALE), "--write", "labels"]
    assert main([*words, "-o", "out.npy"]) == 0
    z = torch.from_numpy(Z)
    assert np.array_equal(np.load("out.npy"), ConditionalTCA(SET.g).fit(z).predict(z).numpy())
    Path("shares.txt").write_text("3\n3\n1\n1\n")
    assert main([*words, "--shares", "shares.txt", "-o", "known.npy"]) == 0
    known = ConditionalTCA(SET.g, shares=[3, 3, 1, 1]).fit(z)
    assert np.array_equal(np.load("known.npy"), known.predict(z).numpy())


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_comes_back_as_it_was(suffix, folder, fitted):
    write(folder / f"a{suffix}", Z)
    assert (
        adapt(f"a{suffix}", "-o", "out" if suffix == ".npy" else f"out{suffix}", "--write", "embeddings,labels,scores")
        == 0
    )
    if suffix == ".npy":
        written = {kind: np.load(f"out/{kind}/a.npy") for kind in ("embeddings", "labels", "scores")}
    elif suffix == ".npz":
        with np.load("out.npz") as archive:
            written = {**archive, "embeddings": archive["vectors"]}
    elif suffix == ".safetensors":
        written = load_file("out.safetensors")
        written["embeddings"] = written["vectors"]
    else:
        block = next(open_shard(Path(f"out{suffix}")).blocks())
        assert block.others.column("id").to_pylist() == [f"p{i}" for i in range(len(Z))]
        written = {"embeddings": block.z, "labels": block.others.column("tca_label").to_numpy()}
        written["scores"] = block.others.column("tca_score").to_numpy()
    logits = torch.from_numpy(fitted.logits(Z))
    assert written["labels"].dtype == np.int64
    assert np.array_equal(written["labels"], logits.argmax(dim=1).numpy())
    assert np.allclose(written["scores"], logits.softmax(dim=1).amax(dim=1).numpy(), atol=1e-5)
    assert written["embeddings"].dtype == np.float16
    assert np.allclose(written["embeddings"], fitted.transform(Z), atol=1e-3)


NAMES = ["ant", "bee", "größere Kuh", "dog"]


@pytest.fixture
def names(folder) -> str:
    (folder / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return "names.txt"


@pytest.mark.parametrize("suffix", [suffix for suffix in FORMATS if suffix != ".safetensors"])
def test_labels_are_written_as_names_when_asked(suffix, folder, names, fitted, capsys):
    source, out = write(folder / f"in{suffix}", Z), folder / f"out{suffix}"
    words = (str(source), "--write", "labels", "--names", "--class-names", names, "--labels", "y.npy")
    assert adapt(*words, "-o", str(out), "--save-state", "s.safetensors") == 0
    read = {
        ".npy": np.load,
        ".npz": lambda path: np.load(path)["labels"],
        ".parquet": lambda path: pq.read_table(path)["tca_label"],
        ".arrow": lambda path: pa.ipc.open_stream(path).read_all()["tca_label"],
        ".feather": lambda path: pa.ipc.open_file(path).read_all()["tca_label"],
    }
    written = np.asarray(read[suffix](str(out)))
    expected = fitted.predict(torch.from_numpy(Z))
    assert written.tolist() == [NAMES[label] for label in expected]
    assert f"linear-tca {100 * (expected == SET.y).double().mean():.2f}" in capsys.readouterr().out  # still scored
    assert json.loads(Path(f"{out}.json").read_text(encoding="utf-8"))["classes"] == NAMES


def test_names_are_in_the_state_and_in_what_is_exported(folder, names, fitted):
    assert adapt("z.npy", "-o", "out.npy", "--class-names", names, "--save-state", "s.safetensors") == 0
    again = ("--load-state", "s.safetensors", "--write", "labels", "--names")
    assert adapt("z.npy", "-o", "labels.npy", *again) == 0  # without the file
    expected = [NAMES[label] for label in fitted.predict(torch.from_numpy(Z))]
    assert np.load("labels.npy").tolist() == expected
    assert main(["export", "s.safetensors", "-o", "head.safetensors"]) == 0
    head = ("--head", "head.safetensors", "--write", "labels", "--names")
    assert main(["adapt", "z.npy", *head, "-o", "of_head.npy", "--method", "linear-tca"]) == 0
    assert set(np.load("of_head.npy")) <= set(NAMES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--names", "--write", "labels"), "names: the classes have none; give a file with one a line: --class-names"),
        (("--names", "--class-names", "names.txt"), "names: they stand for labels, which are not written; add --write"),
        (("--class-names", "two.txt"), "classes: 2 names, but there are 4 classes"),
        (("--class-names", "none.txt"), "class names: none.txt is not a file"),
    ],
)
def test_names_that_can_t_be_written_are_one_line(words, says, folder, names, capsys):
    (folder / "two.txt").write_text("a\nb\n")
    before = files(folder)
    assert adapt("z.npy", "-o", "out.npy", *words) == 1
    assert says in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert files(folder) == before


def test_a_format_of_numbers_alone_takes_no_names(folder, names, capsys):
    source = str(write(folder / "in.safetensors", Z))
    words = ("--write", "labels", "--names", "--class-names", names)
    assert adapt(source, "-o", "out.safetensors", *words) == 1
    assert "names: a .safetensors file holds numbers alone; leave out --names" in capsys.readouterr().err


def test_shards_keep_their_names_and_sizes_empty_ones_too(folder, fitted):
    (folder / "in").mkdir()
    for number, part in enumerate(np.split(Z, [100, 100, 230])):
        np.save(f"in/emb_{number}.npy", part)
    assert adapt("in", "-o", "out", "--write", "labels") == 0
    assert files(folder / "out") == {"emb_0.npy", "emb_1.npy", "emb_2.npy", "emb_3.npy", "_clip-tca.json"}
    parts = [np.load(f"out/emb_{number}.npy") for number in range(4)]
    assert [len(part) for part in parts] == [100, 0, 130, 10]
    assert np.array_equal(np.concatenate(parts), fitted.predict(Z))


def test_one_pass_in_order_is_the_online_stream(folder):
    assert adapt("z.npy", "-o", "out.npy", "--write", "labels", "--online", "--batch-size", "16") == 0
    tca = LinearTCA(SET.g)
    expected = np.concatenate([tca.partial_fit(part).predict(part) for part in np.split(Z, range(16, len(Z), 16))])
    assert np.array_equal(np.load("out.npy"), expected)


# -- pipes -------------------------------------------------------------------------------------------------------------


def streamed(z: np.ndarray, rows: int = 7, **columns: object) -> bytes:
    """An Arrow IPC stream with record batches of ``rows`` rows."""
    lists = pa.array(list(z), pa.list_(pa.from_numpy_dtype(z.dtype)))
    table = pa.table({**columns, "embedding": lists})
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return target.getvalue()


def npy(z: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    target = io.BytesIO()
    np.lib.format.write_array(target, z, version)
    return target.getvalue()


def online(z: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and logits of the library, batch by batch."""
    tca = LinearTCA(SET.g)
    parts = [tca.partial_fit(part).adapt(part) for part in np.split(z, range(batch, len(z), batch))]
    return np.concatenate([moved for moved, _ in parts]), np.concatenate([logits for _, logits in parts])


def pipe(content: bytes, *words: str) -> subprocess.CompletedProcess:
    text = ["--text", "text.npy", "--scale", str(SCALE), "--method", "linear-tca"]
    command = [sys.executable, "-m", "clip_tca", "adapt", "-", *text]
    return subprocess.run([*command, *words], input=content, capture_output=True)


@pytest.fixture
def stdin(monkeypatch):
    """Sets what standard input holds."""

    def hold(content: bytes) -> None:
        monkeypatch.setattr("clip_tca.datasets.formats.stream.standard_input", lambda: io.BytesIO(content))

    return hold


def test_batches_on_a_pipe_are_answered_before_the_next_is_sent(folder):
    words = ["-o", "-", "--write", "embeddings,labels,scores", "--batch-size", "40"]
    command = [
        sys.executable,
        "-m",
        "clip_tca",
        "adapt",
        "-",
        "--method",
        "linear-tca",
        "--text",
        "text.npy",
        "--scale",
        str(SCALE),
        *words,
    ]
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32()))])
    z = Z.astype(np.float32)
    batches = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        writer = pa.ipc.new_stream(process.stdin, schema)
        for first in range(0, 120, 40):
            for start in (first, first + 25):  # a batch comes in pieces
                ids = pa.array(range(start, first + 25 if start == first else first + 40))
                writer.write_batch(pa.record_batch([ids, pa.array(list(z[ids]), schema.types[1])], schema=schema))
            process.stdin.flush()
            reader = reader if batches else pa.ipc.open_stream(process.stdout)  # noqa: F821
            batches.append(reader.read_next_batch())
        ids = pa.array(range(120, 240))
        writer.write_batch(pa.record_batch([ids, pa.array(list(z[ids]), schema.types[1])], schema=schema))
        writer.close()
        process.stdin.flush()  # the end of the stream is enough: the pipe stays open
        batches += list(reader)
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        assert b"240 rows of 24 dimensions" in process.stderr.read()
    assert [len(batch) for batch in batches] == [40] * 6
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["id", "embedding", "tca_label", "tca_score"]
    assert table["id"].to_pylist() == list(range(240))
    moved, logits = online(z, 40)
    assert np.allclose(np.stack(table["embedding"].to_numpy()), moved, atol=1e-6)
    assert np.array_equal(table["tca_label"].to_numpy(), logits.argmax(axis=1))
    assert np.allclose(table["tca_score"].to_numpy(), torch.from_numpy(logits).softmax(1).amax(1), atol=1e-5)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_npy_file_may_come_down_a_pipe(version, folder, stdin):
    stdin(npy(Z, version))
    assert adapt("-", "-o", "out.arrow", "--write", "embeddings,labels", "--batch-size", "50") == 0
    table = pa.ipc.open_stream("out.arrow").read_all()
    assert table.column_names == ["embeddings", "tca_label"]
    assert table.schema.field("embeddings").type == pa.list_(pa.float16(), 24)
    assert [len(batch) for batch in table.to_batches()] == [50, 50, 50, 50, 40]
    moved, logits = online(Z, 50)
    assert np.array_equal(table["tca_label"].to_numpy(), logits.argmax(axis=1))
    assert np.allclose(np.stack(table["embeddings"].to_numpy()), moved, atol=1e-3)
    assert json.loads(Path("out.arrow.json").read_text())["batch_size"] == 50
    block = next(open_shard(Path("out.arrow")).blocks())  # and it can be adapted again
    assert np.array_equal(block.z, np.stack(table["embeddings"].to_numpy()))


def test_cat_and_a_redirected_file_give_the_same(folder):
    words = f"{sys.executable} -m clip_tca adapt - --method linear-tca --text text.npy --scale {SCALE}"
    words += " --write labels -o - --batch-size 50"
    expected = online(Z, 50)[1].argmax(axis=1)
    for command in (f"cat z.npy | {words}", f"{words} < z.npy"):
        done = subprocess.run(["sh", "-c", command], capture_output=True)
        assert done.returncode == 0
        table = pa.ipc.open_stream(done.stdout).read_all()
        assert np.array_equal(table["tca_label"].to_numpy(), expected)


def test_a_pandas_frame_goes_through_a_pipe(folder):
    import pandas as pd

    z = Z.astype(np.float64)
    frame = pd.DataFrame({"path": [f"{i}.jpg" for i in range(len(z))], "clip": list(z)})
    frame["split"] = pd.Categorical(["train" if i % 3 else "test" for i in range(len(z))])
    table = pa.Table.from_pandas(frame)
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table, max_chunksize=33)
    done = pipe(target.getvalue(), "-o", "-", "--column", "clip", "--write", "embeddings,labels", "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    answer = pa.ipc.open_stream(done.stdout).read_all()
    assert answer.schema.field("clip").type == pa.list_(pa.float32())  # float64 comes back as float32
    answered = answer.to_pandas()
    assert list(answered.columns) == ["path", "clip", "split", "tca_label"]
    pd.testing.assert_frame_equal(answered[["path", "split"]], frame[["path", "split"]])
    moved, logits = online(z, 64)
    assert np.allclose(np.stack(answered["clip"]), moved, atol=1e-5)
    assert np.array_equal(answered["tca_label"], logits.argmax(axis=1))


def test_labels_alone_leave_the_other_columns_in_a_pandas_frame(folder):
    import pandas as pd

    frame = pd.DataFrame(
        {"clip": list(Z.astype(np.float32)), "n": range(len(Z))}, index=[f"r{i}" for i in range(len(Z))]
    )
    target = io.BytesIO()
    table = pa.Table.from_pandas(frame)
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    answered = pa.ipc.open_stream(pipe(target.getvalue(), "-o", "-", "--write", "labels").stdout).read_pandas()
    assert list(answered.columns) == ["n", "tca_label"]
    assert list(answered.index) == list(frame.index)


def test_fixed_size_and_large_lists_keep_their_type_on_a_pipe(folder, stdin):
    for kind in (pa.list_(pa.float32(), 24), pa.large_list(pa.float32())):
        table = pa.table({"embedding": pa.array(list(Z.astype(np.float32)), kind)})
        target = io.BytesIO()
        with pa.ipc.new_stream(target, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        stdin(target.getvalue())
        assert adapt("-", "-o", "out.arrow", "--overwrite", "--batch-size", "60") == 0
        answer = pa.ipc.open_stream("out.arrow").read_all()
        assert answer.schema.field("embedding").type == kind
        assert np.allclose(np.stack(answer["embedding"].to_numpy()), online(Z.astype(np.float32), 60)[0], atol=1e-6)


def test_what_was_learned_from_a_pipe_is_kept(folder, stdin):
    stdin(streamed(Z))
    assert adapt("-", "-o", "rows", "--batch-size", "40", "--save-state", "s.safetensors") == 0
    saved = LinearTCA.load("s.safetensors")
    assert saved.n_seen_ == len(Z)
    assert np.array_equal(saved.predict(Z), LinearTCA(SET.g).fit(Z).predict(Z))
    record = json.loads(Path("rows.json").read_text())
    assert record["rows"] == len(Z)
    assert record["input"]["shards"] == [{"name": "-", "rows": None}]


def test_bad_rows_on_a_pipe_are_named_or_dropped(folder, stdin, capsys):
    bad = Z.copy()
    bad[7, 3], bad[200] = np.nan, np.inf
    for content in (streamed(bad, id=range(len(Z))), npy(bad)):
        stdin(content)
        before = files(folder)
        assert adapt("-", "-o", "out.arrow", "--batch-size", "50") == 1
        line = "clip-tca: standard input: NaN or infinity in row 7; repair it, or leave it out: --drop-bad-rows\n"
        assert capsys.readouterr().err == line
        assert files(folder) == before
    stdin(streamed(bad, id=range(len(Z))))
    assert adapt("-", "-o", "out.arrow", "--batch-size", "50", "--drop-bad-rows", "--write", "labels") == 0
    table = pa.ipc.open_stream("out.arrow").read_all()
    assert table["id"].to_pylist() == [i for i in range(len(Z)) if i not in (7, 200)]
    record = json.loads(Path("out.arrow.json").read_text())
    assert record["left_out"] == {"-": {"rows": 2, "first": [7, 200]}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "standard input: empty; send an Arrow IPC stream or a .npy file"),
        (b"\x93NU", "standard input: begins with 934e55, neither an Arrow IPC stream nor a .npy file"),
        (b"PAR1" * 100, "standard input: begins with 504152315041, neither an Arrow IPC stream nor a .npy file"),
        (b"1.0 2.0 3.0\n", "neither an Arrow IPC stream nor a .npy file"),
        (streamed(Z)[:200], "standard input: truncated or damaged ("),
        (streamed(Z, 100)[:-900], "standard input: truncated or damaged ("),
        (streamed(Z)[:8] + b"<html>404 Not Found</html>", "standard input: truncated or damaged ("),
        (streamed(Z[:0]), "standard input: no rows; at least one embedding is needed"),
        (streamed(Z, tca_label=range(len(Z))), "standard input: has a column 'tca_label' already; rename it"),
        (streamed(Z[:, :3].copy()), "dimension 3, but the class texts have 24"),
        (npy(Z)[:-30], "truncated or damaged (239 rows of 240); send an Arrow IPC stream or a .npy file"),
        (npy(Z)[:60], "standard input: truncated or damaged ("),
        (npy(Z[:0]), "standard input: no rows; at least one embedding is needed"),
        (npy(np.asfortranarray(Z)), "standard input: stored column by column (Fortran order)"),
        (npy(Z[0]), "standard input: shape (24,); a matrix (rows, dimensions) is needed"),
        (npy(Z.astype(np.int64)), "standard input: dtype int64; allowed are float16, float32 and float64"),
    ],
)  # fmt: skip
def test_a_bad_stream_is_one_line_and_no_file(content, reason, folder, stdin, capsys):
    stdin(content)
    before = files(folder)
    assert adapt("-", "-o", "out.arrow", "--write", "embeddings,labels") == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert files(folder) == before


def test_columns_of_other_types_are_refused_on_a_pipe(folder, stdin, capsys):
    for columns, words, reason in [
        (
            {"embedding": [[1, 2]]},
            [],
            "standard input: which list column of floats holds the embeddings? there is none",
        ),
        ({"a": [[1.0]], "b": [[1.0]]}, [], "which list column of floats holds the embeddings? there are a, b; name it"),
        ({"a": [[1.0]]}, ["--column", "b"], "standard input: no list column of floats 'b'; there are a"),
        ({"a": [None, []]}, [], "which list column of floats holds the embeddings? there is none"),
        ({"a": [1.0]}, ["--column", "a"], "standard input: no list column of floats 'a'; there are none"),
        ({"embedding": [[1.0] * 24, [1.0]]}, [], "standard input: row 1 has 1 dimensions, the rows before it 24"),
        ({"embedding": [None, [1.0] * 24]}, [], "standard input: NaN or infinity in row 0"),
    ]:
        table = pa.table(columns)
        target = io.BytesIO()
        with pa.ipc.new_stream(target, table.schema) as writer:
            writer.write_table(table)
        stdin(target.getvalue())
        assert adapt("-", "-o", "-", *words) == 1
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1


def test_nothing_is_written_to_a_pipe_before_there_is_an_answer(folder):
    for content in (b"", streamed(Z[:0]), streamed(Z)[:300], npy(Z)[:500]):
        done = pipe(content, "-o", "-")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.count(b"\n") == 1


def test_a_second_stream_after_the_first_is_refused(folder):
    for content in (npy(Z) * 2, streamed(Z) * 2):
        Path("two").write_bytes(content)
        with Path("two").open("rb") as file:
            command = [sys.executable, "-m", "clip_tca", "adapt", "-", "--text", "text.npy", "-o", "out"]
            done = subprocess.run(command, stdin=file, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "clip-tca: standard input: goes on after the end of the first stream or file; send one\n"
        assert not Path("out").exists()


def test_a_stream_may_end_without_its_end_marker(folder, stdin):
    """Arrow allows it: closing the pipe is enough."""
    stdin(streamed(Z)[:-8])
    assert adapt("-", "-o", "out.arrow") == 0
    assert pa.ipc.open_stream("out.arrow").read_all().num_rows == len(Z)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".feather", ".npy"])
def test_the_name_of_an_output_from_a_pipe_does_not_say_another_format(suffix, folder, stdin, capsys):
    stdin(npy(Z))
    assert adapt("-", "-o", f"out{suffix}") == 1
    assert "a pipe is written as an Arrow IPC stream: name an .arrow file, or -" in capsys.readouterr().err


def test_an_output_from_a_pipe_is_replaced_when_asked(folder, stdin, capsys):
    for words, code in (([], 0), ([], 1), (["--overwrite"], 0)):
        stdin(npy(Z))
        assert adapt("-", "-o", "out.arrow", *words) == code
    assert "out.arrow exists; choose another name, or replace it: --overwrite" in capsys.readouterr().err


def test_an_output_from_a_pipe_may_be_a_named_pipe(folder):
    os.mkfifo("fifo")
    with subprocess.Popen(["cat", "fifo"], stdout=subprocess.PIPE) as reader:
        assert pipe(npy(Z), "-o", "fifo").returncode == 0
        assert pa.ipc.open_stream(reader.stdout.read()).read_all().num_rows == len(Z)
    assert not Path("fifo.json").exists()


def test_a_closed_standard_input_is_one_line(folder):
    words = f"{sys.executable} -m clip_tca adapt - --text text.npy -o out <&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("clip-tca: standard input: closed; ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_the_stream(folder):
    words = f"{sys.executable} -m clip_tca adapt - --text text.npy -o - --batch-size 1"
    done = subprocess.run(["sh", "-c", f"{words} < z.npy | head -c 10 > start"], capture_output=True, text=True)
    assert Path("start").stat().st_size == 10
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


def unread(pipe) -> int:
    """Bytes in a pipe that have not been read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


@pytest.mark.parametrize("sent", [b"\x93NUMPY", streamed(Z[:1])[:-8], npy(Z)[: 128 + 48]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_pipe_on_which_nothing_comes_can_be_left(number, code, sent, folder):
    words = ["adapt", "-", "--text", "text.npy", "-o", "-", "--batch-size", "1"]
    command = [sys.executable, "-c", INTERRUPTIBLE, "-m", "clip_tca", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            process.stdin.write(sent)
            process.stdin.flush()
            while unread(process.stdin):
                time.sleep(0.05)
            if len(sent) > 6:
                assert len(pa.ipc.open_stream(process.stdout).read_next_batch()) == 1  # now it waits for the next row
            process.send_signal(number)
            assert process.wait(timeout=20) == code
            assert len(process.stderr.read().splitlines()) == 1
        finally:
            process.kill()


# -- the hub -----------------------------------------------------------------------------------------------------------


def test_a_streamed_data_set_of_the_hub(folder):
    """Two Parquet files on a hub of our own, ids carried through."""
    (folder / "repo" / "data").mkdir(parents=True)
    for number, part in enumerate(np.array_split(Z, 2)):
        pq.write_table(table(part), f"repo/data/train-{number:05d}-of-00002.parquet")
    words = ["adapt", "--hub-id", "someone/shelf", "--streaming", "--text", "text.npy", "--scale", str(SCALE)]
    with Hub() as hub:
        hub.add_dataset("someone/shelf", folder / "repo")
        command = [sys.executable, "-m", "clip_tca", *words, "-o", "out", "--write", "labels"]
        done = subprocess.run(command, env=hub.environment(folder / "hf"), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    found = pq.read_table("out")
    assert found.column_names == ["id", "tca_label"]
    assert np.array_equal(found["tca_label"].to_numpy(), ConditionalTCA(SET.g).fit(Z).predict(Z))


def test_a_hub_that_is_not_there_is_one_line(folder):
    command = [sys.executable, "-m", "clip_tca", "adapt", "--hub-id", "a/b", "--streaming", "--text", "text.npy"]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hf")}
    done = subprocess.run([*command, "-o", "o"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("clip-tca: a/b: could not be streamed")


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "make"), [("linear-tca", LinearTCA), ("conditional-tca", ConditionalTCA)])
def test_what_was_learned_can_be_used_again(method, make, folder, capsys):
    np.save("half.npy", Z[:120])
    assert adapt("half.npy", "-o", "a.npy", "--method", method, "--save-state", "s.safetensors") == 0
    capsys.readouterr()
    words = ["--load-state", "s.safetensors", "--labels", "y.npy", "--write", "labels"]
    assert adapt("z.npy", "-o", "b.npy", *words) == 0  # the state says of which class it is
    assert np.array_equal(np.load("b.npy"), make(SET.g).fit(Z[:120]).predict(Z))
    record = json.loads(Path("b.npy.json").read_text())
    assert record["setting"] == "loaded"
    assert record["state"]["sha256"] == hashlib.sha256(Path("s.safetensors").read_bytes()).hexdigest()
    assert "text" not in record
    assert record["method"]["name"] == make.__name__
    assert f", {make.__name__} {record['scored']['accuracy']:.2f}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["--text", "text.npy"], ["--head", "text.npy"], ["--scale", "7"], ["--model", MODEL], ["--text-column", "a"]],
)
def test_a_loaded_state_has_its_own_classifier(words, folder, fitted, capsys):
    fitted.save("s.safetensors")
    before = files(folder)
    assert adapt("z.npy", "-o", "o.npy", "--load-state", "s.safetensors", *words) == 1
    line = f"clip-tca: --load-state has its own classifier; leave out {words[0]}\n"
    assert capsys.readouterr().err == line
    assert files(folder) == before


def test_a_fit_can_be_saved_without_writing_anything_and_gives_the_same_output(folder):
    (folder / "in").mkdir()
    for number, part in enumerate(np.array_split(Z, 3)):
        np.save(f"in/{number}.npy", part)
    before = files(folder)
    assert adapt("in", "--fit-only", "--save-state", "s.safetensors") == 0
    assert files(folder) == {*before, "s.safetensors"}
    assert adapt("in", "-o", "one", "--write", "labels") == 0
    for number in range(3):  # as machines do that have a shard each
        words = ("--load-state", "s.safetensors", "--write", "labels", "-o", f"{number}.npy")
        assert adapt(f"in/{number}.npy", *words) == 0
        assert Path(f"{number}.npy").read_bytes() == Path(f"one/{number}.npy").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--fit-only"], "--fit-only needs --save-state FILE, and neither --load-state nor --output"),
        (["--fit-only", "--save-state", "s.safetensors", "-o", "out"], "--fit-only needs"),
        (["--fit-only", "--save-state", "s.safetensors", "--online"], "leave out --online"),
        ([], "the following arguments are required: --output/-o"),
    ],
)
def test_words_that_do_not_go_together_are_a_usage_error(words, reason, folder, capsys):
    before = files(folder)
    with pytest.raises(SystemExit, match="2"):
        adapt("z.npy", *words)
    assert reason in capsys.readouterr().err
    assert files(folder) == before


def test_a_classifier_is_needed(folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["adapt", "z.npy", "-o", "o.npy"])
    assert "one of the arguments --text --head --load-state is required" in capsys.readouterr().err


def test_started_by_torchrun_it_is_one_line_and_no_file(folder, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    before = files(folder)
    assert adapt("z.npy", "-o", "o.npy") == 1
    line = "clip-tca: adapt: runs in one process, and torchrun started 2; start it without torchrun\n"
    assert capsys.readouterr().err == line
    assert files(folder) == before


def test_class_names_are_encoded_by_a_model(folder):
    np.save("tiny.npy", np.random.default_rng(0).standard_normal((200, EMBEDDING)).astype(np.float32))
    Path("names.txt").write_text("dog\nelephant\nhouse\n")
    words = ["--text", "names.txt", "--model", MODEL, "--prompts", "watt", "-o", "out.npy", "--write", "labels"]
    assert main(["adapt", "tiny.npy", *words]) == 0
    assert set(np.load("out.npy")) <= {0, 1, 2}
    assert json.loads(Path("out.npy.json").read_text())["text"]["model"] == "local-dir:tiny"


# -- export ------------------------------------------------------------------------------------------------------------


def test_onnx_predicts_what_the_adapter_does(folder, fitted):
    onnxruntime = pytest.importorskip("onnxruntime")
    fitted.save("s.safetensors")
    assert main(["export", "s.safetensors", "-o", "m.onnx"]) == 0
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    z = 3 * Z.astype(np.float32)
    logits, labels = session.run(None, {"embeddings": z})
    assert np.allclose(logits, fitted.logits(z), atol=1e-3)
    assert np.array_equal(labels, fitted.predict(z))


def test_a_linear_layer_takes_the_exported_tensors(folder, fitted):
    fitted.save("s.safetensors")
    assert main(["export", "s.safetensors", "-o", "m.safetensors"]) == 0
    layer = torch.nn.Linear(24, 4)
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in load_file("m.safetensors").items()})
    unit = torch.nn.functional.normalize(torch.from_numpy(Z).float(), dim=1)
    assert torch.allclose(layer(unit), torch.from_numpy(fitted.logits(Z)), atol=1e-3)


def test_what_can_not_be_exported_is_said(folder, fitted, capsys):
    from clip_tca import MLPTCA

    MLPTCA(SET.g).fit(Z).save("mlp.safetensors")
    capsys.readouterr()
    assert main(["export", "mlp.safetensors", "-o", "m.onnx"]) == 1
    assert main(["export", "z.npy", "-o", "m.onnx"]) == 1
    fitted.save("s.safetensors")
    assert main(["export", "s.safetensors", "-o", "m.pt"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "is not linear" in lines[0]
    assert "not a saved clip-tca state" in lines[1]
    assert ".onnx or .safetensors" in lines[2]
    assert not Path("m.onnx").exists()


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_rows_are_named_or_dropped(folder, fitted, capsys):
    bad = Z.copy()
    bad[7, 3], bad[200] = np.nan, np.inf
    np.save("bad.npy", bad)
    write(folder / "bad.parquet", bad)
    assert adapt("bad.npy", "-o", "out.npy") == 1
    assert (
        "bad.npy: NaN or infinity in row 7, 200; repair it, or leave it out: --drop-bad-rows" in capsys.readouterr().err
    )
    assert not Path("out.npy").exists()
    good = np.delete(Z, [7, 200], axis=0)
    expected = LinearTCA(SET.g).fit(good).predict(good)
    for words in ([], ["--online", "--batch-size", str(len(Z))]):
        assert (
            adapt(
                "bad.npy",
                "-o",
                "out.npy",
                "--drop-bad-rows",
                "--labels",
                "y.npy",
                "--write",
                "labels",
                "--overwrite",
                *words,
            )
            == 0
        )
        assert np.array_equal(np.load("out.npy"), expected)
        record = json.loads(Path("out.npy.json").read_text())
        assert record["left_out"] == {"bad.npy": {"rows": 2, "first": [7, 200]}}
        assert record["scored"]["correct"] == int((expected == np.delete(Y, [7, 200])).sum())
    assert "2 rows of NaN or infinity were left out" in capsys.readouterr().out
    assert adapt("bad.parquet", "-o", "out.parquet", "--drop-bad-rows", "--write", "labels") == 0
    table = pq.read_table("out.parquet")
    assert table.column_names == ["id", "tca_label"]
    assert table["id"].to_pylist() == [f"p{i}" for i in range(len(Z)) if i not in (7, 200)]
    assert np.array_equal(table["tca_label"].to_numpy(), expected)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["none.npy", "-o", "o.npy"], "no such file, folder or pattern"),
        (["z.npy", "-o", "no/o.npy"], "does not exist; create it first"),
        (["z.npy", "-o", "-"], "output: standard output is for embeddings from standard input"),
        (["-", "-o", "."], "output: . is a folder; name a file in it"),
        (["-", "-o", "y.npy"], "y.npy exists; choose another name, or replace it: --overwrite"),
        (["z.npy", "-o", "o.npy", "--save-state", "no/s.safetensors"], "save_state: no/s.safetensors can't be written"),
        (["z.npy", "-o", "o.npz"], "the output has the format of the input: name a .npy file, or a folder"),
        (["z.npy", "-o", "o.npy", "--write", "labels,scores"], "can hold one array, not labels and scores"),
        (["z.npy", "-o", "z.npy", "--overwrite"], "is the input"),
        (["z.npy", "-o", "y.npy"], "y.npy exists; choose another name, or replace it: --overwrite"),
        (["z.npy", "-o", "o.npy", "--labels", "text.npy"], "labels: shape (4, 24)"),
        (["z.npy", "-o", "o.npy", "--labels", "short.txt"], "labels: 2, but there are 240 rows"),
        (["text.npy", "-o", "o.npy", "--k", "0"], "k: 0"),
        (["narrow.npy", "-o", "o.npy"], "dimension 3, but the class texts have 24"),
        (["z.npy", "-o", "o.npy", "--shares", "oracle"], "uses true labels"),
        (["z.npy", "-o", "o.npy", "--load-state", "oracle.safetensors"], "uses true labels"),
        (["z.npy", "-o", "o.npy", "--load-state", "other.safetensors"], "other.safetensors: "),
        (["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", "--method", "mlp2-tca"], "leave out method"),
        (["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", "--k", "3"], "leave out k"),
        (["z.npy", "-o", "o.npy", "--load-state", "y.npy"], "not a saved clip-tca state"),
        (["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", "--save-state", "t.safetensors"], "nothing new"),
        (["z.npy", "-o", "o.npy", "--hub-id", "a/b"], "name a file, a folder, a pattern or -"),
        (["odd.npz", "-o", "o.npz", "--write", "embeddings,labels"], "odd.npz: has an array 'labels' already"),
        (["one.npy", "-o", "o.npy"], "1 row that can be used; at least 2 are needed"),
        (["nan.npy", "-o", "o.npy", "--drop-bad-rows"], "0 rows that can be used; at least 2 are needed"),
        (["nan.npy", "-o", "o.npy", "--drop-bad-rows", "--online"], "0 rows that can be used; at least 1 is needed"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_no_file(words, reason, folder, fitted, capsys, monkeypatch):
    monkeypatch.setattr(
        "clip_tca.datasets.formats.stream.standard_input", lambda: pytest.fail("read before it was checked")
    )
    fitted.save("s.safetensors")
    LinearTCA(SET.g, **{**PUBLIC_CODE, "k": 2}).fit(Z, labels=Y).save("oracle.safetensors")
    type("Other", (LinearTCA,), {})(SET.g).fit(Z).save("other.safetensors")
    np.save("narrow.npy", Z[:, :3])
    np.save("one.npy", Z[:1])
    np.savez("odd.npz", labels=Z)
    np.save("nan.npy", np.full_like(Z, np.nan))
    Path("short.txt").write_text("0\n1\n")
    before = files(folder)
    capsys.readouterr()
    assert adapt(*words) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert files(folder) == before


@pytest.mark.parametrize("text", ["t.npz", "t.safetensors"])
def test_text_embeddings_may_come_with_their_scale(text, folder):
    rows = SET.g.text.numpy()
    if text == "t.npz":
        np.savez(text, text=rows)
        words = ["--scale", str(SCALE)]
    else:
        save_file({"text.single": rows}, text, metadata={"scale": str(SCALE), "classes": '["a", "b", "c", "d"]'})
        words = []
    assert (
        main(["adapt", "z.npy", "--method", "linear-tca", "--text", text, *words, "-o", "o.npy", "--write", "labels"])
        == 0
    )
    assert np.array_equal(np.load("o.npy"), LinearTCA(SET.g).fit(Z).predict(Z))


def test_columns_of_an_earlier_run_are_carried_along_or_refused(folder, fitted, capsys, monkeypatch):
    table = pq.read_table(write(folder / "a.parquet", Z)).append_column("tca_label", pa.array(range(len(Z))))
    pq.write_table(table, "a.parquet")
    assert adapt("a.parquet", "-o", "b.parquet", "--write", "scores") == 0
    table = pq.read_table("b.parquet")
    assert table.column_names == ["id", "tca_label", "tca_score"]
    assert table["tca_label"].to_pylist() == list(range(len(Z)))
    assert np.allclose(table["tca_score"].to_numpy(), torch.from_numpy(fitted.logits(Z)).softmax(1).amax(1), atol=1e-5)
    capsys.readouterr()
    monkeypatch.setattr("clip_tca.bulk.job.Job.run", lambda *_: pytest.fail("read before it was checked"))
    assert adapt("a.parquet", "-o", "c.parquet", "--write", "labels") == 1
    assert capsys.readouterr().err == "clip-tca: a.parquet: has a column 'tca_label' already; rename it\n"


def test_of_a_file_with_much_else_only_the_text_embeddings_are_read(folder):
    """The pictures beside them can't be: their checksum is wrong."""
    pictures = np.random.default_rng(0).standard_normal((300, 24)).astype(np.float32)
    np.savez("t.npz", text=SET.g.text.numpy(), pictures=pictures)
    Path("t.npz").write_bytes(Path("t.npz").read_bytes().replace(pictures.tobytes(), bytes(pictures.nbytes)))
    with np.load("t.npz") as archive, pytest.raises(zipfile.BadZipFile):
        archive["pictures"]
    assert (
        main(
            [
                "adapt",
                "z.npy",
                "--method",
                "linear-tca",
                "--text",
                "t.npz",
                "--scale",
                str(SCALE),
                "-o",
                "o.npy",
                "--write",
                "labels",
            ]
        )
        == 0
    )
    assert np.array_equal(np.load("o.npy"), LinearTCA(SET.g).fit(Z).predict(Z))


def test_text_files_that_are_none_are_refused(folder, capsys):
    Path("broken.npz").write_bytes(b"PK no")
    Path("words.txt").write_text("dog\n")
    np.savez("two.npz", a=np.ones((4, 24), np.float32), b=np.ones((4, 24), np.float32))
    for name, reason in {
        "broken.npz": "damaged",
        "words.txt": "--model",
        "two.npz": "a, b; name it with --text-column",
    }.items():
        assert main(["adapt", "z.npy", "--text", name, "-o", "o.npy"]) == 1
        assert reason in capsys.readouterr().err


def test_more_classes_than_fit_are_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 1000 if name == "SC_PHYS_PAGES" else 4)
    assert adapt("z.npy", "-o", "o.npy") == 1
    assert "4 classes need about" in capsys.readouterr().err


def test_an_output_of_ours_is_replaced_when_asked(folder):
    for _ in range(2):
        assert adapt("z.npy", "-o", "out", "--overwrite", "--write", "labels") == 0
    assert adapt("z.npy", "-o", "out") == 1
    assert files(folder / "out") == {"z.npy", "_clip-tca.json"}


FULL = """
import resource, sys
from clip_tca.cli import main
from clip_tca.datasets.formats.registry import open_shard
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_a_full_disk_leaves_nothing_and_says_what_was_kept(suffix, folder):
    noise = np.random.default_rng(0).normal(scale=0.01, size=(40 * len(Z), Z.shape[1]))  # or Parquet makes it small
    write(folder / f"big{suffix}", (np.tile(Z, (40, 1)) + noise).astype(np.float16))
    before = files(folder)
    words = [
        "adapt",
        "--method",
        "linear-tca",
        f"big{suffix}",
        "--text",
        "text.npy",
        "-o",
        f"out{suffix}",
        "--dtype",
        "float32",
        "--k",
        "2",
        "--shares",
        "uniform",
    ]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *words, "--save-state", "s.safetensors"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "can't be written" in done.stderr
    assert "the fitted state is kept in s.safetensors: go on with --load-state" in done.stderr
    assert files(folder) == {*before, "s.safetensors"}
    assert not list(folder.glob(".*"))


HEAD = LinearClassifier(SET.g.weight.float(), torch.linspace(-1, 1, 4))


@pytest.fixture
def head(folder) -> Path:
    """Features that are not of unit length, and the head that goes with them."""
    np.save("f.npy", 7 * Z)
    save_file({"weight": HEAD.weight.numpy(), "bias": HEAD.bias.numpy()}, "head.safetensors")
    return folder


@pytest.mark.parametrize("method", [LinearTCA, ConditionalTCA])
def test_a_head_takes_the_place_of_texts(method, head, capsys):
    name = {LinearTCA: "linear-tca", ConditionalTCA: "conditional-tca"}[method]
    words = ["adapt", "f.npy", "--head", "head.safetensors", "--method", name, "--labels", "y.npy"]
    assert main([*words, "-o", "o.npy", "--write", "labels", "--save-state", "s.safetensors"]) == 0
    expected = method(HEAD).fit(7 * Z).predict(7 * Z)
    assert np.array_equal(np.load("o.npy"), expected)
    before, after = (100 * float(np.mean(p == Y)) for p in (HEAD.predict(7 * Z), expected))
    assert f"accuracy (%): head {before:.2f}, {name} {after:.2f}" in capsys.readouterr().out
    record = json.loads(Path("o.npy.json").read_text())
    assert record["head"]["file"] == "head.safetensors"
    assert "text" not in record
    assert record["method"]["parameters"]["normalize"] is False
    assert main(["adapt", "f.npy", "--load-state", "s.safetensors", "-o", "again.npy", "--write", "labels"]) == 0
    assert np.array_equal(np.load("again.npy"), expected)
    assert main(["export", "s.safetensors", "-o", "adapted.safetensors"]) == 0
    exported = load_file("adapted.safetensors")
    assert np.array_equal((7 * Z.astype(np.float32) @ exported["weight"].T + exported["bias"]).argmax(axis=1), expected)


def test_a_file_of_features_may_bring_its_head(head):
    tensors = {"target.features": 7 * Z, "head.weight": HEAD.weight.numpy(), "head.bias": HEAD.bias.numpy()}
    save_file(tensors, "all.safetensors")
    words = ["adapt", "all.safetensors", "--column", "target.features", "--head", "all.safetensors"]
    assert main([*words, "-o", "o.safetensors"]) == 0
    moved = ConditionalTCA(HEAD).fit(7 * Z).transform(7 * Z)
    np.testing.assert_allclose(load_file("o.safetensors")["target.features"], moved, rtol=2e-2, atol=2e-3)


def test_an_exported_classifier_says_itself_whether_rows_are_scaled(head):
    save_file({"weight": HEAD.weight.numpy()}, "unit.safetensors", metadata={"normalize": "true"})
    words = ["adapt", "f.npy", "--head", "unit.safetensors", "--method", "linear-tca", "--write", "labels"]
    assert main([*words, "-o", "o.npy"]) == 0
    assert np.array_equal(np.load("o.npy"), LinearTCA(LinearClassifier(HEAD.weight)).fit(Z).predict(Z))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--head", "none.safetensors"], "head: none.safetensors is not a file"),
        (["--head", "y.npy"], "head: y.npy; allowed is a .safetensors file with the tensors weight and bias"),
        (
            ["--head", "narrow.safetensors"],
            "embeddings: dimension 24, but the head has 16; both must come from the same",
        ),
        (["--head", "other.safetensors"], "has no tensor weight or head.weight; there are fc.weight"),
        (["--head", "two.safetensors", "--labels", "y.npy"], "labels: values 0 to 3; allowed are 0 to 1"),
        (["--head", "head.safetensors", "--scale", "3"], "head.safetensors is the whole classifier; leave out --scale"),
        (["--head", "nan.safetensors"], "head: nan.safetensors: weight: 4 of 4 rows hold NaN or infinity"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_and_nothing_is_written(words, reason, head, capsys):
    weight = HEAD.weight.numpy()
    save_file({"weight": np.ascontiguousarray(weight[:, :16])}, "narrow.safetensors")
    save_file({"fc.weight": weight}, "other.safetensors")
    save_file({"weight": np.ascontiguousarray(weight[:2])}, "two.safetensors")
    save_file({"weight": np.full_like(weight, np.nan)}, "nan.safetensors")
    before = files(head)
    assert main(["adapt", "f.npy", *words, "-o", "o.npy"]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert files(head) == before


def test_features_without_any_variance_are_refused_and_nothing_is_written(head, capsys):
    np.save("same.npy", np.repeat(Z[:1], 50, axis=0))
    before = files(head)
    assert main(["adapt", "same.npy", "--head", "head.safetensors", "-o", "o.npy"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("clip-tca: embeddings: all 50 rows are the same, and nothing can be learned from them;")
    assert error.count("\n") == 1
    assert files(head) == before
