"""The command line: one file, one subcommand. Only here is anything printed."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from clip_tca.cli import adapt, cache, compare, data, embed, evaluate, explain, export, methods, report, study
from clip_tca.core.version import __version__


def parser() -> argparse.ArgumentParser:
    """The parser of ``clip-tca``. Building it imports no torch: ``--help`` answers at once."""
    top = Parser(prog="clip-tca", description="Adapt CLIP embeddings at test time, without labels.")
    top.add_argument("--version", action="version", version=f"clip-tca {__version__}")
    top.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (evaluate, adapt, explain, report, study, compare, export, methods, embed, data, cache):
        command.add(commands)
    return top


class Parser(argparse.ArgumentParser):
    """A parser, and one for each command in it, that takes no beginning of an option for the option.

    What ``--out`` means would otherwise change when a command gets another option that begins so.
    """

    def __init__(self, **options: Any) -> None:
        """Take what every parser takes."""
        super().__init__(**{"allow_abbrev": False, **options})


class Stderr(logging.Handler):
    """Log lines on stderr, each said once; of what adapters say of every fit, the first."""

    def __init__(self) -> None:
        """Take warnings and worse."""
        super().__init__(logging.WARNING)
        self.said: set[tuple[object, ...]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        about: tuple[object, ...] = (record.getMessage(),)
        if record.name == "clip_tca.adapters.base" and isinstance(record.args, tuple):
            about = (record.msg, *record.args[:1])
        if about in self.said:
            return
        self.said.add(about)
        print(f"clip-tca: {record.getMessage()}", file=sys.stderr)


def say_warnings() -> None:
    """Our warnings go to stderr; those of libraries, which we turn into errors or know to be harmless, do not."""
    ours = logging.getLogger("clip_tca")
    for handler in [handler for handler in ours.handlers if isinstance(handler, Stderr)]:
        ours.removeHandler(handler)
    ours.addHandler(Stderr())
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 failed with one clear line, 2 wrong usage, 130 interrupted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: nothing is printed, and no file gets its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    options.arguments = words[words.index(options.command) + 1 :]
    say_warnings()
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal can't show is written out, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    before = signal.signal(signal.SIGTERM, _end) if threading.current_thread() is threading.main_thread() else None
    try:
        status = _run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("clip-tca: interrupted", file=sys.stderr)
        return 130
    except Terminated as end:
        others = " (torchrun sends it when another process of the run has died)" if "RANK" in os.environ else ""
        print(f"clip-tca: ended by SIGTERM{others}", file=sys.stderr)
        return int(end.code or 1)
    except BrokenPipeError:  # the reader of our output has gone: point stdout elsewhere, or Python complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        if not getattr(error, "reported", False):
            line = re.sub(r"\n(?!  )", " ", reason(error))  # names may hold line ends; a list of ours is indented
            print(f"clip-tca: {line or type(error).__name__}", file=sys.stderr)
        return 1
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def reason(error: Exception) -> str:
    """What an error says; one of the system's in the order that ours have: the file, then what is wrong."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _run(options: argparse.Namespace) -> int:
    """One process, or one of several that ``torchrun`` has started for a command that can share its work."""
    run: Callable[[argparse.Namespace], int] = options.run
    if "RANK" not in os.environ or not getattr(options, "shares", False):
        return run(options)
    from clip_tca.core.processes import joined

    with joined():
        return run(options)


def _end(_number: int, _frame: object) -> NoReturn:
    """A request to end (by kill, or by torchrun when another process has died): tidy up on the way out."""
    raise Terminated(128 + signal.SIGTERM)


class Terminated(SystemExit):
    """The process was asked to end."""
