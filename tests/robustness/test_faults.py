"""What machines and people do to a run: it ends with one clear line or the right result, and nothing is half there.

Commands run in forks of this process.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot  # noqa: F401 (once, for all forks)
import numpy as np
import onnx  # noqa: F401
import open_clip  # noqa: F401
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from clip_tca.bulk import run as bulk
from clip_tca.cli import main
from clip_tca.core import files
from clip_tca.data.folder import load_folder
from clip_tca.encoding import decoding
from tests.tiny_clip import MODEL

OLD = "of an earlier run"


@dataclass
class Done:
    code: int
    out: str
    err: str

    def failed(self, *words: str, code: int = 1) -> None:
        """One clear line, and this exit code."""
        assert self.code == code, self
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("clip-tca: ")
        assert all(word in self.err for word in words), self.err


def run(arguments: list[str | Path], before: Callable[[], object] = lambda: None, patience: float = 60) -> Done:
    """A command in a fork, after ``before``; stdout and stderr go to files."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (pid := os.fork()):
            code = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
                before()
                for number, name in ((1, "stdout"), (2, "stderr")):  # pytest's own may take a pipe for the file it had
                    if getattr(sys, name) is not None:
                        setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
                code = main([str(word) for word in arguments])
                with contextlib.suppress(OSError):
                    sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc(file=sys.stderr)
                sys.stderr.flush()
            finally:
                os._exit(code)
        deadline = time.monotonic() + patience
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        texts = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return Done(os.waitstatus_to_exitcode(ended[1]), *texts)


def make_pictures(root: Path, classes: tuple[str | bytes, ...] = ("cat", "dog"), count: int = 8) -> Path:
    for number in range(count):
        folder = os.path.join(os.fsencode(root), os.fsencode(classes[number % 2]))
        os.makedirs(folder, exist_ok=True)
        picture = Image.new("RGB", (32, 32), (30 * number % 256, 255 * (number % 2), 9))
        picture.save(os.fsdecode(os.path.join(folder, b"%d.png" % number)))
    return root


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Embeddings, class texts, pictures, a record and a state."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 16)).astype(np.float32)
    np.save(folder / "text.npy", rng.normal(size=(4, 16)).astype(np.float32))
    np.save(folder / "z.npy", z)
    (folder / "shards").mkdir()
    for number, part in enumerate(np.split(z, 2)):
        np.save(folder / "shards" / f"{number}.npy", part)
    pq.write_table(pa.table({"embedding": pa.FixedSizeListArray.from_arrays(z.ravel(), 16)}), folder / "z.parquet")
    make_pictures(folder / "pictures")
    assert main(["eval", "--dataset", "synthetic", "--examples", "3", "-o", str(folder / "record.json")]) == 0
    state = ["--save-state", str(folder / "state.safetensors")]
    assert main([*adapt(folder, "z.npy", folder / "moved.npy"), *state]) == 0
    return folder


def adapt(inputs: Path, name: str, output: Path) -> list[str]:
    return ["adapt", str(inputs / name), "--text", str(inputs / "text.npy"), "--scale", "20", "-o", str(output)]


def evaluate(pictures: Path, *more: str | Path) -> list[str | Path]:
    return ["eval", "--dataset", "folder", "--data-dir", pictures, "--model", MODEL, "--method", "zero-shot", *more]


def writers(inputs: Path, out: Path) -> dict[str, tuple[list[str], list[Path]]]:
    """Every command that writes, and its files."""
    embed = ["embed", "--dataset", "folder", "--data-dir", str(inputs / "pictures"), "--model", MODEL, "--workers", "0"]
    study = ["study", "toy", "-o", str(out / "toy"), "--set", "points=40"]
    record, state = str(inputs / "record.json"), str(inputs / "state.safetensors")
    return {
        "eval": (["eval", "--dataset", "synthetic", "-o", str(out / "a.json")], [out / "a.json"]),
        "embed": ([*embed, "--no-cache", "-o", str(out / "a.safetensors")], [out / "a.safetensors"]),
        "adapt npy": (adapt(inputs, "z.npy", out / "a.npy"), []),
        "adapt shards": (adapt(inputs, "shards", out / "folder"), []),
        "adapt parquet": (adapt(inputs, "z.parquet", out / "a.parquet"), []),
        "report": (["report", record, "-o", str(out / "a.html")], [out / "a.html"]),
        "study": (study, [out / f"toy.{form}" for form in ("json", "svg", "png")]),
        "export": (["export", state, "-o", str(out / "a.safetensors")], [out / "a.safetensors"]),
        "export onnx": (["export", state, "-o", str(out / "a.onnx")], [out / "a.onnx"]),
    }


