"""Fuzzing: no input to clip-tca ends in a traceback, a hang, a crash or a flood of memory.

    python -m tests.robustness.fuzz [--cases 20000] [--seed 0] [--only NAME]

Each case damages a valid file, or makes one up, and gives it to the code that reads such files. Allowed are a result,
or an error of one line that names the file or the value. Hypothesis generates the cases and shrinks those that fail;
they are kept in ``.hypothesis/fuzz`` and come first in the next run. Cases run in child processes, some hundred in
each, so that a crash of the interpreter is a finding and not the end. A case that takes longer than 10 seconds, or that
makes the process grow by more than 400 MB, is a finding too. ``--only NAME --chunk NUMBER`` repeats the cases of one
child in this process.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from tests.robustness.fuzzing import TARGETS
from tests.robustness.fuzzing.target import Target, Unclear, unclear

SECONDS = 10
MEGABYTES = 400
CHUNK = 250
ADDRESS_SPACE = 3 << 30
"""Bytes that a child may allocate beyond what it has."""

LONGEST = 300
"""Letters of a case that are shown."""


class TooLong(BaseException):
    """The alarm of a case."""


@dataclass
class Tally:
    """What became of the cases of a target; ``findings`` has the chunk and the case of the first of each kind."""

    refused: int = 0
    accepted: int = 0
    longest: float = 0.0
    most: float = 0.0
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        """Cases that had an answer."""
        return self.refused + self.accepted

    def add(self, kind: str, seconds: float, megabytes: float) -> None:
        """Count one case: ``kind`` is "refused" or "accepted"."""
        self.longest, self.most = max(self.longest, seconds), max(self.most, megabytes)
        setattr(self, kind, getattr(self, kind) + 1)


def answer(target: Target, case: Any, folder: Path) -> str:
    """Run one case: "refused" or "accepted".

    Raises:
        Unclear: If the answer is wrong.
        TooLong: If there is none in time.
    """
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return "refused" if target.run(case, folder) is False else "accepted"
    except (Unclear, TooLong):
        raise
    except Exception as error:
        if reason := unclear(error, target.names):
            raise Unclear(reason) from error
        return "refused"
    except BaseException as error:
        raise Unclear(f"{type(error).__name__}: {str(error)[:120]!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _alarm(_number: int, _frame: object) -> None:
    raise TooLong


def _import() -> None:
    """Import what cases need, once for all children: it would count as their time and memory."""
    import onnx  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork


def peak() -> float:
    """Most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def explore(
    target: Target, cases: int, seed: int, folder: Path, report: Callable[..., None], database: ExampleDatabase | None
) -> None:
    """Run cases in this process.

    ``report`` gets "begun", then a kind with seconds and MB, or "finding" with what it is and the
    smallest case that hypothesis has found.
    """

    def body(case: Any) -> None:
        report("begun")
        before, began = peak(), time.perf_counter()
        try:
            kind = answer(target, case, folder)
        except TooLong:  # time and memory differ from run to run, so that these cases can't be shrunk
            report("finding", f"took more than {SECONDS} s", "")
            return
        finally:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        seconds, megabytes = time.perf_counter() - began, peak() - before
        if megabytes > MEGABYTES:
            report("finding", f"took more than {MEGABYTES} MB", "")
        else:
            report(kind, seconds, megabytes)

    settings = hypothesis.settings(
        max_examples=cases,
        database=database,
        deadline=None,
        phases=(hypothesis.Phase.reuse, hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        settings(hypothesis.seed(seed)(hypothesis.given(target.cases())(body)))()  # a seed takes the database away
    except BaseException as error:
        for finding in getattr(error, "exceptions", [error]):
            case = "".join(getattr(finding, "__notes__", []))
            report("finding", str(finding) or type(finding).__name__, case[:LONGEST])
        traceback.print_exc()


def child(target: Target, cases: int, seed: int, out: int, database: ExampleDatabase | None) -> None:
    """Run cases and write a line of JSON for each; what they print goes nowhere."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, used + ADDRESS_SPACE))
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    try:
        explore(target, cases, seed, folder, lambda *line: os.write(out, json.dumps(line).encode() + b"\n"), database)
        os.write(out, b'["end"]\n')
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def run(
    target: Target, cases: int, seed: int = 0, chunk: int = CHUNK, database: ExampleDatabase | None = None
) -> Tally:
    """All cases of a target, in one child after the other."""
    _import()
    _ = target.seeds
    tally = Tally()
    for number, first in enumerate(range(0, cases, chunk)):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(target, min(chunk, cases - first), seed_of(target, seed, number), writer, database)
        os.close(writer)
        ended = _follow(reader, pid, tally, number)
        os.close(reader)
        status = os.waitpid(pid, 0)[1]
        if not ended:
            reason = f"crash: signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
            tally.findings.setdefault(reason, (number, ""))
    return tally


def seed_of(target: Target, seed: int, chunk: int) -> int:
    """The seed of the cases of one child."""
    return zlib.crc32(f"{seed}/{target.name}/{chunk}".encode())


def _follow(reader: int, pid: int, tally: Tally, chunk: int) -> bool:
    """Count what a child writes; kill it when nothing comes for far too long. Whether it came to its end."""
    rest, ended = b"", False
    while True:
        if not select.select([reader], [], [], 3 * SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
        data = os.read(reader, 1 << 16)
        if not data:
            return ended
        *lines, rest = (rest + data).split(b"\n")
        for kind, *details in map(json.loads, lines):
            ended |= kind == "end"
            if kind == "finding":
                tally.findings.setdefault(details[0], (chunk, details[1]))
            elif details:
                tally.add(kind, *details)


def main() -> int:
    """Print the table, then the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20000, help="of all targets (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[target.name for target in TARGETS], metavar="NAME")
    parser.add_argument("--chunk", type=int, help="repeat the cases of this child of --only NAME, and show tracebacks")
    options = parser.parse_args()
    if options.chunk is not None and len(options.only or ()) != 1:
        parser.error("--chunk is the number of a child of one target: name it by --only NAME")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    chosen = [target for target in TARGETS if not options.only or target.name in options.only]
    if options.chunk is not None:
        _import()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            explore(chosen[0], CHUNK, seed_of(chosen[0], options.seed, options.chunk), Path(folder), _show, None)
        return 0
    examples = Path(".hypothesis/fuzz").resolve()
    print(f"{'target':14} {'cases':>7} {'refused':>8} {'accepted':>9} {'findings':>9} {'longest s':>10} {'most MB':>8}")
    total, findings, shares = 0, 0, sum(target.share for target in chosen)
    for target in chosen:
        database = DirectoryBasedExampleDatabase(examples / target.name)
        tally = run(target, max(1, round(options.cases * target.share / shares)), options.seed, database=database)
        total, findings = total + tally.cases, findings + len(tally.findings)
        counts = f"{tally.cases:7} {tally.refused:8} {tally.accepted:9} {len(tally.findings):9}"
        print(f"{target.name:14} {counts} {tally.longest:10.2f} {tally.most:8.0f}", flush=True)
        for kind, (number, case) in tally.findings.items():
            print(f"    chunk {number}: {kind}\n    {case}", flush=True)
    print(f"{'total':14} {total:7} {'':8} {'':9} {findings:9}")
    return 1 if findings else 0


def _show(kind: str, *details: object) -> None:
    """Findings only."""
    if kind == "finding":
        print(*details, flush=True)


if __name__ == "__main__":
    sys.exit(main())
