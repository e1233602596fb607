"""The rows of a board: one for each method of each record, and how rows that look alike are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from clip_tca.datasets.formats.registry import FORMATS
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.report.run import Run
from clip_tca.report.sources import files, is_study
from clip_tca.results.record import checked, parse
from clip_tca.results.schema import EvaluationRecord, MethodInfo
from clip_tca.results.stream_words import stream_words
from clip_tca.results.table import accuracy_table, dataset_name, head_line, model_line, summary

SHORT = 40
"""Characters of domain names that stand in the name of a data set; more are counted."""

TUNED = "tuned on test"
"""How a method used labels whose authors chose its options by the accuracy on test data."""

Details = dict[str, str]


@dataclass(frozen=True)
class Entry:
    """One method of one record.

    ``traits`` are what rows are filtered and compared by. ``details`` are, for some traits, what may tell two of the
    same name apart: :func:`told_apart` adds to the name those that do. Accuracies are in percent, ``deviation`` is over
    runs; ``measures`` are means over runs and domains, of those that every one has.
    """

    file: Path
    label: str
    traits: dict[str, str]
    details: dict[str, Details]
    domains: dict[str, tuple[float, float]]
    average: float
    deviation: float
    gain: float | None
    runs: int
    oracle: bool
    measures: dict[str, float]
    facts: dict[str, Any]
    warnings: list[str]


def read_entries(paths: Iterable[str | Path]) -> tuple[list[Entry], list[Path]]:
    """The rows of all records, and the files in given folders that are of another command.

    Files are read one by one: with confusion matrices of many classes they are large.

    Raises:
        ValueError: A named file is not a record of ``clip-tca eval``, or a file has the content of another one.
    """
    given = list(map(Path, paths))
    entries: list[Entry] = []
    left_out: list[Path] = []
    seen: dict[str, Path] = {}
    for path in files(given):
        if path.suffix.lower() in FORMATS:
            made = f"clip-tca eval --dataset {path} --output FILE.json makes one"
            raise ValueError(f"{path}: an embedding file; a board is made of records ({made})")
        content = parse(path)
        if other := _other(content):
            if path in given:
                raise ValueError(f"{path}: a record of clip-tca {other}; a board takes records of clip-tca eval only")
            left_out.append(path)
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in seen:
            raise ValueError(f"{path}: the same content as {seen[digest]}; leave one of them out")
        seen[digest] = path
        records = checked(content, path)
        for number, record in enumerate(records, 1):
            label = path.name + (f" #{number}" if len(records) > 1 else "")
            entries += _entries(record, path, label)
    if not entries:
        raise ValueError(f"{given[0]}: no record of clip-tca eval in this folder, only those of other commands")
    for trait, within in {"data set": (), "encoder": (), "options": ("method", "setting")}.items():
        entries = told_apart(entries, trait, within)
    return entries, left_out


def _other(content: object) -> str | None:
    """The other command that wrote a record, if its content says so."""
    if is_study(content):
        return "study"
    return "adapt" if isinstance(content, dict) and content.get("command") == "adapt" else None


def told_apart(entries: Sequence[Entry], trait: str, within: Sequence[str] = ()) -> list[Entry]:
    """The rows with the details of a trait in its name, where they differ between rows of one name."""

    def key(entry: Entry) -> tuple[str, ...]:
        return tuple(entry.traits[name] for name in (trait, *within))

    values: dict[tuple[str, ...], dict[str, set[str | None]]] = {}
    names = list(dict.fromkeys(name for entry in entries for name in entry.details[trait]))
    for entry in entries:
        group = values.setdefault(key(entry), {name: set() for name in names})
        for name in names:
            group[name].add(entry.details[trait].get(name))
    found = []
    for entry in entries:
        differing = [text for name, text in entry.details[trait].items() if len(values[key(entry)][name]) > 1]
        more, old = ", ".join(filter(None, differing)), entry.traits[trait]
        found.append(replace(entry, traits={**entry.traits, trait: f"{old} ({more})" if old and more else old or more}))
    return found


def _entries(record: EvaluationRecord, path: Path, label: str) -> Iterator[Entry]:
    run, scores, seeds = Run(label, record), summary(record), len(record["seeds"])
    warnings = [note for note in accuracy_table(record).notes if note.startswith("WARNING")]
    for method in record["methods"]:
        name = method["name"]
        oracle = name in run.oracles
        by_seed: dict[int, list[float]] = {}
        for row in record["rows"]:
            if row["method"] == name:
                by_seed.setdefault(row["seed"], []).append(row["accuracy"])
        parameters, tuned = _parameters(method), method.get("tuned_on_test")
        labels = "true labels" if oracle else TUNED if tuned else "none"
        yield Entry(
            path,
            label,
            {"method": run.method_label(name), "options": "", **_traits(record, method), "labels": labels},
            {"options": parameters, "data set": _data_details(record), "encoder": _encoder_details(record)},
            scores[name],
            run.average(name),
            pstdev(map(fmean, by_seed.values())),
            run.average(name) - run.average(ZERO_SHOT) if run.has_zero_shot else None,
            seeds,
            oracle,
            _measures(record, name),
            {**_facts(record, parameters), "Chosen on test data": tuned},
            warnings,
        )


def _traits(record: EvaluationRecord, method: MethodInfo) -> dict[str, str]:
    model, prompts = record["model"], record["prompts"]
    without = "own head" if head_line(model) else "stored"
    whole = "base" not in method or method.get("nature") == "transductive"
    alone = method["name"] == ZERO_SHOT or (record["setting"] == "transductive" and whole)
    return {
        "data set": dataset_name(record),
        "encoder": " ".join(filter(None, (model["model"], model["pretrained"]))) if model else "not stated",
        "prompts": f"{prompts['name']}, {prompts['class_names']} names" if prompts else without,
        "setting": record["setting"],
        "batch": "" if alone and record["protocol"] == "full" else str(record["batch_size"]),
        "protocol": record["protocol"],
        "stream": ", ".join(stream_words(record)),
        "nature": method.get("nature", ""),
    }


def _data_details(record: EvaluationRecord) -> Details:
    """Domains, images and seed: averages over other images are not comparable."""
    domains, seed = record["data"]["domains"], record["data"]["origin"].get("seed")
    names = ", ".join(domains)
    if len(names) > SHORT:
        names = f"{len(domains)} domains {hashlib.sha256(names.encode(errors='replace')).hexdigest()[:6]}"
    images = f"{sum(domain['images'] for domain in domains.values()):,} images"
    details = {"domains": names, "images": images}
    return details | ({} if seed is None else {"seed": f"seed {seed}"})


def _encoder_details(record: EvaluationRecord) -> Details:
    model = record["model"]
    return {"weights": f"sha256 {model['weights'][:8]}", "precision": model["precision"]} if model else {}


def _parameters(method: MethodInfo) -> Details:
    base = method.get("base")
    named = {f"{base['name']} {key}": value for key, value in base["parameters"].items()} if base else {}
    return {key: f"{key} = {value}" for key, value in {**named, **method["parameters"]}.items()}


def _measures(record: EvaluationRecord, method: str) -> dict[str, float]:
    values: dict[str, list[float | None]] = {}
    rows = [row for row in record["rows"] if row["method"] == method]
    for row in rows:
        for name, value in row.get("metrics", {}).items():
            values.setdefault(name, []).append(value)
    complete = {name: [value for value in given if value is not None] for name, given in values.items()}
    return {name: fmean(given) for name, given in complete.items() if len(given) == len(rows)}


def _facts(record: EvaluationRecord, parameters: Details) -> dict[str, Any]:
    """What identifies the run, for the drawer of its row."""
    model = record["model"]
    return {
        "Model": model_line(model) if model else None,
        "Classifier": head_line(model),
        "Parameters": ", ".join(parameters.values()),
        "Commit": record["commit"],
    }