NAMES = tuple(writers(Path(), Path()))


def contents(folder: Path) -> dict[str, bytes]:
    """Files by name, without what a kill may leave."""
    paths = [path for path in folder.rglob("*") if path.is_file() and ".clip-tca-" not in str(path)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# -- full disks and kills ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_line_and_the_old_file_stays(name, inputs, tmp_path):
    arguments, outputs = writers(inputs, tmp_path)[name]
    for path in outputs:
        path.write_text(OLD)
    run(arguments, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))).failed(str(tmp_path))
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == sorted(outputs)
    assert all(path.read_text() == OLD for path in outputs)


def kill_before(step: int, count: Path) -> Callable[[], None]:
    """For a fork: count the operations that change files, and die before number ``step``."""
    kinds = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "tempfile.mkdtemp", "shutil.rmtree"}

    def install() -> None:
        log = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        seen = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (writes or event in kinds) and not str(arguments[0]).startswith("/dev/"):
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
                os.pwrite(log, b"%6d" % seen, 0)

        sys.addaudithook(hook)

    return install


@pytest.mark.parametrize("name", ["report", "export", "adapt npy", "adapt shards"])
def test_a_run_that_is_killed_leaves_no_half_file_and_the_next_one_gives_the_same(name, inputs, tmp_path):
    count, steps = tmp_path / "count", 12
    (tmp_path / "whole").mkdir()
    arguments = writers(inputs, tmp_path / "whole")[name][0]
    assert run(arguments, kill_before(-1, count)).code == 0
    expected, operations = contents(tmp_path / "whole"), int(count.read_text())
    assert operations >= 4
    for step in range(0, operations, -(-operations // steps)):
        out = tmp_path / str(step)
        out.mkdir()
        arguments = writers(inputs, out)[name][0]
        assert run(arguments, kill_before(step, count)).code == -signal.SIGKILL
        marks = (".json", ".clip-tca/")  # records hold times
        for file, data in contents(out).items():
            assert data == expected[file] or any(mark in file for mark in marks), (step, file)
        assert run(arguments).code == 0
        after = contents(out)
        assert after.keys() == expected.keys()
        assert [file for file in after if after[file] != expected[file] and not any(m in file for m in marks)] == []


def test_many_writers_of_one_file_do_not_take_it_from_each_other(tmp_path):
    def write(letter: str) -> None:
        for _ in range(60):
            files.write_text(tmp_path / "a.txt", letter * 10_000)

    processes = [multiprocessing.get_context("fork").Process(target=write, args=(letter,)) for letter in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert contents(tmp_path) in [{"a.txt": letter.encode() * 10_000} for letter in "abcd"]
    assert len(list(tmp_path.iterdir())) == 1


def test_pipes_links_and_permissions_are_kept(tmp_path):
    (tmp_path / "real").write_text(OLD)
    (tmp_path / "link").symlink_to("real")
    tensors = {"a": torch.ones(3)}
    files.write_tensors(tmp_path / "link", tensors, {})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o666 & ~umask()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_tensors(tmp_path / "pipe", tensors, {})
    assert os.read(reader, 9999) == (tmp_path / "real").read_bytes()
    os.close(reader)
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist; create it first"):
        files.write_text(tmp_path / "nowhere" / "a", "")


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


@pytest.mark.parametrize("name", ["z.npy", "z.parquet"])
def test_embeddings_cut_short_during_the_run(name, inputs, tmp_path, monkeypatch):
    for each in (name, "text.npy"):
        shutil.copy(inputs / each, tmp_path / each)
    fit = bulk.Run.fit

    def cut(self, *arguments):
        result = fit(self, *arguments)
        os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
        return result

    monkeypatch.setattr(bulk.Run, "fit", cut)
    run(adapt(tmp_path, name, tmp_path / f"out{Path(name).suffix}")).failed("truncated or damaged")
    assert contents(tmp_path).keys() == {"text.npy", name}


# -- signals, pipes ----------------------------------------------------------------------------------------------------


ASKED = pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)


def alone() -> None:
    """A process group of its own, in which Ctrl-C is heard."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)
def test_asked_to_end_it_tidies_up(number, code, word, inputs, tmp_path, monkeypatch):
    def asked(*_):
        os.kill(os.getpid(), number)
        time.sleep(5)

    monkeypatch.setattr(bulk, "sampled", asked)
    run(adapt(inputs, "z.npy", tmp_path / "a.npy"), alone).failed(word, code=code)
    assert list(tmp_path.iterdir()) == []


def broken() -> None:
    """A reader that has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


def closed() -> None:
    os.close(1)
    sys.stdout = None


@pytest.mark.parametrize(("before", "code"), [(broken, 1), (closed, 0)])
def test_a_stdout_that_nobody_reads_prints_no_trace(before, code):
    assert run(["data", "list"], before) == Done(code, "", "")


def test_a_full_stdout_is_one_line():
    run(["data", "list"], lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)).failed("No space left on device")


def test_decoding_workers_end_with_their_run(tmp_path):
    """They hold its lock on the store: the next run would wait for it. Torch's workers look for it every 5 s."""
    domain = next(iter(load_folder(make_pictures(tmp_path / "pictures")).domains.values()))
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        batches = decoding.loader(domain, lambda _: torch.ones(3), [[0]] * 500, 1, torch.device("cpu"))
        next(batches)
        os.write(writer, str(multiprocessing.active_children()[0].pid).encode())
        time.sleep(60)
    worker = int(os.read(reader, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and "zombie" not in Path(f"/proc/{worker}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- odd surroundings --------------------------------------------------------------------------------------------------


def homeless() -> None:
    """No home folder, and where that can be arranged nobody whom the system knows."""
    for name in ("HOME", "CLIP_TCA_CACHE", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    if not os.geteuid():
        os.setuid(54321)


def test_without_a_home_folder():
    assert run(["eval", "--dataset", "synthetic", "--method", "zero-shot"], homeless).code == 0
    if os.geteuid():
        pytest.skip("becoming somebody unknown needs root")
    run(["cache", "path"], homeless).failed("no home folder for the store; set CLIP_TCA_CACHE")


def test_an_ascii_locale_gives_the_same_record(tmp_path):
    pictures = make_pictures(tmp_path / "Ærø ☃", ("Hündin", "kätzchen 猫"))
    plain = run(evaluate(pictures, "-o", tmp_path / "a.json"))
    assert (plain.code, plain.err) == (0, "")
    command = [sys.executable, "-m", "clip_tca", *evaluate(pictures, "-o", tmp_path / "é.json")]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **ascii_only})
    assert (done.returncode, done.stderr) == (0, b"")
    utf8, ascii_record = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "é.json"))
    assert utf8["data"]["classes"] == ascii_record["data"]["classes"] == ["Hündin", "kätzchen 猫"]
    assert utf8["rows"] == ascii_record["rows"]


def test_names_that_are_not_unicode(tmp_path):
    pictures = make_pictures(tmp_path / "pictures", (b"H\xfcndin", b"Katze"))
    for suffix in ("json", "csv"):
        done = run(evaluate(pictures, "--workers", "0", "--examples", "1", "-o", tmp_path / f"a.{suffix}"))
        assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["data"]["classes"] == ["H\\xfcndin", "Katze"]
    assert run(["report", tmp_path / "a.json", "-o", tmp_path / "a.html"]).code == 0


def test_spaces_other_letters_and_links(inputs, tmp_path):
    odd = tmp_path / "ein Ort, 猫 [1] ☃"
    (odd / "out").mkdir(parents=True)
    shutil.copytree(inputs, odd / "Eingabe ä")
    (odd / "link").symlink_to("Eingabe ä")
    for name in NAMES:
        done = run(writers(odd / "link", odd / "out")[name][0])
        assert (done.code, done.err) == (0, ""), name
