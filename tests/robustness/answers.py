"""What counts as a clear answer to damaged input: a result, or one line that names the file or the value."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

SECONDS, PATIENCE = 10, 120
"""Seconds of processor time that a case may take, and of anybody's time: the first does not depend on other work."""

ADDRESS_SPACE = 2 << 30
"""Bytes that a case may allocate beyond what the process has."""

LONGEST = 1500
"""Letters in a message."""


class TooLong(BaseException):
    """A case that takes too long; no ``except Exception`` may catch it."""


@contextlib.contextmanager
def answered(*names: str) -> Iterator[Path]:
    """Run a case in an empty folder: it ends in time, with a result or with an error that has one of ``names``.

    Raises:
        AssertionError: If the error is not a clear one.
        TooLong: If there is no answer in time.
    """
    before, here = resource.getrlimit(resource.RLIMIT_AS), os.getcwd()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.dict(os.environ, CLIP_TCA_CACHE=f"{folder}/store", HF_HUB_OFFLINE="1"))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        os.chdir(folder)
        stack.callback(os.chdir, here)
        stack.callback(resource.setrlimit, resource.RLIMIT_AS, before)
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, before[1]))
        for alarm, timer, seconds in (
            (signal.SIGPROF, signal.ITIMER_PROF, SECONDS),
            (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE),
        ):
            stack.callback(signal.signal, alarm, signal.signal(alarm, _too_long))
            stack.callback(signal.setitimer, timer, 0)
            signal.setitimer(timer, seconds)
        try:
            yield Path(folder)
        except AssertionError:
            raise
        except Exception as error:
            if reason := unclear(error, names):
                raise AssertionError(reason) from error


def _too_long(_number: int, _frame: object) -> None:
    raise TooLong


def unclear(error: BaseException, names: tuple[str, ...]) -> str | None:
    """What is wrong with an error as an answer to a user; None if it is clear."""
    text = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    at = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if "clip_tca" in f.filename), "?")
    message = f"{type(error).__name__} at {at}: {text[:120]!r}"
    if not isinstance(error, (ValueError, OSError, TypeError)) or isinstance(error, UnicodeError):
        return message
    if isinstance(error, TypeError) and at == "?":
        return message
    if not text.strip():
        return f"empty message: {message}"
    if len(text) > LONGEST:
        return f"{len(text)} letters: {message}"
    if names and not any(name in text for name in names):
        return f"does not name the file: {message}"
    return None


def command(words: list[str], *names: str) -> bool:
    """Run ``clip-tca`` in this process; whether it succeeded.

    Raises:
        AssertionError: If the error is not one clear line with one of ``names``.
    """
    from clip_tca.cli import main

    errors: list[BaseException | None] = []
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch("traceback.print_exc", lambda: errors.append(sys.exc_info()[1])),
    ):
        code = main(["--debug", *words])
    for error in errors:
        if error is not None and (reason := unclear(error, names)):
            raise AssertionError(f"{reason}: clip-tca {words}") from error
    lines = [line for line in err.getvalue().split("\n") if line]
    assert code in (0, 1), (code, lines[-1:], words)
    assert not errors or all(line.startswith("clip-tca: ") for line in lines), (lines, words)
    return code == 0
