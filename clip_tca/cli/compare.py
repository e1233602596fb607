"""``clip-tca compare``: several records in one table."""

from __future__ import annotations

import argparse

from clip_tca.cli import options as shared


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Put the records that clip-tca eval --output FILE.json wrote into one table for each data set."
    )
    command.add_argument("record", nargs="+", help="JSON file")
    shared.add_metrics(shared.add_output(command))
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, compare, print."""
    from clip_tca.results.metric_table import metric_comparison
    from clip_tca.results.record import read_all
    from clip_tca.results.rendering import as_json, render_tables

    shared.check_output(options.output)
    records = read_all(options.record)

    def text(output_format: str) -> str:
        if output_format == "json":
            return as_json({"records": list(records.values())})
        return render_tables(metric_comparison(records, options.metric or "accuracy"), output_format)

    shared.deliver(options, text)
    return 0
