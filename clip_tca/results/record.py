"""Reading records of ``clip-tca eval``. Their types are checked once, here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.remote import Location, locate
from clip_tca.results.schema import SCHEMA_VERSION, EvaluationRecord


def read_all(paths: Iterable[str | Path]) -> dict[str, EvaluationRecord]:
    """All records of several files, by label."""
    records: dict[str, EvaluationRecord] = {}
    for path in paths:
        records |= labelled(read(locate(path)), path, records)
    return records


def labelled(
    records: list[EvaluationRecord], path: str | Path, taken: Collection[str] = ()
) -> dict[str, EvaluationRecord]:
    """The records of a file by label: its name, or its path where that is taken; numbered if there are several."""
    numbers = [f"#{n}" for n in range(1, len(records) + 1)] if len(records) > 1 else [""]
    stem = Path(path).stem
    name = str(path) if any(f"{stem}{number}" in taken for number in numbers) else stem
    return {f"{name}{number}": record for number, record in zip(numbers, records, strict=True)}


def read(path: Location) -> list[EvaluationRecord]:
    """The records of a file: one, or those of a recipe. ValueError names the field that is damaged."""
    return checked(parse(path), path)


def parse(path: Location) -> Any:
    """The content of a JSON file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; clip-tca eval --output FILE.json writes one")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise CorruptFileError(f"{path}: not a record of clip-tca eval ({error})") from None


def checked(content: Any, path: Location) -> list[EvaluationRecord]:
    """The records in the content of a file, as :func:`read` gives them."""
    inside = content.get("records", [content]) if isinstance(content, dict) else None
    records = inside if isinstance(inside, list) else []
    is_record = [isinstance(one, dict) and "schema_version" in one for one in records]
    if not is_record or not all(is_record):
        raise ValueError(f"{path}: not a record of clip-tca eval; clip-tca eval --output FILE.json writes one")
    for record in records:
        if (version := record["schema_version"]) != SCHEMA_VERSION:
            name = str(version)[:40]
            raise ValueError(f"{path}: schema {name}, this version of clip-tca reads {SCHEMA_VERSION}; evaluate again")
        try:
            check(record)
        except ValueError as error:
            raise CorruptFileError(f"{path}: not a whole record of clip-tca eval ({error}); evaluate again") from None
    return records


def validate(value: Any, kind: Any, field: str = "") -> None:
    """Raise ValueError, naming the field, unless ``value`` has the type ``kind`` in depth."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, inner = str(error).partition(" - at `$")
        path = f"{field}{inner.rstrip('`')}".lstrip(".")
        raise ValueError(one_line(f"{path}: {reason}" if path else reason)) from None


def check(record: EvaluationRecord) -> None:
    """Raise ValueError unless a record has the types of its schema, and a row for each method, domain and seed."""
    validate(record, EvaluationRecord)
    methods = [method["name"] for method in record["methods"]]
    expected = Counter(product(methods, record["data"]["domains"], record["seeds"]))
    rows = Counter((row["method"], row["domain"], row["seed"]) for row in record["rows"])
    if expected != rows or max(rows.values(), default=0) != 1:
        raise ValueError("rows: not one for each method, domain and seed")


@contextmanager
def blaming(paths: Iterable[str | Path]) -> Iterator[None]:
    """Where a table or page of records can't be made, their parts contradict each other: somebody has edited them."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        files, reason = ", ".join(map(str, paths)), one_line(f"{type(error).__name__}: {error}")
        raise ValueError(f"{files}: a record contradicts itself ({reason}); evaluate again") from error
