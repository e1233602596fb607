"""``clip-tca adapt`` at size: memory, speed against the bare matrix products, and one process against several.

    python benchmarks/adapt.py [--rows 1000000] [--dim 512] [--classes 100] [--folder DIR]

Makes a set of float16 embeddings in shards, then prints
- the peak resident memory of ``clip-tca adapt`` above that of a process that only imports torch, for n and 2n rows;
- the rate of transform + predict, alone and with reading and writing files, against Z W and Z W text on ready tensors
  in the same run; and that of predicting after adaptation against predicting before it;
- whether one and two processes predict the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be run by its path

from benchmarks.measure import wall
from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.adapters.base import BLOCK
from clip_tca.bulk.application import Application
from clip_tca.bulk.job import Job
from clip_tca.bulk.layout import lay_out
from clip_tca.bulk.shards import open_embeddings
from clip_tca.bulk.staging import RECORD
from clip_tca.classifier import LinearClassifier
from clip_tca.datasets.formats.base import ROWS

SHARD = 131_072


def make(folder: Path, rows: int, dim: int, classes: int) -> None:
    """Shards of embeddings around class texts, shifted by a linear map, and the texts."""
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


def peak(command: list[str]) -> tuple[int, float]:
    """Highest resident memory of a command in bytes, and its seconds (each is measured by a process of its own)."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True)  # noqa: S603
    unit = 1 if sys.platform == "darwin" else 1024
    return int(done.stdout.split()[-1]) * unit, time.perf_counter() - began


def rates(source: Path, out: Path, dim: int) -> None:
    """The second pass against the products that it needs, in turns."""
    embeddings = open_embeddings(str(source))
    rows = embeddings.rows or 0
    text = np.load(source.parent / "text.npy")
    classifier = ZeroShotClassifier(text)
    tca = LinearTCA(classifier).fit(
        block.z for shard in embeddings.shards[:1] for block in shard.blocks(0, shard.rows or 0)
    )
    w, weight = tca.W_.float(), tca.folded().weight.T.float()
    before = LinearClassifier(classifier.weight, normalize=True)
    ready = torch.nn.functional.normalize(torch.randn(BLOCK, dim), dim=1)

    def bare() -> None:
        for _ in range(rows // BLOCK):
            _ = ready @ w
            _ = ready @ weight

    def whole() -> None:
        layout = lay_out(embeddings, out, ("embeddings", "labels"), np.dtype(np.float16))
        out.mkdir()
        Job(layout, tca, torch.device("cpu"), fitted=True).adapt_units(
            embeddings.units(), lambda unit: layout.sink(out, embeddings.shards[unit.shard])
        )

    apply = Application(tca, ("embeddings", "labels"), torch.device("cpu"))
    block = next(embeddings.shards[0].blocks(0, ROWS))

    def compute() -> None:
        for _ in range(rows // ROWS):
            apply(block)

    def predict(head: LinearClassifier) -> None:
        for shard in embeddings.shards:
            for block in shard.blocks(0, shard.rows or 0):
                head.logits(torch.from_numpy(block.z)).argmax(dim=1)

    times: dict[str, list[float]] = {"bare": [], "compute": [], "whole": [], "before": [], "after": []}
    for _ in range(3):
        times["bare"].append(wall(bare))
        times["compute"].append(wall(compute))
        times["whole"].append(wall(whole))
        times["before"].append(wall(lambda: predict(before)))
        times["after"].append(wall(lambda: predict(tca.folded())))
        shutil.rmtree(out)
    best = {name: min(seconds) for name, seconds in times.items()}
    print(f"bare products: {rows / best['bare']:,.0f} rows/s")
    for name, what in {
        "compute": "transform + predict (goal: 0.60)",
        "whole": "the same with reading and writing files",
    }.items():
        print(f"{what}: {rows / best[name]:,.0f} rows/s, ratio {best['bare'] / best[name]:.2f}")
    print(f"predicting after adaptation costs {best['after'] / best['before']:.2f} of predicting before it")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--folder", help="where to make the set (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make(folder / "n", options.rows, options.dim, options.classes)
        (folder / "2n").mkdir()
        for path in sorted((folder / "n").iterdir()):
            for copy in ("a", "b"):
                (folder / "2n" / f"{copy}{path.name}").hardlink_to(path)
        idle, _ = peak([sys.executable, "-c", "import torch"])
        print(f"import torch alone: {idle / 1e6:.0f} MB")
        adapt = ["adapt", "--text", str(folder / "text.npy"), "--write", "embeddings,labels"]
        for rows in ("n", "2n"):
            command = [sys.executable, "-m", "clip_tca", *adapt, str(folder / rows), "-o", str(folder / f"out-{rows}")]
            used, took = peak(command)
            count = options.rows * (2 if rows == "2n" else 1)
            print(
                f"adapt, {count:,} x {options.dim}: {(used - idle) / 1e6:.0f} MB above that (goal: 300), {took:.0f} s"
            )
        ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "clip_tca"]
        took = wall(lambda: subprocess.run(  # noqa: S603
            [*ranks, *adapt, str(folder / "n"), "-o", str(folder / "out-2")], check=True, capture_output=True
        ))  # fmt: skip
        names = sorted(path.name for path in (folder / "n").iterdir())
        for kind in ("labels", "embeddings"):
            same = all(
                np.array_equal(np.load(folder / "out-n" / kind / name), np.load(folder / "out-2" / kind / name))
                for name in names
            )
            print(f"two processes ({took:.0f} s) and one give the same {kind}: {same}")
        cost = json.loads((folder / "out-n" / RECORD).read_text())["cost"]
        print(f"one process: first pass {cost['fitting_seconds']:.1f} s, second {cost['adapting_seconds']:.1f} s")
        rates(folder / "n", folder / "out-rates", options.dim)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
