"""``clip-tca adapt`` at size: against the bare matrix products, one process against two, and memory.

    python benchmarks/adapt.py [--rows 1000000] [--dim 512] [--classes 100] [--folder DIR]

Makes float16 embeddings in shards, then measures, by the clock and with one thread for each process,
- the second pass of the command (embeddings read; adapted embeddings and labels written) against Z W and Z W text on
  ready tensors, in turns; beside it *copying*, the same files read and written with nothing computed: where that takes
  longer than the products, the disk is the limit;
- two processes against one, both passes, in turns, and whether they write the same; *at most* is what two cores allow,
  of which one process uses more than one, since it reads and writes while it computes;
- peak resident memory of the command above that of a process that only imports torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be run by its path

from benchmarks.measure import Row, seconds
from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.adapters.base import BLOCK
from clip_tca.bulk.allocator import reuse_large_blocks
from clip_tca.bulk.application import Application
from clip_tca.bulk.job import Job
from clip_tca.bulk.layout import lay_out
from clip_tca.bulk.shards import open_embeddings
from clip_tca.bulk.staging import RECORD
from clip_tca.datasets.formats.base import ROWS, Result

SHARD = 131_072
KINDS = ("embeddings", "labels")


def make(folder: Path, rows: int, dim: int = 512, classes: int = 100) -> None:
    """Shards of embeddings around class texts, shifted by a linear map, and the texts beside the folder."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    text = generator.standard_normal((classes, dim)).astype(np.float32)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    np.save(folder.parent / "text.npy", text)
    mix = np.eye(dim, dtype=np.float32) + generator.standard_normal((dim, dim)).astype(np.float32) / dim
    for number, start in enumerate(range(0, rows, SHARD)):
        count = min(SHARD, rows - start)
        z = text[generator.integers(0, classes, count)] + generator.standard_normal((count, dim), np.float32) * 0.06
        z = (z + 0.02) @ mix
        np.save(folder / f"{number:05d}.npy", (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float16))


@dataclass(frozen=True)
class Run:
    """What a command took: by the clock and of processor time, peak bytes of its largest process, its record's cost."""

    seconds: float
    used: float
    peak: int
    cost: dict[str, float]

    @property
    def passes(self) -> float:
        """Seconds of both passes, without starting and importing."""
        return self.cost["fitting_seconds"] + self.cost["adapting_seconds"]


