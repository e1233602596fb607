"""Reading records of ``clip-tca eval`` back, and refusing what is none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clip_tca.results.names import SCHEMA
from clip_tca.results.rendering import render

DAMAGED = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""What using a record raises whose figures are missing, or wrong."""


def read_all(paths: Iterable[str | Path]) -> dict[str, dict[str, Any]]:
    """All records of files, by a name each: that of the file, with a number if it holds several."""
    records: dict[str, dict[str, Any]] = {}
    for path in paths:
        found = read(Path(path))
        for number, record in enumerate(found, 1):
            label = Path(path).stem + (f"#{number}" if len(found) > 1 else "")
            records[label if label not in records else f"{path}#{number}"] = record
    return records


def parse(path: Path) -> Any:
    """The content of a JSON file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; clip-tca eval --output FILE.json writes one")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file: one, or those of a recipe."""
    content = parse(path)
    try:
        records: list[dict[str, Any]] = content.get("records", [content])
        versions = [record["schema_version"] for record in records]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None
    if other := [str(version)[:40] for version in versions if version != SCHEMA]:
        raise ValueError(f"{path}: schema {other[0]}, this version of clip-tca reads {SCHEMA}; evaluate again")
    try:
        for record in records:
            check(record)
            render([record], "table")
    except DAMAGED as error:
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
        if not abs(row["accuracy"] - 100 * row["correct"] / row["divisor"]) <= 1e-6:  # not a number is wrong, too
            raise ValueError(f"accuracy {row['accuracy']} of {row['method']} is not {row['correct']}/{row['divisor']}")
