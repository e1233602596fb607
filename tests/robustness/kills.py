"""Runs that are killed and started again: the result is that of an undisturbed run, and no file is left over.

    python -m tests.robustness.kills [--kills 200] [--seed 0] [--no-steps] [--only TEXT]

Every case has a store and an output folder of its own. A command is killed (``kill -9``) at a random moment, half of
the times together with its worker processes; then the same command runs to its end. After the kill no half-written file
may have a final name. After the second run every file must equal that of an undisturbed run, and there must be no
others. JSON is compared without ``cost``, ``.safetensors`` by header and values because its library writes the header
in any order, everything else byte by byte. Then every command is killed once before each of its file operations
(``--no-steps`` skips that), which a random moment rarely hits.

Runs over several shards go on where they were killed. In a store shards appear one by one; there the files of a killed
run must be some of those of an undisturbed one. The store is an S3 server (moto) on 127.0.0.1. Commands run in forks of
this process, which has the libraries imported. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing.util
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

from clip_tca import ConditionalTCA, ZeroShotClassifier, cli
from tests.object_stores import CREDENTIALS
from tests.tiny_clip import MODEL

PATIENCE = 60
"""Seconds after which a run counts as hanging."""

ROWS, DIM, CLASSES, SHARDS = 6000, 64, 5, 3
PICTURES = ["--dataset", "folder", "--data-dir", "../inputs/pictures", "--model", MODEL, "--workers", "1"]
ADAPT = ["--text", "../inputs/text.npy", "-o"]
EVERYTHING = ["--write", "embeddings,labels,scores"]
LOADED = ["--load-state", "../inputs/state.safetensors", "-o", "out/z"]
BUCKET = "kills"
MARKS = re.compile(r"\.part|\.clip-tca/|z\.\w+\.json|store\.sqlite")
"""In the names of what a run leaves for itself, and of records that are marks until the end."""


@dataclass
class Command:
    """A command, and how many of a hundred random kills are its own."""

    name: str
    arguments: list[str]
    share: int = 0
    before: list[str] | None = None  # a command whose output exists already


COMMANDS = [
    Command("embed", ["embed", *PICTURES, "-o", "out/z.safetensors"], 18),
    Command("eval", ["eval", *PICTURES, "--examples", "1", "-o", "out/record.json"], 18),
    Command("report", ["report", "../inputs/record.json", "-o", "out/page.html"], 13),
    Command("adapt .npy shards", ["adapt", "../inputs/npy", *ADAPT, "out/z", *EVERYTHING], 8),
    Command(
        "adapt .npy shards, again",
        ["adapt", "../inputs/npy", *ADAPT, "out/z", "--overwrite", "--save-state", "out/state.safetensors"],
        8,
        before=["adapt", "../inputs/npy", *ADAPT, "out/z", "--method", "linear-tca"],
    ),
    Command("adapt .npz", ["adapt", "../inputs/z.npz", *ADAPT, "out/z.npz", *EVERYTHING], 6),
    Command("adapt .safetensors", ["adapt", "../inputs/z.safetensors", *ADAPT, "out/z.safetensors", *EVERYTHING], 6),
    Command("adapt .parquet shards", ["adapt", "../inputs/parquet", *ADAPT, "out/z", *EVERYTHING], 6),
    Command("adapt .arrow, online", ["adapt", "../inputs/z.arrow", *ADAPT, "out/z.arrow", "--online"], 6),
    Command("adapt clip-retrieval", ["adapt", "../inputs/shelf", *ADAPT, "out/z", *EVERYTHING], 5),
    Command("adapt, a loaded state", ["adapt", "../inputs/npy", *LOADED, *EVERYTHING], 6),
    Command("adapt to S3", ["adapt", "../inputs/npy", *ADAPT, f"s3://{BUCKET}/z", *EVERYTHING], 6),
]


def make_inputs(place: Path) -> None:
    """Small inputs: pictures of two domains and two classes, embeddings in every format, class texts."""
    rng = np.random.default_rng(0)
    for number in range(40):
        folder = place / "pictures" / ("day", "night")[number % 2] / ("cat", "dog")[number // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    text = rng.normal(size=(CLASSES, DIM)).astype(np.float32)
    z = text[rng.integers(0, CLASSES, ROWS)] + rng.normal(size=(ROWS, DIM)).astype(np.float32)
    np.save(place / "text.npy", text)
    np.savez(place / "z.npz", embeddings=z)
    save_file({"embeddings": torch.from_numpy(z)}, place / "z.safetensors")
    g = ZeroShotClassifier(torch.from_numpy(text))
    ConditionalTCA(g).fit(torch.from_numpy(z)).save(place / "state.safetensors")
    for kind in ("npy", "parquet", "shelf/img_emb", "shelf/metadata"):
        (place / kind).mkdir(parents=True)
    for number, part in enumerate(np.split(z, SHARDS)):
        np.save(place / "shelf" / "img_emb" / f"img_emb_{number}.npy", part)
        pq.write_table(table(part).select(["number"]), place / "shelf" / "metadata" / f"metadata_{number}.parquet")
        np.save(place / "npy" / f"shard_{number}.npy", part)
        pq.write_table(table(part), place / "parquet" / f"shard_{number}.parquet")
    with pa.ipc.new_file(str(place / "z.arrow"), table(z).schema) as file:
        file.write_table(table(z), max_chunksize=1000)


def table(z: np.ndarray) -> pa.Table:
    """Embeddings beside another column."""
    return pa.table({"number": range(len(z)), "embedding": pa.FixedSizeListArray.from_arrays(z.ravel(), z.shape[1])})


# -- processes ---------------------------------------------------------------------------------------------------------


def start(command: Command, case: Path, hook: Callable[[], None] | None = None) -> int:
    """Start a command in a fork with a session of its own; its process id."""
    for name in ("tmp", "out"):
        (case / name).mkdir(parents=True, exist_ok=True)
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(case)
        os.environ.update(CLIP_TCA_CACHE=str(case / "store"), TMPDIR=str(case / "tmp"))
        tempfile.tempdir = None
        log = os.open(case.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if hook:
            hook()
        code = cli.main(command.arguments)
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def finish(pid: int) -> int | None:
    """Wait for a process; its exit code, negative for a signal, None if it hung."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    kill(family(pid))
    os.waitpid(pid, 0)
    return None


