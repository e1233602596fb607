"""``clip-tca report``: records as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clip_tca.cli import options as shared


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Put the records that clip-tca eval --output FILE.json and clip-tca study --output PREFIX wrote "
        "into one self-contained HTML page: tables, gains, classes, confusion, examples (eval --examples N), figures; "
        "or with --board many records of eval into one sortable, filterable table."
    )
    command.add_argument(
        "results",
        nargs="+",
        metavar="RESULTS",
        help="JSON file, or a folder: all .json files in it; a study's figure is read from beside it",
    )
    command.add_argument(
        "--board", action="store_true", help="a row for each method of each record, linked to its file, with filters"
    )
    command.add_argument("--output", "-o", metavar="FILE", required=True, help="HTML file; whole or not at all")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the records, write the page."""
    from clip_tca.core.files import write_text

    shared.check_output(options.output)
    text = _board(options) if options.board else _page(options)
    write_text(Path(options.output), text)
    print(f"written: {options.output} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0


def _page(options: argparse.Namespace) -> str:
    from clip_tca.report.page import page
    from clip_tca.report.sources import read

    return page(read(options.results))


def _board(options: argparse.Namespace) -> str:
    from clip_tca.report.board import board
    from clip_tca.report.board_rows import read_entries

    entries, left_out = read_entries(options.results)
    if left_out:
        print(f"left out, not records of clip-tca eval: {', '.join(map(str, left_out))}", file=sys.stderr)
    return board(entries, Path(options.output))
