"""``clip-tca compare``: one table of several records."""

from __future__ import annotations

import argparse

from clip_tca.cli import options as shared


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    command = commands.add_parser(
        "compare",
        help="one table of several JSON records",
        description="Put the records that clip-tca eval --output FILE.json wrote into one table for each data set.",
    )
    command.add_argument("record", nargs="+", help="JSON file")
    shared.add_output(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, compare, print."""
    from clip_tca.evaluation.formats import RENDERERS, as_json, printable
    from clip_tca.evaluation.record import read_all
    from clip_tca.evaluation.table import comparison

    shared.check_output(options)
    records = read_all(options.record)

    def text(form: str) -> str:
        if form == "json":
            return as_json({"records": list(records.values())})
        return "\n".join(RENDERERS[form](printable(shown)) for shown in comparison(records))

    shared.deliver(options, text)
    return 0
