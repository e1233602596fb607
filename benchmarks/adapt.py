"""``clip-tca adapt`` at size: against the bare matrix products, and memory.

    python benchmarks/adapt.py [--rows 1000000] [--dim 512] [--classes 100] [--folder DIR]

Makes float16 embeddings in shards, then measures, by the clock and with one thread for the products,
- the second pass of the command (embeddings read; adapted embeddings and labels written) against Z W and Z W text on
  ready tensors, in turns; beside it *copying*, the same files read and written with nothing computed: where that takes
  longer than the products, the disk is the limit;
- peak resident memory of the command above that of a process that only imports torch.
"""

from __future__ import annotations

import argparse
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
from clip_tca.adapters.base import ROWS_AT_ONCE
from clip_tca.bulk.one_shard import Output, adapter_key, apply
from clip_tca.data.shards import ROWS, open_embeddings

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
    """What a command took: seconds by the clock, processor seconds of all its threads, and peak bytes."""

    seconds: float
    processor: float
    peak: int


def run(words: list[str]) -> Run:
    """Run Python with ``words``, on one thread for products."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    code += "print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
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
    processor, peak = done.stdout.split()[-2:]
    return Run(took, float(processor), int(peak) * unit)


def adapted(source: Path, out: Path) -> Run:
    """``clip-tca adapt`` of a folder that :func:`make` made."""
    text = str(source.parent / "text.npy")
    words = ["-m", "clip_tca", "adapt", str(source), "--text", text, "--write", ",".join(KINDS), "-o", str(out), "-q"]
    return run(words)


def copying(source: Path, out: Path) -> float:
    """Seconds on the clock to read a folder of embeddings and to write as many bytes, with nothing computed."""
    embeddings = open_embeddings(str(source))
    for kind in KINDS:
        (out / kind).mkdir(parents=True)
    began = time.perf_counter()
    for shard in embeddings.shards:
        paths = {kind: out / name for kind, name in shard.outputs(KINDS).items()}
        writer = shard.writer(paths, Output(shard, out, KINDS).dtypes)
        for part in shard.blocks():
            writer.write({"embeddings": part.z, "labels": np.zeros(len(part), np.int64)})
        writer.close()
    return time.perf_counter() - began


def second_pass(source: Path, out: Path, turns: int) -> Row:
    """The second pass against the products that it needs."""
    torch.set_num_threads(1)
    embeddings = open_embeddings(str(source))
    rows, dim = embeddings.rows, embeddings.dim
    tca = LinearTCA(ZeroShotClassifier(np.load(source.parent / "text.npy")))
    tca.fit(block.z for block in embeddings.shards[0].blocks())
    w, weight = tca.W_.float(), tca.folded().weight.T.float()
    ready = torch.nn.functional.normalize(torch.randn(ROWS_AT_ONCE, dim), dim=1)
    block = torch.from_numpy(next(embeddings.shards[0].blocks(ROWS)).z)

    def bare() -> None:
        for _ in range(rows // ROWS_AT_ONCE):
            _ = ready @ w
            _ = ready @ weight

    def compute() -> None:
        for _ in range(rows // ROWS):
            apply(tca, block, KINDS)

    def whole() -> None:
        for shard in embeddings.shards:
            Output(shard, out, KINDS).adapt(tca, adapter_key(tca))

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
        ">= 0.7",
        {
            "bare": f"{rows / least:,.0f} rows/s",
            "adapt": f"{rows / took:,.0f}",
            "without files": f"{least / computed:.2f}",
            "by processor time": f"{products / used:.2f}",
            "copying alone": f"{rows / copied:,.0f} rows/s" + (", which is the limit" if copied > least else ""),
        },
    )


def measure(folder: Path, rows: int, dim: int = 512, classes: int = 100, turns: int = 2) -> list[Row]:
    """All rows of the table, in an empty folder."""
    source = folder / "n"
    make(source, rows, dim, classes)
    idle = run(["-c", "import torch"])
    peak = 0
    for _ in range(turns):
        peak = max(peak, adapted(source, folder / "out").peak)
        shutil.rmtree(folder / "out")
    return [
        second_pass(source, folder / "out", turns),
        Row(
            f"clip-tca adapt, {rows:,} x {dim}: MB above import torch",
            (peak - idle.peak) / 1e6,
            "<= 300",
            {"peak": f"{peak / 1e6:.0f} MB", "import torch": f"{idle.peak / 1e6:.0f} MB"},
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
