"""The command: how soon it answers, what it imports, and what adapting a set of PACS' size costs. One thread."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.measure import Row, embeddings, peak_bytes, pictures
from clip_tca import ConditionalTCA, LinearTCA
from clip_tca.data.embeddings import EmbeddingSet

PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
HEAVY = ("open_clip", "torchvision", "datasets", "matplotlib", "sklearn", "pyarrow")
EVAL = ("--method", "zero-shot", "--method", "linear-tca")


def run(arguments: list[str], code: int = 0, store: Path | None = None) -> tuple[float, float]:
    """Processor time and time on the clock of Python with ``arguments``, the least of three runs.

    It must exit with ``code``. A first run is not counted, and may write compiled files, as an installation does.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"CLIP_TCA_CACHE": str(store)} if store else {}
    times = []
    for _ in range(4):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(  # noqa: S603
            [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        if done.returncode != code:
            raise RuntimeError(f"{arguments}: exit code {done.returncode}, not {code}: {done.stderr}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((spent, time.perf_counter() - began))
    return min(spent for spent, _ in times[1:]), min(took for _, took in times[1:])


def write_set(path: Path) -> None:
    """Embeddings in the shape of PACS, d = 512, as ``clip-tca embed`` writes them."""
    z, g = embeddings(sum(PACS.values()), 512)
    parts = zip(PACS, z.split(list(PACS.values())), strict=True)
    EmbeddingSet(g.text, g.scale, {name: (part, g.predict(part)) for name, part in parts}).save(path)


def imported(path: Path) -> list[str]:
    """Which of the heavy packages ``clip-tca eval`` imports for stored embeddings."""
    code = (
        "import sys, io, contextlib\n"
        "from clip_tca.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(sys.argv[1:])\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, "eval", "--dataset", str(path), *EVAL], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def labelling(folder: Path) -> tuple[float, float]:
    """``clip-tca label`` on twenty pictures, which are in the store from the second run on."""
    pictures(folder / "pictures", 20)
    words = ["-m", "clip_tca", "label", str(folder / "pictures"), "--classes", "dog, cat, horse", "--model", "demo"]
    return run([*words, "--overwrite", "-o", str(folder / "labels.csv")], store=folder / "store")


def rows(quick: bool) -> list[Row]:  # noqa: ARG001 (it is quick)
    """Start-up, an evaluation from beginning to end, imports and memory."""
    torch.set_num_threads(1)
    python, torch_alone = run(["-c", "pass"]), run(["-c", "import torch"])
    usage, library = run(["-m", "clip_tca", "--help"]), run(["-c", "import clip_tca"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pacs.safetensors"
        write_set(path)
        evaluation = run(["-m", "clip_tca", "eval", "--dataset", str(path), *EVAL])
        default = run(["-m", "clip_tca", "eval", "--dataset", str(path)])
        errors = {
            "unknown option": run(["-m", "clip_tca", "eval", "--no-such-option"], code=2),
            "bad value": run(["-m", "clip_tca", "eval", "--dataset", str(path), "--k", "none"], code=1),
            "missing file": run(
                ["-m", "clip_tca", "adapt", str(path.parent / "none.npy"), "--text", str(path), "-o", "x"], code=1
            ),
            "missing record": run(["-m", "clip_tca", "explain", str(path.parent / "none.json")], code=1),
        }
        labelled = labelling(Path(folder))
        heavy = imported(path)
    table = [
        Row(
            "clip-tca --help: seconds",
            usage[0],
            "<= 0.15",
            {"on the clock": f"{usage[1]:.2f} s", "python alone": f"{python[0]:.2f} s"},
        ),
        Row("import clip_tca: seconds", library[0], "<= 0.1", {"on the clock": f"{library[1]:.2f} s"}),
        Row(
            "clip-tca label, 20 pictures, all in the store: seconds",
            labelled[1],
            "<= 3",
            {"processor time": f"{labelled[0]:.2f} s", "import torch alone": f"{torch_alone[1]:.2f} s"},
        ),
        Row(
            "an error of clip-tca, the slowest of four: seconds",
            max(spent for spent, _ in errors.values()),
            "<= 0.15",
            {name: f"{spent:.3f} s" for name, (spent, _) in errors.items()},
        ),
        Row(
            "clip-tca eval, default rows: times the time of zero-shot and linear-tca alone",
            default[0] / evaluation[0],
            "<= 1.5",
            {"default": f"{default[0]:.2f} s", "two rows": f"{evaluation[0]:.2f} s"},
        ),
        Row(
            "clip-tca eval, zero-shot and linear-tca, stored embeddings of PACS' size, d = 512: seconds",
            evaluation[0],
            "<= 3",
            {"on the clock": f"{evaluation[1]:.2f} s", "import torch alone": f"{torch_alone[0]:.2f} s"},
        ),
        Row(
            "heavy packages that it imports besides torch",
            len(heavy),
            "<= 0",
            {"imported": " ".join(heavy) or "none", "looked for": " ".join(HEAVY)},
        ),
    ]
    z, g = embeddings(PACS["sketch"], 512)
    for make in (LinearTCA, ConditionalTCA):
        make(g).fit(z[:1000])
        peak = peak_bytes(lambda make=make: make(g).fit(z))
        table.append(
            Row(
                f"{make.__name__}.fit, {len(z):,} x 512: MB beyond the embeddings",
                peak / 1e6,
                "<= 50",
                {"embeddings": f"{z.nbytes / 1e6:.0f} MB", "peak": f"{peak / 1e6:.0f} MB"},
            )
        )
    return table
