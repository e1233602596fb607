"""The command line. The only place that prints."""

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
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from clip_tca.core.checks import not_among
from clip_tca.core.version import __version__

COMMANDS = {
    "label": ("label.add", "label pictures that have no labels"),
    "app": ("app.add", "label pictures on a local web page"),
    "eval": ("eval.add", "measure accuracy before and after adaptation"),
    "adapt": ("adapt.add", "adapt embeddings from files of any size"),
    "explain": ("saved.add_explain", "explain a result or a saved adapter in words"),
    "report": ("saved.add_report", "write results as one HTML page"),
    "study": ("study.add", "repeat the paper's figures and analyses on any data set"),
    "compare": ("saved.add_compare", "print several results in one table"),
    "export": ("saved.add_export", "write a saved adapter as ONNX or as a linear layer"),
    "methods": ("eval.add_methods", "list the methods of eval"),
    "embed": ("embed.add", "encode images once and keep the embeddings"),
    "data": ("data.add", "list, download and check data sets"),
    "cache": ("embed.add_cache", "locate or clear the stored embeddings"),
}
"""Where the options of each command are added, and what it does, as ``--help`` lists them."""


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of ``clip-tca``, or of ``only`` one command: the others then have names but no options.

    Building it imports no torch, so that ``--help`` is instant.
    """
    top = Parser(prog="clip-tca", description="Adapt CLIP embeddings at test time, without labels.")
    top.add_argument("--version", action="version", version=f"clip-tca {__version__}")
    top.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (home, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if only in (None, name):
            module, _, add = home.partition(".")
            getattr(import_module(f"clip_tca.cli.{module}"), add)(command)
    return top


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated options, and says in one line what is wrong and what may have been meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, where those that may have been meant are known, and not in the parser above."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), None)
            if word is None:
                self.error(f"{unknown[0]!r} is one argument too many")
            self.error(f"unknown option {not_among(word.partition('=')[0], list(self._option_string_actions))}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, not_among(value, list(action.choices)))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (see {self.prog} --help)\n")


class Stderr(logging.Handler):
    """Print warnings on stderr, each once, even if an adapter logs it for every fit with other numbers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.printed: set[tuple[object, ...]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        key: tuple[object, ...] = (record.getMessage(),)
        if record.name.startswith("clip_tca.adapters") and isinstance(record.args, tuple):
            key = (record.msg, *(name for name in record.args if isinstance(name, str)))  # other numbers, same warning
        if key not in self.printed:
            self.printed.add(key)
            tqdm.write(f"clip-tca: {record.getMessage()}", file=sys.stderr)  # above a bar that is shown


def print_warnings() -> None:
    """Print our warnings on stderr, and not those of libraries, which are harmless or become errors of ours."""
    ours = logging.getLogger("clip_tca")
    ours.handlers = [handler for handler in ours.handlers if not isinstance(handler, Stderr)] + [Stderr()]
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 failed with one clear line, 2 wrong usage, 130 interrupted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: no file may get its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    options.arguments = words[words.index(options.command) + 1 :]
    print_warnings()
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal can't show is written out, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    before = None
    try:
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, _end)
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("clip-tca: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("clip-tca: ended by SIGTERM", file=sys.stderr)
        return 128 + signal.SIGTERM
    except BrokenPipeError:  # the reader of our output has gone: point stdout elsewhere, or Python complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            reason = f"{error.filename}: {error.strerror}"  # the file and then what is wrong, as in ours
        line = re.sub(r"\n(?!  )", " ", reason)  # names may hold line ends; a list of ours is indented
        print(f"clip-tca: {line}", file=sys.stderr)
        return 1
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ``timeout`` sends it twice
    if hasattr(signal, "SIGCHLD"):  # and to processes that decode, of which torch would complain
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    raise Terminated


class Terminated(SystemExit):
    """The process received SIGTERM: clean up on the way out."""
