"""The command line: one file, one subcommand. Only here is anything printed."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from clip_tca import __version__
from clip_tca.cli import evaluate


def parser() -> argparse.ArgumentParser:
    """The parser of ``clip-tca``. Building it imports no torch: ``--help`` answers at once."""
    top = argparse.ArgumentParser(prog="clip-tca", description="Adapt CLIP embeddings at test time, without labels.")
    top.add_argument("--version", action="version", version=f"clip-tca {__version__}")
    top.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    evaluate.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 failed with one clear line, 2 wrong usage, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("clip-tca: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: point stdout elsewhere, or Python complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        print(f"clip-tca: {error}", file=sys.stderr)
        return 1
