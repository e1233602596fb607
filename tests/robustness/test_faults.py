"""What machines and people do to a run: it ends with one clear line or the right result, and nothing is half there.

``python -m tests.robustness.kills`` kills runs at random moments; here is everything else. Commands run in forks of
this process.
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
from collections.abc import Callable, Iterator
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
from clip_tca.bulk.run import RECORD
from clip_tca.cli import main
from clip_tca.core import files
from clip_tca.datasets.folder import load_folder
from clip_tca.encoding import decoding, embedder
from clip_tca.evaluation import base_runs
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


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def make_pictures(root: Path, classes: tuple[str | bytes, ...] = ("cat", "dog"), count: int = 8) -> Path:
    for number in range(count):
        place = os.path.join(os.fsencode(root), os.fsencode(classes[number % 2]))
        os.makedirs(place, exist_ok=True)
        Image.new("RGB", (32, 32), (30 * number % 256, 255 * (number % 2), 9)).save(
            os.fsdecode(os.path.join(place, b"%d.png" % number))
        )
    return root


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Embeddings, class texts, pictures, a record and a state."""
    place = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 16)).astype(np.float32)
    np.save(place / "text.npy", rng.normal(size=(4, 16)).astype(np.float32))
    np.save(place / "z.npy", z)
    np.savez(place / "z.npz", embeddings=z)
    pq.write_table(pa.table({"embedding": pa.FixedSizeListArray.from_arrays(z.ravel(), 16)}), place / "z.parquet")
    np.load(place / "z.npz").close()  # loads an encoding that a fork without rights may not be able to load
    make_pictures(place / "pictures")
    assert main(["eval", "--dataset", "synthetic", "--examples", "3", "-o", str(place / "record.json")]) == 0
    state = ["--save-state", str(place / "state.safetensors")]
    assert main([*adapt(place, "z.npy", place / "moved.npy"), *state]) == 0
    return place


def adapt(inputs: Path, name: str, output: Path) -> list[str]:
    return ["adapt", str(inputs / name), "--text", str(inputs / "text.npy"), "--scale", "20", "-o", str(output)]


def encode(pictures: Path, output: Path, *more: str) -> list[str]:
    base = ["embed", "--dataset", "folder", "--data-dir", str(pictures), "--model", MODEL, "--workers", "0"]
    return [*base, "-o", str(output), *more]


def writers(inputs: Path, out: Path) -> dict[str, tuple[list[str], list[Path]]]:
    """Every command that writes, and its files."""
    study = ["study", "toy", "-o", str(out / "toy"), "--set", "points=40"]
    record, state = str(inputs / "record.json"), str(inputs / "state.safetensors")
    return {
        "eval": (["eval", "--dataset", "synthetic", "-o", str(out / "a.json")], [out / "a.json"]),
        "embed": (encode(inputs / "pictures", out / "a.safetensors", "--no-cache"), [out / "a.safetensors"]),
        "adapt npy": (adapt(inputs, "z.npy", out / "a.npy"), []),
        "adapt npz": (adapt(inputs, "z.npz", out / "folder"), []),
        "adapt parquet": (adapt(inputs, "z.parquet", out / "a.parquet"), []),
        "report": (["report", record, "-o", str(out / "a.html")], [out / "a.html"]),
        "study": (study, [out / f"toy.{form}" for form in ("json", "svg", "png")]),
        "export": (["export", state, "-o", str(out / "a.safetensors")], [out / "a.safetensors"]),
        "export onnx": (["export", state, "-o", str(out / "a.onnx")], [out / "a.onnx"]),
    }


NAMES = tuple(writers(Path(), Path()))


# -- full disks, places that can't be written --------------------------------------------------------------------------


