"""``clip-tca compare``: one table of several records."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from clip_tca.cli import options as shared
from clip_tca.evaluation.names import SCHEMA


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
    from clip_tca.evaluation.formats import RENDERERS
    from clip_tca.evaluation.table import comparison

    shared.check_output(options)
    records: dict[str, dict[str, Any]] = {}
    for name in options.record:
        found = read(Path(name))
        for number, record in enumerate(found, 1):
            label = Path(name).stem + (f"#{number}" if len(found) > 1 else "")
            records[label if label not in records else f"{name}#{number}"] = record

    def text(form: str) -> str:
        if form == "json":
            return json.dumps({"records": list(records.values())}, indent=1) + "\n"
        return "\n".join(RENDERERS[form](table) for table in comparison(records))

    shared.deliver(options, text)
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file: one, or those of a recipe."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; clip-tca eval --output FILE.json writes one")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records: list[dict[str, Any]] = content.get("records", [content])
        for record in records:
            for key in (
                "schema_version",
                "dataset",
                "protocol",
                "setting",
                "seeds",
                "data",
                "model",
                "methods",
                "rows",
            ):
                record[key]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None
    if other := [record["schema_version"] for record in records if record["schema_version"] != SCHEMA]:
        raise ValueError(f"{path}: schema {other[0]}, this version of clip-tca reads {SCHEMA}; evaluate again")
    return records
