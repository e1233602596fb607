"""The published numbers (eval/reported/, a file for each model), shown only beside a run of that model on those images.

WATT never saw the last batch of 128 of an image folder and still divided by all images; the TCA paper divided by the
images seen. So each row has its divisor, and WATT's rows appear twice: as published, and rescaled to the images seen. A
row with ``when`` stands only beside that setting, batch size and stream. ``averages`` are over a list of data sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from clip_tca.core.folders import resource
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord

FILES = tuple(sorted(path.stem for path in resource("eval/reported/clip_vit_b16.json").parent.glob("*.json")))


@dataclass(frozen=True)
class PublishedRow:
    """Accuracy (%) by domain or data set, empty where only the average is published, and what it is divided by."""

    method: str
    accuracy: dict[str, float]
    std: dict[str, float]
    average: float
    divisor: str
    source: str = field(default="", compare=False)


@lru_cache
def published(file: str = "clip_vit_b16") -> dict[str, Any]:
    """A file of published numbers."""
    content: dict[str, Any] = json.loads(resource(f"eval/reported/{file}.json").read_text(encoding="utf-8"))
    return content


def why_not(record: EvaluationRecord) -> str | None:
    """Why no published number can be compared with this record; None if some can."""
    model, dataset, data = record["model"], record["dataset"], record["data"]
    if data["origin"].get("kind") == "embeddings":
        return "this is a file of embeddings, and whether it holds all images is not known"
    if corrupt := data["origin"].get("corrupt"):
        return f"they are for the original images, and these are corrupted by {corrupt}"
    files = [file for file in map(published, FILES) if _known(file, dataset)]
    known = {domain for file in files for domain in _known(file, dataset)["domains"]}
    if unknown := [domain for domain in data["domains"] if domain not in known]:
        return f"none are known for {f'{unknown[0]} of ' if known else ''}{dataset}"
    if model is None:
        return "the model is not known"
    if _content(record) is None:
        public = [file for file in files if "training" not in _known(file, dataset)]
        of = [f"{file['models'][0]} / {file['pretrained'][0]}" for file in public]
        name = " / ".join(filter(None, (model["model"], model["pretrained"])))
        return f"they are for {' and '.join(of) or 'models that their authors trained'}, this is {name}"
    if data["differences"]:
        return "they are for the whole data set, and the counts differ"
    return None if _rows_in_setting(record) else "none are known for this setting and order of images"


def published_rows(record: EvaluationRecord, domains: list[str]) -> list[PublishedRow]:
    """Published rows for ``domains``: as published, and rescaled where the divisor was another; none if none apply."""
    content = _content(record)
    if content is None or why_not(record):
        return []
    of_file = _known(content, record["dataset"])["domains"]
    rows = []
    for method, row in _rows_in_setting(record):
        if "accuracy" not in row and not set(of_file) <= set(domains):
            continue  # an average over other domains
        divisor = row.get("divided_by") or PROTOCOLS.get(row["protocol"], "not stated")
        forms = [("accuracy", "average", "", divisor)]
        if "rescaled_to_kept" in row:
            forms.append(("rescaled_to_kept", "rescaled_average", ", rescaled", PROTOCOLS["kept"]))
        for key, average_key, suffix, divisor in forms:
            accuracy = dict(zip(of_file, row.get(key, []), strict=False))
            std = dict(zip(of_file, row.get("std", []), strict=False)) if key == "accuracy" else {}
            values = [accuracy[domain] for domain in domains if domain in accuracy]
            average = row[average_key] if len(values) == len(accuracy) else sum(values) / len(values)
            name, source = f"{method} [{row['measured_by']}{suffix}]", row.get("source", content["source"])
            rows.append(PublishedRow(name, accuracy, std, average, divisor, source))
    return rows


def suites() -> dict[tuple[str, ...], str]:
    """The lists of data sets over which averages are published, with their titles."""
    files = [file["averages"] for file in map(published, FILES) if "averages" in file]
    return {tuple(averages["datasets"]): averages["title"] for averages in files}


def _known(file: dict[str, Any], dataset: str) -> dict[str, Any]:
    """What a file has on a data set, or on a list of data sets, which are domains then; empty if nothing."""
    averages = file.get("averages", {})
    if dataset == averages.get("title"):
        return {"domains": averages["datasets"], "methods": {}}
    known: dict[str, Any] = file["datasets"].get(dataset, {})
    return known


def _content(record: EvaluationRecord) -> dict[str, Any] | None:
    """The file with numbers of the record's model on its data set, with weights that others can have."""
    if (model := record["model"]) is None:
        return None
    for file in map(published, FILES):
        is_same = model["pretrained"] in file["pretrained"] or model["weights"] in file["weights"]
        known = _known(file, record["dataset"])
        if known and "training" not in known and is_same and model["model"] in file["models"]:
            return file
    return None


def _rows_in_setting(record: EvaluationRecord) -> list[tuple[str, dict[str, Any]]]:
    """Methods and rows for data set and setting of a record: its own, and its column of those over many data sets."""
    if (content := _content(record)) is None:
        return []
    dataset, averages = record["dataset"], content.get("averages", {"datasets": [], "scenarios": []})
    rows = list(_known(content, dataset)["methods"].items())
    for scenario in averages["scenarios"]:
        about = {name: scenario[name] for name in ("when", "measured_by", "divided_by")}
        by_dataset = scenario.get("accuracy", {})
        if dataset in averages["datasets"]:
            about["source"], column = (
                averages.get("by_dataset", averages["source"]),
                averages["datasets"].index(dataset),
            )
            for method, values in by_dataset.items():
                rows.append((method, {**about, "accuracy": [values[column]], "average": values[column]}))
        elif dataset == averages["title"]:
            about["source"] = averages["source"]
            for method, average in scenario["averages"].items():
                rows.append((method, {**about, "accuracy": by_dataset.get(method, []), "average": average}))
    stream = cast("Mapping[str, Any]", record["stream"])
    run = {**record, "stream": {name: value for name, value in stream.items() if value not in (None, False, "iid")}}
    return [(method, row) for method, row in rows if {**run, "stream": {}, **row.get("when", {})} == run]
