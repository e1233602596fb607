"""``clip-tca report``: records as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from clip_tca.cli import options as shared


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    command = commands.add_parser(
        "report",
        help="JSON records as one HTML page",
        description="Put the records that clip-tca eval --output FILE.json and clip-tca study --output PREFIX wrote "
        "into one self-contained HTML page: tables, gains, classes, confusion, examples (eval --examples N), figures.",
    )
    command.add_argument(
        "results", nargs="+", metavar="RESULTS", help="JSON file; a study's figure is read from beside it"
    )
    command.add_argument("--output", "-o", metavar="FILE", required=True, help="HTML file; whole or not at all")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the records, write the page."""
    from clip_tca.core.files import write_text
    from clip_tca.report.page import page
    from clip_tca.report.sources import read

    shared.check_output(options.output)
    text = page(read(options.results))
    write_text(Path(options.output), text)
    print(f"written: {options.output} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0
