"""Runs that are killed and started again: the result is that of an undisturbed run, and no file is left over.

    python -m tests.robustness.kills [--kills 200] [--seed 0] [--no-steps] [--only TEXT]

Every case has a store and an output folder of its own. A command is killed (``kill -9``) at a random moment, half of
the times together with its worker processes; then the same command runs to its end. After the kill no half-written file
may have a final name. After the second run every file must equal that of an undisturbed run, and there must be no
others. JSON is compared without ``cost``, ``.safetensors`` by header and values because its library writes the header
in any order, everything else byte by byte. Then every command is killed once before each of its file operations
(``--no-steps`` skips that), which a random moment rarely hits.

Runs over several shards go on where they were killed. In a store shards appear one by one; there the files of a killed
run must be some of those of an undisturbed one. The store is an S3 server (moto) on 127.0.0.1.

Commands run in forks of this process, which has the libraries imported; some in fresh processes. What multiprocessing
leaves in TMPDIR when it is killed (``pymp-…``) is a column of its own. The table goes to standard output; the exit code
is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

from clip_tca import ConditionalTCA, ZeroShotClassifier
from tests.datasets.test_webdataset import npy, tar
from tests.object_stores import CREDENTIALS
from tests.robustness.killing import Command, family, finish, kill, kill_before, port, start
from tests.tiny_clip import MODEL

ROWS, DIM, CLASSES, SHARDS = 6000, 64, 5, 3
PICTURES = ["--dataset", "folder", "--data-dir", "../inputs/pictures", "--model", MODEL, "--workers", "1"]
ADAPT = ["--text", "../inputs/text.npy", "-o"]
EVERYTHING = ["--write", "embeddings,labels,scores"]
LOADED = ["--load-state", "../inputs/state.safetensors", "-o", "out/z"]
BUCKET = "kills"
MARKS = re.compile(r"\.part|_clip-tca[^/]*/")
"""In the names of what a run leaves for itself until its end."""


COMMANDS = [
    Command("embed", ["embed", *PICTURES, "-o", "out/z.safetensors"], 18),
    Command("eval", ["eval", *PICTURES, "--examples", "1", "-o", "out/record.json"], 18),
    Command("report", ["report", "../inputs/record.json", "-o", "out/page.html"], 13),
    Command("adapt .npy shards", ["adapt", "../inputs/npy", *ADAPT, "out/z", *EVERYTHING], 8),
    Command(
        "adapt .npy shards, again",
        ["adapt", "../inputs/npy", *ADAPT, "out/z", "--overwrite", "--save-state", "out/state.safetensors"],
        8,
        before=["adapt", "../inputs/npy", *ADAPT, "out/z", "--method", "conditional-tca"],
    ),
    Command("adapt .npz", ["adapt", "../inputs/z.npz", *ADAPT, "out/z.npz", *EVERYTHING], 6),
    Command("adapt .safetensors", ["adapt", "../inputs/z.safetensors", *ADAPT, "out/z.safetensors", *EVERYTHING], 6),
    Command("adapt .parquet shards", ["adapt", "../inputs/parquet", *ADAPT, "out/z", *EVERYTHING], 6),
    Command("adapt .arrow, online", ["adapt", "../inputs/z.arrow", *ADAPT, "out/z.arrow", "--online"], 6),
    Command("adapt clip-retrieval", ["adapt", "../inputs/shelf", *ADAPT, "out/z", *EVERYTHING], 5),
    Command("adapt webdataset", ["adapt", "../inputs/tar", *ADAPT, "out/z", *EVERYTHING], 5),
    Command("adapt, a loaded state", ["adapt", "../inputs/npy", *LOADED, *EVERYTHING], 6),
    Command("adapt to S3", ["adapt", "../inputs/npy", *ADAPT, f"s3://{BUCKET}/z", *EVERYTHING], 6, store=True),
    Command("embed, fresh process", ["embed", *PICTURES, "-o", "out/z.safetensors"], 2, "fresh"),
    Command("eval, fresh process", ["eval", *PICTURES, "-o", "out/record.csv"], 2, "fresh"),
    Command("report, fresh process", ["report", "../inputs/record.json", "-o", "out/page.html"], 2, "fresh"),
    Command("adapt, fresh process", ["adapt", "../inputs/npy", *ADAPT, "out/z", *EVERYTHING], 2, "fresh"),
]


@dataclass
class Row:
    """The result of the kills of one command."""

    kills: int = 0
    struck: int = 0
    half: int = 0
    identical: int = 0
    strays: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)

    @property
    def wrong(self) -> bool:
        """Whether anything differed from an undisturbed run."""
        return bool(self.half or self.strays or self.identical < self.kills)


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
    for kind in ("npy", "parquet", "tar", "shelf/img_emb", "shelf/metadata"):
        (place / kind).mkdir(parents=True)
    for number, part in enumerate(np.split(z, SHARDS)):
        tar(place / "tar" / f"{number}.tar", {f"{i}.npy": npy(row) for i, row in enumerate(part[:300])})
        np.save(place / "shelf" / "img_emb" / f"img_emb_{number}.npy", part)
        pq.write_table(table(part).select(["number"]), place / "shelf" / "metadata" / f"metadata_{number}.parquet")
        np.save(place / "npy" / f"shard_{number}.npy", part)
        pq.write_table(table(part), place / "parquet" / f"shard_{number}.parquet")
    with pa.ipc.new_file(str(place / "z.arrow"), table(z).schema) as file:
        file.write_table(table(z), max_chunksize=1000)


def table(z: np.ndarray) -> pa.Table:
    """Embeddings beside another column."""
    return pa.table({"number": range(len(z)), "embedding": pa.FixedSizeListArray.from_arrays(z.ravel(), z.shape[1])})


# -- checking ----------------------------------------------------------------------------------------------------------


def digest(path: Path, data: bytes | None = None) -> str:
    """A hash of what must not differ between two runs; of the file, or of ``data`` that has its name."""
    if data is None and path.is_dir():
        return "folder"
    data = path.read_bytes() if data is None else data
    with contextlib.suppress(ValueError, OSError):
        if path.suffix == ".json":
            record = json.loads(data)
            record.pop("cost", None)
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
    return {entry.key: entry.get()["Body"].read() for entry in bucket().objects.all()} if _servers else {}


def bucket() -> Any:
    """Through a library of its own: that of the program would start threads before the forks."""
    import boto3

    return boto3.resource("s3").Bucket(BUCKET)


_servers: list[subprocess.Popen[bytes]] = []


def serve() -> None:
    """Start an S3 server of our own, for all processes that follow."""
    address = port()
    os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{address}")
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(address)]
    _servers.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    importlib.import_module("s3fs")
    for _ in range(100):
        with contextlib.suppress(Exception):
            bucket().create()
            return
        time.sleep(0.2)
    raise SystemExit("the S3 server did not start")


def half_written(case: Path, expected: dict[str, str], before: dict[str, str]) -> list[str]:
    """Files under final names that are neither the old nor the new ones."""
    final = {name: mark for name, mark in snapshot(case).items() if not MARKS.search(f"{name}/")}
    return [name for name, mark in final.items() if mark not in (expected.get(name), before.get(name), "folder")]


def run_again(
    command: Command, case: Path, expected: dict[str, str], before: dict[str, str], row: Row, what: str
) -> None:
    """After the kill: check the files, run once more, check again."""
    row.kills += 1
    half = half_written(case, expected, before)
    row.half += bool(half)
    code = finish(start(command, case))
    log = (case.parent / "log").read_text(encoding="utf-8", errors="replace").strip()
    files = snapshot(case)
    strays = sorted(set(files) - set(expected))
    same = {name: files.get(name) for name in expected} == expected and (code == 0 or "exists; choose" in log)
    row.identical += same
    row.strays.update(strays)
    row.temporary.update(re.split("[-_]", path.name)[0] for path in (case / "tmp").iterdir())
    if half or strays or not same:
        different = [name for name in expected if files.get(name) != expected[name]]
        result = f"half {half}, different {different}, strays {strays[:4]}, exit {code}: {log[-200:]}"
        print(f"{command.name}, {what}: {result}", file=sys.stderr, flush=True)
    shutil.rmtree(case)


def prepare(command: Command, root: Path, ready: dict[str, Path]) -> tuple[Path, dict[str, str]]:
    """A case before its run, with an earlier output if the command needs one."""
    case = root / "case"
    if command.store:
        bucket().objects.all().delete()
    if command.before is None:
        case.mkdir()
        return case, {}
    if command.name not in ready:
        ready[command.name] = root / "ready"
        if finish(start(Command("before", command.before, 0), ready[command.name])):
            raise SystemExit((root / "log").read_text(encoding="utf-8"))
    shutil.copytree(ready[command.name], case)
    return case, snapshot(case)


def undisturbed(command: Command, root: Path, ready: dict[str, Path]) -> tuple[dict[str, str], float, int]:
    """What the command gives, the seconds it takes (of two runs the shorter time), and its file operations."""
    times, results = [], []
    for _ in range(2):
        case, _ = prepare(command, root, ready)
        began = time.monotonic()
        code = finish(start(command, case, kill_before(-1, root / "count")))
        times.append(time.monotonic() - began)
        if code:
            raise SystemExit(f"{command.name}: {(root / 'log').read_text(encoding='utf-8')}")
        results.append(snapshot(case))
        shutil.rmtree(case)
    if results[0] != results[1]:
        different = [name for name in results[0] if results[0][name] != results[1].get(name)]
        raise SystemExit(f"{command.name}: two undisturbed runs differ in {different}")
    steps = int((root / "count").read_text(encoding="ascii")) if command.how == "fork" else 0
    return results[0], min(times), steps


def measure(command: Command, root: Path, kills: int, steps: bool, rng: random.Random) -> list[tuple[str, Row]]:
    """Kill and run again, at random moments and before every file operation."""
    ready: dict[str, Path] = {}
    expected, seconds, operations = undisturbed(command, root, ready)
    at_random, at_steps = Row(), Row()
    for _ in range(kills):
        case, before = prepare(command, root, ready)
        moment, alone = rng.uniform(0, seconds), rng.random() < 0.5
        pid = start(command, case)
        time.sleep(moment)
        kill([pid] if alone else family(pid))
        at_random.struck += finish(pid) != 0
        run_again(command, case, expected, before, at_random, f"at {moment:.3f} of {seconds:.3f} s")
    for step in range(operations if steps else 0):
        case, before = prepare(command, root, ready)
        at_steps.struck += finish(start(command, case, kill_before(step, root / "count"))) != 0
        run_again(command, case, expected, before, at_steps, f"before file operation {step}")
    shutil.rmtree(root / "ready", ignore_errors=True)
    return [(f"{command.name} ({seconds:.1f} s)", at_random), ("  before each file operation", at_steps)]


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="at random moments, over all commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-steps", action="store_true", help="skip the kills before every file operation")
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands whose names contain TEXT")
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)  # noqa: S311
    torch.set_num_threads(1)
    rows: list[tuple[str, Row]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "inputs").mkdir()
        make_inputs(root / "inputs")
        chosen = [command for command in COMMANDS if options.only in command.name]
        if any(command.store for command in chosen):
            serve()
        if any("../inputs/record.json" in command.arguments for command in chosen):
            record = Command("record", ["eval", *PICTURES, "--examples", "1", "-o", "../inputs/record.json"], 0)
            if finish(start(record, root / "first")):
                raise SystemExit((root / "log").read_text(encoding="utf-8"))
            shutil.rmtree(root / "first")
        if any(command.arguments[0] in ("embed", "eval") for command in chosen):  # once, for all forks
            importlib.import_module("open_clip")
        try:
            for command in chosen:
                rows += measure(command, root, -(-options.kills * command.share // 100), not options.no_steps, rng)
                show(rows[-2:])
        finally:
            for server in _servers:
                server.kill()
    total = Row()
    for _, row in rows:
        total.kills += row.kills
        total.struck += row.struck
        total.half += row.half
        total.identical += row.identical
        total.strays |= row.strays
        total.temporary |= row.temporary
    show([("total", total)])
    return int(any(row.wrong for _, row in rows))


def show(rows: list[tuple[str, Row]]) -> None:
    """Lines of the table."""
    for name, row in ((name, row) for name, row in rows if row.kills):
        left = ", ".join(sorted(row.temporary)) or "-"
        print(
            f"{name:36} kills {row.kills:4}  struck {row.struck:4}  half-written {row.half}  "
            f"identical {row.identical:4}  stray files {len(row.strays)}  in TMPDIR {left}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