def succeed(command: Command, case: Path, hook: Callable[[], None] | None = None) -> None:
    """Run a command that must not fail."""
    if finish(start(command, case, hook)) != 0:
        raise SystemExit(f"{command.name}: {(case.parent / 'log').read_text(encoding='utf-8')}")


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return [pid, *(member for child in children for member in family(int(child)))]
    return [pid]


def kill(members: list[int]) -> None:
    """Kill processes; those that have ended meanwhile are no error."""
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def kill_before(step: int, log: Path) -> Callable[[], None]:
    """For a fork: count the operations that change files, note the number, and die before number ``step``."""
    kinds = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "tempfile.mkdtemp", "shutil.rmtree"}
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if os.getpid() != me or not (writes or event in kinds) or str(arguments[0]).startswith("/dev/"):
            return
        if seen == step:
            os.kill(me, signal.SIGKILL)
        seen += 1
        os.pwrite(count, b"%6d" % seen, 0)

    me = 0
    count = -1

    def install() -> None:
        nonlocal me, count
        me, count = os.getpid(), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.addaudithook(hook)

    return install


# -- checking ----------------------------------------------------------------------------------------------------------


def digest(path: Path, data: bytes | None = None) -> str:
    """A hash of what must not differ between two runs; of the file, or of ``data`` that has its name."""
    if data is None and path.is_dir():
        return "folder"
    if path.name.endswith("-journal"):  # of SQLite, which removes it when it opens the file to which it belongs
        return "journal"
    data = path.read_bytes() if data is None else data
    if path.suffix == ".sqlite":  # embeddings alone, in any order: the rest are records of times
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as db:
            data = repr(sorted(row for row in db.execute("SELECT * FROM entries") if row[1][:1] not in b"[{")).encode()
    with contextlib.suppress(ValueError, OSError):
        if path.suffix == ".json":
            record = json.loads(data)
            record.pop("cost", None)
            record.pop("files", None)  # stamps with times
            data = json.dumps(record, sort_keys=True).encode()
        if path.suffix == ".safetensors":
            size = int.from_bytes(data[:8], "little")
            data = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True).encode() + data[8 + size :]
    return hashlib.sha256(data).hexdigest()


def snapshot(case: Path) -> dict[str, str]:
    """Digests of all files and folders of a case, hidden ones too, except those in its TMPDIR; and of all objects."""
    paths = {str(path.relative_to(case)): path for path in case.rglob("*")}
    found = {name: digest(path) for name, path in paths.items() if name != "tmp" and not name.startswith("tmp/")}
    return {**found, **{f"s3/{key}": digest(Path(key), data) for key, data in objects().items()}}


def objects() -> dict[str, bytes]:
    """What is in the bucket; nothing without a server."""
    if "AWS_ENDPOINT_URL" not in os.environ:
        return {}
    return {entry.key: entry.get()["Body"].read() for entry in bucket().objects.all()}


