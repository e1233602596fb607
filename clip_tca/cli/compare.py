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
    from clip_tca.evaluation.formats import RENDERERS, printable
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
        return "\n".join(RENDERERS[form](printable(shown)) for shown in comparison(records))

    shared.deliver(options, text)
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file: one, or those of a recipe."""
    from clip_tca.evaluation.table import table

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; clip-tca eval --output FILE.json writes one")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records: list[dict[str, Any]] = content.get("records", [content])
        versions = [record["schema_version"] for record in records]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None
    if other := [version for version in versions if version != SCHEMA]:
        raise ValueError(f"{path}: schema {other[0]}, this version of clip-tca reads {SCHEMA}; evaluate again")
    try:
        for record in records:
            check(record)
            table(record)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: not a whole record of clip-tca eval ({reason}); evaluate again") from None
    if not records:
        raise ValueError(f"{path}: holds no record")
    return records


def check(record: dict[str, Any]) -> None:
    """Raise ValueError if the rows of a record contradict themselves."""
    for key in ("dataset", "protocol", "setting", "batch_size", "seeds", "data", "model", "prompts", "methods", "cost"):
        record[key]
    if not record["rows"]:
        raise ValueError("it has no rows")
    for row in record["rows"]:
        if row["domain"] not in record["data"]["domains"]:
            raise ValueError(f"domain {row['domain']!r} is not in its data")
        if abs(row["accuracy"] - 100 * row["correct"] / row["divisor"]) > 1e-6:
            raise ValueError(f"accuracy {row['accuracy']} of {row['method']} is not {row['correct']}/{row['divisor']}")