def limit(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_line_and_the_old_file_stays(name, inputs, tmp_path):
    arguments, outputs = writers(inputs, tmp_path)[name]
    for path in outputs:
        path.write_text(OLD)
    run(arguments, limit(400)).failed(str(tmp_path))
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == sorted(outputs)
    assert all(path.read_text() == OLD for path in outputs)


@pytest.fixture
def forbidden() -> Iterator[Path]:
    """A folder in which nothing can be made."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)  # noqa: S103
        yield Path(name)
        os.chmod(name, 0o755)  # noqa: S103


def be_nobody() -> None:
    """Root may write everywhere."""
    if not os.geteuid():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


@pytest.mark.parametrize("name", NAMES)
def test_without_permission_is_one_line(name, inputs, forbidden):
    for path in (inputs, *inputs.parents[:2]):
        os.chmod(path, 0o755)  # noqa: S103
    run(writers(inputs, forbidden)[name][0], be_nobody).failed("Permission denied")
    assert listing(forbidden) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_place_below_a_file_is_one_line(name, inputs, tmp_path):
    (tmp_path / "file").write_text(OLD)
    run(writers(inputs, tmp_path / "file")[name][0]).failed("file")
    assert listing(tmp_path) == ["file"]


def test_a_store_that_may_only_be_read_is_used_and_a_warning(inputs, tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "size=8m") as disk:
        monkeypatch.setenv("CLIP_TCA_CACHE", str(disk))
        assert main(encode(inputs / "pictures", tmp_path / "a.safetensors")) == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        again = run(encode(inputs / "pictures", tmp_path / "b.safetensors"))
        assert (again.code, again.err) == (0, "")
        assert "0 encoded" in again.out
        make_pictures(tmp_path / "others", ("hen", "cow"))
        other = run(encode(tmp_path / "others", tmp_path / "c.safetensors"))
    assert other.code == 0
    assert len(other.err.splitlines()) == 1
    assert "can't be written (attempt to write a readonly database); going on" in other.err


# -- changes in the middle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["z.npy", "z.npz", "z.parquet"])
def test_embeddings_cut_short_during_the_run(name, inputs, tmp_path, monkeypatch):
    shutil.copy(inputs / name, tmp_path / name)
    fit = bulk.Run.fit

    def cut(self, *arguments):
        result = fit(self, *arguments)
        os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
        return result

    monkeypatch.setattr(bulk.Run, "fit", cut)
    shutil.copy(inputs / "text.npy", tmp_path)
    run(adapt(tmp_path, name, tmp_path / f"out{Path(name).suffix}")).failed("truncated or damaged")
    assert listing(tmp_path) == ["text.npy", name]


# -- signals, pipes, several runs --------------------------------------------------------------------------------------


ASKED = pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)


def alone() -> None:
    """A process group of its own, in which Ctrl-C is heard."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@ASKED
def test_asked_to_end_it_tidies_up(number, code, word, inputs, tmp_path, monkeypatch):
    def asked(*_):
        os.kill(os.getpid(), number)
        time.sleep(5)

    monkeypatch.setattr(bulk, "sampled", asked)
    run(adapt(inputs, "z.npy", tmp_path / "a.npy"), alone).failed(word, code=code)
    assert listing(tmp_path) == []


@ASKED
@pytest.mark.parametrize(
    ("place", "name", "method"), [(embedder, "encode_batches", "zero-shot"), (base_runs, "loader", "tent")]
)
def test_asked_to_end_with_those_that_decode_it_says_so_in_one_line(
    place, name, method, number, code, word, tmp_path, monkeypatch
):
    """As ``timeout``, job schedulers and Ctrl-C ask: the whole group, and SIGTERM may come again."""
    begin = getattr(place, name)  # threads for embeddings on a CPU, processes for methods that see pictures

    def asked(*arguments):
        batches = iter(begin(*arguments))
        yield next(batches)
        try:
            subprocess.run(["kill", f"-{int(number)}", "0"], check=False)  # torch tells who it is from
        finally:  # tidying up takes a while, and the others have ended by then
            time.sleep(0.5)
            if number == signal.SIGTERM:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(place, name, asked)
    own = make_pictures(tmp_path / "own", count=60)
    words = ["eval", "--dataset", "folder", "--data-dir", own, "--model", MODEL, "--method", method]
    run([*words, "--no-cache", "--workers", "2"], alone).failed(word, code=code)


def test_an_interrupt_among_the_imports_is_one_line():
    code = (
        "import runpy, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'clip_tca.cli.study': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "runpy.run_module('clip_tca', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "study"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "clip-tca: interrupted\n")


def broken() -> None:
    """A reader that has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


def closed() -> None:
    os.close(1)
    sys.stdout = None


@pytest.mark.parametrize(("before", "code"), [(broken, 1), (closed, 0)])
@pytest.mark.parametrize("arguments", [["data", "list"], ["methods"], ["eval", "--dataset", "synthetic"]])
def test_a_stdout_that_nobody_reads_is_no_matter_for_a_trace(arguments, before, code):
    assert run(arguments, before) == Done(code, "", "")


def test_a_full_stdout_is_one_line():
    run(["data", "list"], lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)).failed("No space left on device")


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
    assert (tmp_path / "a.txt").read_text() in [letter * 10_000 for letter in "abcd"]
    assert listing(tmp_path) == ["a.txt"]


# -- killed at the worst moment ----------------------------------------------------------------------------------------


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


def test_little_shared_memory_is_enough(inputs, tmp_path, monkeypatch):
    def full(_self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    domain = next(iter(load_folder(inputs / "pictures").domains.values()))
    ready = decoding.loader(
        domain, lambda picture: torch.tensor(picture.getpixel((0, 0))), [[0, 1], [5]], 1, torch.device("cpu")
    )
    assert [pictures.tolist() for pictures, _ in ready] == [[[0, 0, 9], [60, 0, 9]], [[90, 255, 9]]]


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
    arguments = ["eval", "--dataset", "folder", "--data-dir", str(pictures), "--model", MODEL, "--method", "zero-shot"]
    plain = run([*arguments, "-o", tmp_path / "a.json"])
    assert (plain.code, plain.err) == (0, "")
    command = [sys.executable, "-m", "clip_tca", *arguments, "-o", str(tmp_path / "é.json")]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **ascii_only})
    assert (done.returncode, done.stderr) == (0, b"")
    utf8, ascii_record = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "é.json"))
    assert utf8["data"]["classes"] == ascii_record["data"]["classes"] == ["Hündin", "kätzchen 猫"]
    assert utf8["rows"] == ascii_record["rows"]


def test_names_that_are_not_unicode(tmp_path):
    pictures = make_pictures(tmp_path / "pictures", (b"H\xfcndin", b"Katze"))
    for suffix in ("json", "csv", "md", "tex"):
        arguments = ["eval", "--dataset", "folder", "--data-dir", pictures, "--model", MODEL, "--method", "zero-shot"]
        done = run([*arguments, "--workers", "0", "--examples", "1", "-o", tmp_path / f"a.{suffix}"])
        assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["data"]["classes"] == ["H\\xfcndin", "Katze"]
    assert run(["report", tmp_path / "a.json", "-o", tmp_path / "a.html"]).code == 0


def test_spaces_other_letters_and_links(inputs, tmp_path, monkeypatch):
    odd = tmp_path / "ein Ort, 猫 [1] ☃"
    odd.mkdir()
    shutil.copytree(inputs, odd / "Eingabe ä")
    (odd / "link").symlink_to("Eingabe ä")
    (tmp_path / "store").mkdir()
    (odd / "store").symlink_to(tmp_path / "store")
    monkeypatch.setenv("CLIP_TCA_CACHE", str(odd / "store"))
    (odd / "out").mkdir()
    for name in NAMES:
        done = run(writers(odd / "link", odd / "out")[name][0])
        assert (done.code, done.err) == (0, ""), name
    assert not [name for name in listing(odd / "out") if "part" in name.split(".")]
    assert run(encode(odd / "link" / "pictures", odd / "out" / "b.safetensors")).code == 0
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"store.sqlite", "locks"}


def test_an_output_that_is_a_link_stays_one(inputs, tmp_path):
    (tmp_path / "real" / "folder").mkdir(parents=True)
    for name in ("a.npy", "folder"):
        (tmp_path / name).symlink_to(tmp_path / "real" / name)
    assert run(adapt(inputs, "z.npy", tmp_path / "a.npy")).code == 0
    assert run(adapt(inputs, "z.npz", tmp_path / "folder")).code == 0
    assert (tmp_path / "a.npy").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["a.npy", "folder"]
    assert {"z.npz", RECORD} <= {path.name for path in (tmp_path / "real" / "folder").iterdir()}
