"""What the scripts of this folder share: one argument for the embeddings, and a page that is printed or written."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from clip_tca.core.files import write_text


def main(description: str | None, report: Callable[[str], str]) -> None:
    """Print ``report(embeddings)``, or write it to ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", help="safetensors file of stored embeddings (clip_tca/datasets/embedding_set.py)")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    page = report(options.embeddings)
    if options.output:
        write_text(options.output, page)
    else:
        print(page)
