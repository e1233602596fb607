"""Reading records of ``clip-tca eval``. A file is checked once, here; what consumes a record relies on that."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from clip_tca.core.remote import Location, locate
from clip_tca.explanation import Diagnosis
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.schema import SCHEMA_VERSION, CalibrationBins, EvaluationRecord, ResultRow
from clip_tca.results.validation import validate


def read_all(paths: Iterable[str | Path]) -> dict[str, EvaluationRecord]:
    """All records of several files, by label: the name of the file, with a number if it holds several records."""
    labelled: dict[str, EvaluationRecord] = {}
    for path in paths:
        records = read(locate(path))
        for number, record in enumerate(records, 1):
            label = Path(path).stem + (f"#{number}" if len(records) > 1 else "")
            labelled[label if label not in labelled else f"{path}#{number}"] = record
    return labelled


def parse(path: Location) -> Any:
    """The content of a JSON file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; clip-tca eval --output FILE.json writes one")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None


def read(path: Location) -> list[EvaluationRecord]:
    """The records of a file: one, or those of a recipe. ValueError names the field that is damaged."""
    return checked(parse(path), path)


def checked(content: Any, path: Location) -> list[EvaluationRecord]:
    """The records in the content of a file, as :func:`read` gives them."""
    try:
        records: list[EvaluationRecord] = content.get("records", [content])
        versions = [record["schema_version"] for record in records]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a record of clip-tca eval ({error})") from None
    if other := [str(version)[:40] for version in versions if version != SCHEMA_VERSION]:
        raise ValueError(f"{path}: schema {other[0]}, this version of clip-tca reads {SCHEMA_VERSION}; evaluate again")
    if not records:
        raise ValueError(f"{path}: holds no record")
    for record in records:
        try:
            check(record)
        except ValueError as error:
            raise ValueError(f"{path}: not a whole record of clip-tca eval ({error}); evaluate again") from None
    return records


def check(record: EvaluationRecord) -> None:
    """Raise ValueError unless a record has the types of its schema and its parts agree with each other."""
    validate(record, EvaluationRecord)
    domains, methods = record["data"]["domains"], [method["name"] for method in record["methods"]]
    if not record["rows"]:
        raise ValueError("it has no rows")
    rows: list[tuple[object, ...]] = [(row["method"], row["domain"], row["seed"]) for row in record["rows"]]
    _check_complete("rows", rows, product(methods, domains, record["seeds"]))
    for i, row in enumerate(record["rows"]):
        try:
            _check_row(row, record["data"]["classes"])
        except ValueError as error:
            raise ValueError(f"rows[{i}]: {error}") from None
    if any(not cost["images"] for cost in record["cost"]["methods"].values()):
        raise ValueError("cost.methods: a method has seen no images")
    if (forgetting := record.get("forgetting")) is not None:
        references = {row["domain"] for row in forgetting}
        if len(references) != 1:
            raise ValueError(f"forgetting: {len(references)} source-like domains, not 1")
        adapting = [name for name in methods if name != ZERO_SHOT]
        others = [domain for domain in domains if domain not in references]
        _check_complete("forgetting", [(r["method"], r["adapted_to"]) for r in forgetting], product(adapting, others))


def _check_complete(field: str, present: list[tuple[object, ...]], expected: Iterable[tuple[object, ...]]) -> None:
    """One entry for each combination, and no other."""
    wanted = set(expected)
    if missing := sorted(wanted - set(present), key=str):
        raise ValueError(f"{field}: there is none for {', '.join(map(str, missing[0]))}")
    if len(present) != len(wanted):
        wrong = next(key for key in present if key not in wanted or present.count(key) > 1)
        raise ValueError(f"{field}: {', '.join(map(str, wrong))} is unknown or a duplicate")


def _check_row(row: ResultRow, classes: list[str]) -> None:
    correct, images, divisor, scores = row["correct"], row["images"], row["divisor"], row["per_class"]
    if not 0 <= correct <= images <= divisor or not images:
        raise ValueError(f"{correct} correct of {images} images, divided by {divisor}")
    if abs(row["accuracy"] - 100 * correct / divisor) > 1e-6:
        raise ValueError(f"accuracy {row['accuracy']} of {row['method']} is not {correct}/{divisor}")
    if set(scores) != set(classes):
        raise ValueError("per_class: its classes are not those of the data")
    for name, score in scores.items():
        if score["correct"] > score["images"] or (score["accuracy"] is None) != (score["images"] == 0):
            raise ValueError(f"per_class.{name}: its figures contradict each other")
    if len(scores) == len(classes) and sum(score["correct"] for score in scores.values()) != correct:
        raise ValueError(f"per_class: the correct predictions are not {correct} in all")
    confusion = row.get("confusion")
    if confusion is not None and {len(confusion), *map(len, confusion)} != {len(classes)}:
        raise ValueError(f"confusion: not a matrix of {len(classes)} × {len(classes)}")
    if "diagnosis" in row:
        _check_diagnosis(row["diagnosis"], len(classes))
    if "calibration" in row:
        _check_calibration(row["calibration"])


def _check_calibration(bins: CalibrationBins) -> None:
    count, confidence, accuracy = bins["count"], bins["confidence"], bins["accuracy"]
    if not len(count) == len(confidence) == len(accuracy) or not sum(count):
        raise ValueError("calibration: its lists are not of one length, or count no image")
    for images, values in zip(count, zip(confidence, accuracy, strict=True), strict=True):
        if any((value is None) != (not images) or not 0 <= (value or 0.0) <= 100 + 1e-6 for value in values):
            raise ValueError(f"calibration: {values} of {images} images")


def _check_diagnosis(diagnosis: Diagnosis, classes: int) -> None:
    aligned = ("chosen", "shares", "shares_from", "covariance_shift", "uncertainty_mean")
    needed = aligned if "chosen" in diagnosis else ("counts",)
    if missing := [name for name in needed if name not in diagnosis]:
        raise ValueError(f"diagnosis: {missing[0]!r} is missing")
    by_class = [diagnosis[name] for name in ("predicted", "chosen", "shares", "counts") if name in diagnosis]
    if diagnosis["classes"] != classes or any(len(listed) != classes for listed in by_class):
        raise ValueError(f"diagnosis: not of {classes} classes")
    if not diagnosis["embeddings"] or not diagnosis["dim"]:
        raise ValueError("diagnosis: of no embeddings")
    if not 0 <= (diagnosis["changed"] or 0.0) <= 1:
        raise ValueError(f"diagnosis: {diagnosis['changed']} of the predictions change")
