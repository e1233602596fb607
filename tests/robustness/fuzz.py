"""Fuzzing: nothing that a user can give to clip-tca ends in a traceback, a hang, a crash or a flood of memory.

    python benchmarks/fuzz.py [--cases 20000] [--seed 0] [--only NAME]

Each case damages a real file, or makes one up, and gives it to the code that reads such files. Allowed are a result, or
an error of one line that names the file or the value. Cases run in child processes, some hundred in each, so that a
crash of the interpreter is a finding and not the end; one that takes longer than 10 seconds, or that makes the process
grow by more than 400 MB, is one too. A case is repeated by ``--only NAME --case NUMBER``, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fuzzing import TARGETS
from benchmarks.fuzzing.target import Target, Unclear, clear

SECONDS = 10
MEGABYTES = 400
CHUNK = 250
ROOM = 3 << 30
"""Address space that a child may take beyond what it has."""


class TooLong(BaseException):
    """The alarm of a case."""


@dataclass
class Tally:
    """What became of the cases of a target; ``findings`` has the first case of each kind."""

    refused: int = 0
    accepted: int = 0
    longest: float = 0.0
    most: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)
    found: int = 0

    def add(self, case: int, kind: str, seconds: float, megabytes: float) -> None:
        """Count one case: ``kind`` is "refused", "accepted" or a finding."""
        self.longest, self.most = max(self.longest, seconds), max(self.most, megabytes)
        if kind in ("refused", "accepted"):
            setattr(self, kind, getattr(self, kind) + 1)
        else:
            self.found += 1
            self.findings.setdefault(kind, case)


def case(target: Target, seed: int, number: int, folder: Path, debug: bool = False) -> str:
    """Run one case: "refused", "accepted", or what is wrong."""
    rng = random.Random(f"{seed}/{target.name}/{number}")  # noqa: S311 (repeatable is what it has to be)
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return "accepted" if target.run(rng, folder) is not False else "refused"
    except TooLong:
        return f"over {SECONDS} s"
    except Unclear as error:
        return str(error)
    except Exception as error:
        wrong = clear(error, target.names)
        if debug:
            traceback.print_exc()
        return wrong or "refused"
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return f"{type(error).__name__}: {str(error)[:120]!r}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _alarm(_number: int, _frame: object) -> None:
    raise TooLong


def _import() -> None:
    """What cases need, once for all children: it would count as theirs."""
    import onnx  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork


def peak() -> float:
    """Most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(target: Target, seed: int, numbers: range, out: int) -> None:
    """Run cases and write a line of JSON for each; what they print goes nowhere."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    try:
        for number in numbers:
            os.write(out, b"{}\n")  # begun
            before, began = peak(), time.perf_counter()
            kind = case(target, seed, number, folder)
            seconds, megabytes = time.perf_counter() - began, peak() - before
            if megabytes > MEGABYTES:
                kind = f"took more than {MEGABYTES} MB"
            os.write(out, json.dumps([number, kind, seconds, megabytes]).encode() + b"\n")
            for stray in folder.iterdir():
                shutil.rmtree(stray) if stray.is_dir() else stray.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def run(target: Target, cases: int, seed: int = 0, chunk: int = CHUNK) -> Tally:
    """All cases of a target, in one child after the other."""
    _import()
    target.prepare()
    tally, done = Tally(), 0
    while done < cases:
        numbers = range(done, min(done + chunk, cases))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(target, seed, numbers, writer)
        os.close(writer)
        ended = _follow(reader, pid, tally)
        os.close(reader)
        status = os.waitpid(pid, 0)[1]
        done += ended
        if done < numbers.stop:  # the child died, or was ended, in the middle of a case
            reason = f"crash: signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
            tally.add(done, reason, 0.0, 0.0)
            done += 1
    return tally


def _follow(reader: int, pid: int, tally: Tally) -> int:
    """Read what a child says until its end; kill it when nothing comes for far too long. The number of cases done."""
    done, rest = 0, b""
    while True:
        if not select.select([reader], [], [], 3 * SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
        data = os.read(reader, 1 << 16)
        if not data:
            return done
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if told := json.loads(line):
                tally.add(*told)
                done += 1


def main() -> int:
    """Print the table, then the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20000, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[target.name for target in TARGETS], metavar="NAME")
    parser.add_argument("--case", type=int, help="run this one case of --only NAME, here, and show its traceback")
    options = parser.parse_args()
    if options.case is not None and len(options.only or ()) != 1:
        parser.error("--case is the number of a case of one target: name it by --only NAME")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    chosen = [target for target in TARGETS if not options.only or target.name in options.only]
    if options.case is not None:
        _import()
        chosen[0].prepare()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            print(case(chosen[0], options.seed, options.case, Path(folder), debug=True))
        return 0
    print(f"{'target':14} {'cases':>7} {'refused':>8} {'accepted':>9} {'findings':>9} {'longest s':>10} {'most MB':>8}")
    total, findings, shares = 0, 0, sum(target.share for target in chosen)
    for target in chosen:
        cases = max(1, round(options.cases * target.share / shares))
        tally = run(target, cases, options.seed)
        total, findings = total + cases, findings + tally.found
        counts = f"{cases:7} {tally.refused:8} {tally.accepted:9} {tally.found:9}"
        print(f"{target.name:14} {counts} {tally.longest:10.2f} {tally.most:8.0f}", flush=True)
        for kind, number in tally.findings.items():
            print(f"    case {number}: {kind}", flush=True)
    print(f"{'in all':14} {total:7} {'':8} {'':9} {findings:9}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