def run(words: list[str], out: Path | None = None) -> Run:
    """Run Python with ``words``, one thread for each process; ``out`` is the folder that has the record."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, sys.executable, *words],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    took = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    cost = {} if out is None else json.loads((out / RECORD).read_text())["cost"]
    used, peak = done.stdout.split()[-2:]
    return Run(took, float(used), int(peak) * unit, cost)


def adapted(source: Path, out: Path, processes: int = 1) -> Run:
    """``clip-tca adapt`` of a folder that :func:`make` made, by one process or by several."""
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    text = str(source.parent / "text.npy")
    words = ["-m", "clip_tca", "adapt", str(source), "--text", text, "--write", ",".join(KINDS), "-o", str(out), "-q"]
    return run([*several, *words], out)


def copying(source: Path, out: Path) -> float:
    """Seconds on the clock to read a folder of embeddings and to write as many bytes, with nothing computed."""
    embeddings = open_embeddings(str(source))
    layout = lay_out(embeddings, out, KINDS, np.dtype(np.float16))
    out.mkdir()
    began = time.perf_counter()
    for shard in embeddings.shards:
        sink = layout.sink(out, shard, 0, shard.rows)
        for part in shard.blocks(0, shard.rows or 0):
            sink.write(Result({"embeddings": part.z, "labels": np.zeros(len(part), np.int64)}))
        sink.close()
    return time.perf_counter() - began


def second_pass(source: Path, out: Path, turns: int) -> Row:
    """The second pass against the products that it needs."""
    torch.set_num_threads(1)
    reuse_large_blocks()
    embeddings = open_embeddings(str(source))
    rows, dim = embeddings.rows or 0, embeddings.dim
    tca = LinearTCA(ZeroShotClassifier(np.load(source.parent / "text.npy")))
    tca.fit(block.z for block in embeddings.shards[0].blocks(0, min(SHARD, embeddings.shards[0].rows or 0)))
    w, weight = tca.W_.float(), tca.folded().weight.T.float()
    ready = torch.nn.functional.normalize(torch.randn(BLOCK, dim), dim=1)
    layout = lay_out(embeddings, out, KINDS, np.dtype(np.float16))
    apply, block = Application(tca, KINDS, torch.device("cpu")), next(embeddings.shards[0].blocks(0, ROWS))

    def bare() -> None:
        for _ in range(rows // BLOCK):
            _ = ready @ w
            _ = ready @ weight

    def compute() -> None:
        for _ in range(rows // ROWS):
            apply(block)

    def whole() -> None:
        Job(layout, tca, torch.device("cpu"), fitted=True).run(out, False, lambda _tally: "{}")

    def copy() -> None:
        copying(source, out)

    best = {work: (float("inf"), float("inf")) for work in (bare, compute, whole, copy)}
    for _ in range(turns):
        for work, (clock, spent) in best.items():
            began = time.perf_counter()
            used = seconds(work)
            best[work] = min(clock, time.perf_counter() - began), min(spent, used)
            shutil.rmtree(out, ignore_errors=True)
    (least, products), (computed, _), (took, used), (copied, _) = best.values()
    return Row(
        f"clip-tca adapt, second pass, {rows:,} x {dim}, files read and written: part of the bare products' rate",
        least / took,
        ">= 0.75",
        {
            "bare": f"{rows / least:,.0f} rows/s",
            "adapt": f"{rows / took:,.0f}",
            "without files": f"{least / computed:.2f}",
            "by processor time": f"{products / used:.2f}",
            "copying alone": f"{rows / copied:,.0f} rows/s" + (", which is the limit" if copied > least else ""),
        },
    )


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders hold the same arrays."""
    paths = [path.relative_to(one) for path in sorted(one.rglob("*.npy"))]
    return bool(paths) and all((one / path).read_bytes() == (other / path).read_bytes() for path in paths)


def measure(folder: Path, rows: int, dim: int = 512, classes: int = 100, turns: int = 2) -> list[Row]:
    """All rows of the table, in an empty folder."""
    source = folder / "n"
    make(source, rows, dim, classes)
    idle = run(["-c", "import torch"])
    runs: dict[int, list[Run]] = {1: [], 2: []}
    same = True
    for _ in range(turns):
        for count, found in runs.items():
            found.append(adapted(source, folder / f"out-{count}", count))
        same = same and same_files(folder / "out-1", folder / "out-2")
        for count in runs:
            shutil.rmtree(folder / f"out-{count}")
    one, two = (min(found, key=lambda run: run.passes) for found in runs.values())
    above = (one.peak - idle.peak) / 1e6
    cores = 2 * one.passes / max(one.passes, one.used - idle.used)
    return [
        second_pass(source, folder / "out", turns),
        Row(
            f"clip-tca adapt, {rows:,} x {dim}, both passes: two processes of one thread against one",
            one.passes / two.passes,
            ">= 1.8",
            {
                "one": f"{one.passes:.1f} s",
                "two": f"{two.passes:.1f} s",
                "at most": f"{cores:.2f}",
                "with starting": f"{one.seconds:.1f} and {two.seconds:.1f} s",
                "same files": str(same).lower(),
            },
            same,
        ),
        Row(
            f"clip-tca adapt, {rows:,} x {dim}: MB above import torch",
            above,
            "<= 300",
            {"peak": f"{one.peak / 1e6:.0f} MB", "import torch": f"{idle.peak / 1e6:.0f} MB"},
        ),
    ]


def rows(quick: bool) -> list[Row]:
    """A million rows."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), 131_072 if quick else 1_000_000, turns=1 if quick else 2)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--folder", help="where to make the set (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for row in measure(Path(folder), options.rows, options.dim, options.classes):
            print(f"{row.what}: {row.value:.2f}", *[f"{name} {value}" for name, value in row.sides.items()], sep="; ")


if __name__ == "__main__":
    main()
