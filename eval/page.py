"""What the scripts of this folder share: the embeddings as arguments, and a page that is printed or written."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from clip_tca.core.files import write_text


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a page about regimes: several files, and which of their domains."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", nargs="+", help="safetensors files of stored embeddings")
    parser.add_argument("--domain", action="append", help="only these domains")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each regime (default: 3)")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    return parser


def main(description: str | None, report: Callable[[str], str]) -> None:
    """Print ``report(embeddings)``, or write it to ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", help="safetensors file of stored embeddings (clip_tca/datasets/embedding_set.py)")
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
