"""Reading records of ``clip-tca eval``. A file is checked once, here; what uses a record relies on that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError
from clip_tca.core.remote import Location, locate
from clip_tca.results.schema import SCHEMA_VERSION, EvaluationRecord, ExampleKind, ResultRow

LARGEST = 2**63  # numbers beyond it can't be measurements, and could overflow in what is computed from them
FREE = ("origin", "parameters", "preprocessing")  # parts that may say anything; all other whole numbers are counts


def read_all(paths: Iterable[str | Path]) -> dict[str, EvaluationRecord]:
    """All records of several files, by label."""
    found: dict[str, EvaluationRecord] = {}
    for path in paths:
        found |= labelled(read(locate(path)), path, found)
    return found


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
            found = str(version)[:40]
            raise ValueError(f"{path}: schema {found}, this version of clip-tca reads {SCHEMA_VERSION}; evaluate again")
        try:
            check(record)
        except ValueError as error:
            raise CorruptFileError(f"{path}: not a whole record of clip-tca eval ({error}); evaluate again") from None
    return records


def validate(value: Any, kind: Any, field: str = "") -> None:
    """Raise ValueError, naming the field, unless ``value`` has the type ``kind`` in depth and its numbers are sound."""
    import msgspec

    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = f"{field}{place.rstrip('`')}".lstrip(".")
        raise ValueError(one_line(f"{place}: {reason}" if place else reason)) from None
    _check_numbers(value, field)


def _check_numbers(value: Any, field: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in FREE:
                _check_numbers(item, f"{field}.{name}" if field else name)
    elif isinstance(value, list):
        if set(map(type, value)) == {int} and 0 <= min(value) <= max(value) < LARGEST:
            return  # a confusion matrix of many classes is long
        for i, item in enumerate(value):
            _check_numbers(item, f"{field}[{i}]")
    elif isinstance(value, (int, float)) and not abs(value) < LARGEST:  # NaN is not smaller either
        raise ValueError(f"{field} is {str(value)[:20]}, not a finite number")
    elif isinstance(value, int) and value < 0:
        raise ValueError(f"{field} is {value}, not a whole number of at least 0")


def check(record: EvaluationRecord) -> None:
    """Raise ValueError unless a record has the types of its schema and its parts agree with each other."""
    validate(record, EvaluationRecord)
    methods = [method["name"] for method in record["methods"]]
    wanted = Counter(product(methods, record["data"]["domains"], record["seeds"]))
    counted = Counter((row["method"], row["domain"], row["seed"]) for row in record["rows"])
    if wanted != counted or max(counted.values(), default=0) != 1:
        raise ValueError("rows: not one for each method, domain and seed")
    for i, row in enumerate(record["rows"]):
        for field, is_sound in _row_checks(row, record["data"]["classes"]):
            if not is_sound:
                raise ValueError(f"rows[{i}].{field}: it contradicts the rest of the record")
    if not all(cost["images"] for cost in record["cost"]["methods"].values()):
        raise ValueError("cost.methods: a method has seen no images")
    for group in record["examples"]["groups"] if "examples" in record else ():
        if set(group["counts"]) != set(get_args(ExampleKind)):
            raise ValueError(f"examples.counts: not those of {', '.join(get_args(ExampleKind))}")


def _row_checks(row: ResultRow, classes: list[str]) -> Iterator[tuple[str, bool]]:
    n, correct, images, scores = len(classes), row["correct"], row["images"], row["per_class"].values()
    yield "images", 0 < images <= row["divisor"]
    yield "correct", correct <= images
    yield "changed", row.get("changed", 0) <= images
    yield "accuracy", abs(row["accuracy"] - 100 * correct / row["divisor"]) <= 1e-6
    yield "per_class", set(row["per_class"]) == set(classes)
    yield "per_class", all(score["correct"] <= score["images"] for score in scores)
    yield "per_class", all((score["accuracy"] is None) == (not score["images"]) for score in scores)
    yield "per_class", sum(score["correct"] for score in scores) == correct or len(scores) < n
    yield "confusion", {len(row["confusion"]), *map(len, row["confusion"])} == {n}
    count, *parts = row["calibration"]["count"], row["calibration"]["confidence"], row["calibration"]["accuracy"]
    yield "calibration", sum(count) > 0 and {len(values) for values in parts} == {len(count)}
    pairs = [pair for values in parts for pair in zip(count, values, strict=True)]
    yield "calibration", all(0 <= value <= 100 + 1e-6 if value is not None else not counted for counted, value in pairs)
    if "diagnosis" in row:
        diagnosis = row["diagnosis"]
        aligned = {"chosen", "shares", "shares_from", "covariance_shift", "uncertainty_mean"}
        yield "diagnosis", (aligned if "chosen" in diagnosis else {"counts"}) <= set(diagnosis)
        by_class = [diagnosis[name] for name in ("predicted", "chosen", "shares", "counts") if name in diagnosis]
        yield "diagnosis", {diagnosis["classes"], *map(len, by_class)} == {n}
        yield "diagnosis", bool(diagnosis["embeddings"] and diagnosis["dim"])
        yield "diagnosis", 0 <= (diagnosis["changed"] or 0.0) <= 1
