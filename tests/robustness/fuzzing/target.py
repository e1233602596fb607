"""A kind of input to fuzz, and what counts as a clear answer to it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis.strategies import SearchStrategy


class Unclear(Exception):  # noqa: N818 (not an error of the program: a finding)
    """An answer that is wrong."""


class Target(ABC):
    """A kind of input.

    Attributes:
        name: In the table.
        share: Of the cases, relative to the other targets.
        names: An error must contain one of these; empty where there is no file to name.
    """

    name = ""
    share = 1.0
    names: tuple[str, ...] = ("case",)

    @cached_property
    def seeds(self) -> Any:
        """Valid input, made once, before the child processes are forked."""
        return []

    @abstractmethod
    def cases(self) -> SearchStrategy[Any]:
        """Damaged or made-up input."""

    @abstractmethod
    def run(self, case: Any, folder: Path) -> bool | None:
        """Run one case in an empty folder. False, or an error: refused; anything else: accepted."""


def content(write: Any, suffix: str) -> bytes:
    """The bytes that ``write(path)`` writes to a file of that suffix."""
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder) / f"seed{suffix}")
        return path.read_bytes()


def unclear(error: Exception, names: tuple[str, ...], longest: int = 1500) -> str | None:
    """What is wrong with an error as an answer to a user; None if it is clear and has at most ``longest`` letters."""
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
    if len(text) > longest:
        return f"{len(text)} letters: {message}"
    if names and not any(name in text for name in names):
        return f"does not name the file: {message}"
    return None


def command(
    words: Sequence[str], names: tuple[str, ...] = (), stdin: bytes = b"", codes: tuple[int, ...] = (0, 1)
) -> bool:
    """Run ``clip-tca`` in this process; whether it succeeded.

    Raises:
        Unclear: If the exit code is not one of ``codes``, or the error is not one clear line with one of ``names``.
    """
    from clip_tca.cli import main

    errors: list[BaseException | None] = []
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(standard_input(stdin))
        stack.enter_context(patch("traceback.print_exc", lambda: errors.append(sys.exc_info()[1])))
        try:
            code: Any = main(["--debug", *words])
        except SystemExit as end:
            code = end.code
    longest = 1500 + 3 * max(map(len, words))  # a long word is repeated in the message
    for error in errors:
        if isinstance(error, Exception) and (reason := unclear(error, names, longest)):
            raise Unclear(f"{reason}: clip-tca {words}") from error
    lines = [line for line in err.getvalue().split("\n") if line]
    if code not in codes or (errors and not all(line.startswith("clip-tca: ") for line in lines)):
        raise Unclear(f"exit {code}, {lines[-1:]}: clip-tca {words}")
    return code == 0


@contextlib.contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """``data`` on standard input, under its number and as ``sys.stdin``, as the shell's ``<`` gives it."""
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            with open(0, encoding="utf-8", closefd=False) as stream, patch("sys.stdin", stream):
                yield
        finally:
            os.dup2(before, 0)
            os.close(before)