def bucket() -> Any:
    """Through a library of its own: that of the program would start threads before the forks."""
    import boto3

    return boto3.resource("s3").Bucket(BUCKET)


@contextlib.contextmanager
def s3_server() -> Any:
    """An S3 server of our own, for all forks that follow."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    importlib.import_module("s3fs")
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        bucket().create()  # boto3 tries again until the server is there
        yield
    finally:
        server.kill()


def prepare(command: Command, root: Path) -> tuple[Path, dict[str, str]]:
    """A case before its run, with an earlier output if the command needs one, and its files."""
    case, ready = root / "case", root / "ready"
    if f"s3://{BUCKET}/z" in command.arguments:
        bucket().objects.all().delete()
    if command.before is None:
        case.mkdir()
        return case, {}
    if not ready.exists():
        succeed(Command("before", command.before), ready)
    shutil.copytree(ready, case)
    return case, snapshot(case)


def undisturbed(command: Command, root: Path) -> tuple[dict[str, str], float, int]:
    """What the command gives, the seconds it takes (of two runs the shorter time), and its file operations."""
    times, results = [], []
    for _ in range(2):
        case, _ = prepare(command, root)
        began = time.monotonic()
        succeed(command, case, kill_before(-1, root / "count"))
        times.append(time.monotonic() - began)
        results.append(snapshot(case))
        shutil.rmtree(case)
    if results[0] != results[1]:
        raise SystemExit(
            f"{command.name}: two undisturbed runs differ: {set(results[0].items()) ^ set(results[1].items())}"
        )
    return results[0], min(times), int((root / "count").read_text(encoding="ascii"))


def measure(command: Command, root: Path, kills: int, steps: bool, rng: random.Random) -> Counter[str]:
    """Kill and run again, at random moments and before every file operation; what was counted."""
    expected, seconds, operations = undisturbed(command, root)
    found: Counter[str] = Counter()
    for number in range(kills + operations * steps):
        case, before = prepare(command, root)
        if number < kills:
            moment, alone = rng.uniform(0, seconds), rng.random() < 0.5
            pid, what = start(command, case), f"at {moment:.3f} of {seconds:.3f} s"
            time.sleep(moment)
            kill([pid] if alone else family(pid))
        else:
            pid = start(command, case, kill_before(number - kills, root / "count"))
            what = f"before file operation {number - kills}"
        struck = finish(pid) != 0
        final = {name: mark for name, mark in snapshot(case).items() if not MARKS.search(f"{name}/")}
        half = {name for name, mark in final.items() if mark not in (expected.get(name), before.get(name), "folder")}
        code, files = finish(start(command, case)), snapshot(case)
        different = {name for name in expected if files.get(name) != expected[name]}
        strays, same = set(files) - set(expected), code == 0 and not different
        found.update(kills=1, struck=struck, half=bool(half), identical=same, strays=len(strays))
        if half or strays or not same:
            log = (root / "log").read_text(encoding="utf-8", errors="replace").strip()[-200:]
            wrong = f"half {half}, different {different}, strays {strays}, exit {code}: {log}"
            print(f"{command.name}, {what}: {wrong}", file=sys.stderr, flush=True)
        shutil.rmtree(case)
    shutil.rmtree(root / "ready", ignore_errors=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each command; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="at random moments, over all commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-steps", action="store_true", help="skip the kills before every file operation")
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands whose names contain TEXT")
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)  # noqa: S311
    torch.set_num_threads(1)
    chosen = [command for command in COMMANDS if options.only in command.name]
    total: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (root / "inputs").mkdir()
        make_inputs(root / "inputs")
        if any("S3" in command.name for command in chosen):
            stack.enter_context(s3_server())
        if any(command.arguments[0] in ("embed", "eval", "report") for command in chosen):
            importlib.import_module("open_clip")  # once, for all forks
            record = ["eval", *PICTURES, "--examples", "1", "-o", "../inputs/record.json"]
            succeed(Command("record", record), root / "first")
        for command in chosen:
            kills = -(-options.kills * command.share // 100)
            found = measure(command, root, kills, not options.no_steps, rng)
            show(command.name, found)
            total += found
    show("total", total)
    return int(total["half"] + total["strays"] > 0 or total["identical"] < total["kills"])


def show(name: str, found: Counter[str]) -> None:
    """A line of the table."""
    counts = [f"{key} {found[key]:4}" for key in ("kills", "struck", "half", "identical", "strays")]
    print(f"{name:36} {'  '.join(counts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
