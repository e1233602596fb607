"""Commands that are started to be killed: in forks that have the libraries already, or in fresh processes."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clip_tca.cli import main

PATIENCE, HANGS = 60, 1000
"""Seconds after which a run counts as hanging, and what stands for its exit code then."""


@dataclass
class Command:
    """A command, how many of a hundred random kills are its own, and how it is started."""

    name: str
    arguments: list[str]
    share: int
    how: str = "fork"
    before: list[str] | None = None  # a command whose output exists already
    store: bool = False  # whether it writes to the S3 server

    @property
    def words(self) -> list[str]:
        """The words of the command line."""
        return [sys.executable, "-m", "clip_tca", *self.arguments]


def port() -> int:
    """A free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(command: Command, case: Path, hook: Callable[[], None] | None = None) -> int:
    """Start a command in a session of its own; its process id."""
    (case / "tmp").mkdir(parents=True, exist_ok=True)
    (case / "out").mkdir(exist_ok=True)
    environment = {"CLIP_TCA_CACHE": str(case / "store"), "TMPDIR": str(case / "tmp")}
    log = case.parent / "log"
    if command.how != "fork":
        with log.open("wb") as file:
            return subprocess.Popen(
                command.words,
                cwd=case,
                env={**os.environ, **environment},
                stdout=file,
                stderr=file,
                start_new_session=True,
            ).pid
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(case)
        os.environ.update(environment)
        tempfile.tempdir = None
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if hook:
            hook()
        code = main(command.arguments)
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def finish(pid: int) -> int:
    """Wait for a process; its exit code, negative for a signal, or HANGS."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    kill(family(pid))
    os.waitpid(pid, 0)
    return HANGS


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
