"""What the scripts of this folder share: arguments, methods measured side by side, and a page, printed or written."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clip_tca.core.files import write_text


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a page about regimes: several files, and which of their domains."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", nargs="+", help="safetensors files of stored embeddings")
    parser.add_argument("--domain", action="append", help="only these domains")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each regime (default: 3)")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    return parser


_work: Callable[[str], Any]
"""What the processes inherit when they are forked: test sets are too large to be sent to each."""


def side_by_side(methods: list[str], work: Callable[[str], Any]) -> dict[str, tuple[Any, float]]:
    """``work(method)`` of each method, and the most memory in MB that it took beyond what was there before.

    Each method has a process of its own, as many at a time as there are cores, with one thread each.
    """
    global _work
    _work = work
    torch.set_num_threads(1)  # before the fork: OpenMP's threads do not survive it
    torch.linalg.eigh(torch.eye(64) @ torch.eye(64))  # what torch sets up at first is in no method's time
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        found = {}
        for method, result, memory in pool.imap(_alone, methods):
            print(f"{method}: done", file=sys.stderr, flush=True)
            found[method] = result, memory
        return found


def _alone(method: str) -> tuple[str, Any, float]:
    before = _peak()
    result = _work(method)
    return method, result, _peak() - before


def _peak() -> float:
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def main(description: str | None, report: Callable[[str], str]) -> None:
    """Print ``report(embeddings)``, or write it to ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", help="safetensors file of stored embeddings (clip_tca/data/embeddings.py)")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    show(report(options.embeddings), options.output)


def show(page: str, output: Path | None) -> None:
    """Print a page, or write it."""
    if output:
        write_text(output, page)
    else:
        print(page)
