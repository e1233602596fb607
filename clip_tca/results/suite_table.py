"""The table over many data sets, where records of all are there: their average is what most of the literature prints.

The files of published numbers (:mod:`clip_tca.results.published`) have ``averages``: a list of data sets, and for each
scenario (setting, batch size, stream) the published averages over them, with ``accuracy`` on each where that is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, cast

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.published import FILES, in_setting, published, same_model
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord
from clip_tca.results.table import Table, has_batches, model_line, summary


def suite_tables(records: Sequence[EvaluationRecord]) -> list[Table]:
    """A table for each group of records that were made alike, if all data sets of a list are among them."""
    groups: dict[str, dict[str, EvaluationRecord]] = {}
    for record in records:
        groups.setdefault(_made(record), {}).setdefault(record["dataset"], record)
    suites = {tuple(file["averages"]["datasets"]): file["averages"]["title"] for file in _files()}
    return [
        _table(title, [group[name] for name in names])
        for group in groups.values()
        for names, title in suites.items()
        if set(names) <= set(group)
    ]


def _files() -> list[dict[str, Any]]:
    return [file for file in map(published, FILES) if "averages" in file]


def _made(record: EvaluationRecord) -> str:
    """What records must share to be averaged: how they were made, whatever the data."""
    keys = ("setting", "protocol", "batch_size", "stream", "seeds", "model")
    content = cast("Mapping[str, Any]", record)
    prompts = record["prompts"]["name"] if record["prompts"] else None
    return json.dumps([[content.get(key) for key in keys], prompts, [method["name"] for method in record["methods"]]])


def _table(title: str, records: list[EvaluationRecord]) -> Table:
    first = records[0]
    accuracies = [
        {method: fmean(mean for mean, _ in domains.values()) for method, domains in summary(record).items()}
        for record in records
    ]
    zero_shot = fmean(each[ZERO_SHOT] for each in accuracies) if ZERO_SHOT in accuracies[0] else None
    oracles = {method["name"] for method in first["methods"] if method["uses_labels"]}
    measured = []
    for method in accuracies[0]:
        values = [each[method] for each in accuracies]
        gain = "" if zero_shot is None else f"{fmean(values) - zero_shot:+.2f}"
        name = f"{method} (oracle: uses true labels)" if method in oracles else method
        cells = [f"{value:.2f}" for value in (*values, fmean(values))]
        measured.append([name, *cells, gain, PROTOCOLS[first["protocol"]]])
    batches = f", batch {first['batch_size']}" if has_batches(first) else ""
    lines = [f"Accuracy (%) on {title}: {first['setting']}, protocol {first['protocol']}{batches}."]
    if first["model"]:
        lines.append(f"Model {model_line(first['model'])}.")
    head = ["method", *(record["dataset"] for record in records), "average", "gain", "divided by"]
    sections = [("measured", measured), *_reported(records)]
    reasons = [f"{record['dataset']}: {reason}" for record in records if (reason := _other_images(record))]
    notes = [f"Published averages are not shown: {reasons[0]}."] if reasons else []
    return Table(lines, head, sections, notes)


def _other_images(record: EvaluationRecord) -> str | None:
    """Why its images are not those of the published averages; None if they are."""
    corrupt = record["data"]["origin"].get("corrupt")
    return f"corrupted by {corrupt}" if corrupt else next(iter(record["data"]["differences"]), None)


def _reported(records: list[EvaluationRecord]) -> list[tuple[str, list[list[str]]]]:
    """Published averages for the model and the setting of the records, if all images are those of the authors."""
    first, model = records[0], records[0]["model"]
    if model is None or any(_other_images(record) for record in records):
        return []
    sections = []
    for file in _files():
        averages = file["averages"]
        names = [record["dataset"] for record in records]
        if not same_model(file, model) or averages["datasets"] != names:
            continue
        rows = [
            [f"{method} [{each['measured_by']}]", *columns, f"{value:.1f}", "", each["divided_by"]]
            for each in averages["scenarios"]
            if in_setting(first, each["when"])
            for method, value in each["averages"].items()
            for columns in [_by_dataset(each, method, names)]
        ]
        sections += [(f"reported ({averages['source']})", rows)] if rows else []
    return sections


def _by_dataset(scenario: dict[str, Any], method: str, names: list[str]) -> list[str]:
    """What is published for a method on each data set, or gaps."""
    values = scenario.get("accuracy", {}).get(method)
    return [f"{value:.1f}" for value in values] if values else [""] * len(names)
