"""A kind of input to fuzz, and what counts as a clear answer to it."""

from __future__ import annotations

import random
import tempfile
import traceback
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any


class Unclear(Exception):  # noqa: N818 (not an error of the program: what the fuzzer has found)
    """An answer that is wrong in itself."""


class Target(ABC):
    """A kind of input.

    Attributes:
        name: In the table.
        share: Of the cases, against the other targets.
        names: One of these must stand in an error; empty where there is no file to be named.
    """

    name = ""
    share = 1.0
    names: tuple[str, ...] = ("case",)

    def prepare(self) -> None:
        """Make what all cases start from, before the children are forked."""
        _ = self.seeds

    @cached_property
    def seeds(self) -> Any:
        """What is damaged."""
        return []

    @abstractmethod
    def run(self, rng: random.Random, folder: Path) -> bool | None:
        """One case. False, or an error: refused; anything else: accepted."""


def made(write: Any, suffix: str) -> bytes:
    """What ``write(path)`` writes to a file of that suffix."""
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder) / f"seed{suffix}")
        return path.read_bytes()


def clear(error: Exception, names: tuple[str, ...], longest: int = 1500) -> str | None:
    """What is wrong with an error as an answer to a user; None if it is one clear line, of ``longest`` letters."""
    text = str(error)
    where = traceback.extract_tb(error.__traceback__)
    at = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(where) if "clip_tca" in f.filename), "?")
    told = f"{type(error).__name__} at {at}: {text[:120]!r}"
    if not isinstance(error, (ValueError, OSError, TypeError)) or isinstance(error, UnicodeError):
        return told
    if isinstance(error, TypeError) and at == "?":
        return told
    if not text.strip():
        return f"says nothing: {told}"
    if len(text) > longest:
        return f"{len(text)} letters: {told}"
    if names and not any(name in text for name in names):
        return f"does not name the file: {told}"
    return None
