"""The published numbers (eval/reported/, a file for each model), shown only beside a run of that model on those images.

WATT never saw the last batch of 128 of an image folder and still divided by all images; the TCA paper divided by the
images seen. So each row carries its divisor, and WATT's rows appear twice: as published, and rescaled to the images
seen. Of models that authors have trained and not published, the numbers are in the files and in no table. A row with
``when`` is for one setting, batch size and stream, and stands beside that alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from clip_tca.core.resources import resource
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord, ModelInfo
from clip_tca.results.stream_words import stream_words

FILES = (
    "clip_vit_b16",
    "clip_vit_b16_literature",
    "clip_vit_b32",
    "clip_vit_b32_literature",
    "clip_vit_l14_literature",
    "resnet18",
    "resnet50",
    "vit_b16",
)

NOT_STATED = "not stated"
"""The divisor of a row whose authors don't name it."""


@dataclass(frozen=True)
class PublishedRow:
    """One published row: accuracy (%) by domain and on average, standard deviations, and what it is divided by.

    ``accuracy`` is empty where only the average is published.
    """

    method: str
    accuracy: dict[str, float]
    std: dict[str, float]
    average: float
    divisor: str


@lru_cache
def published(file: str = "clip_vit_b16") -> dict[str, Any]:
    """A file of published numbers."""
    content: dict[str, Any] = json.loads(resource(f"eval/reported/{file}.json").read_text(encoding="utf-8"))
    return content


def why_not(record: EvaluationRecord) -> str | None:
    """Why no published number can stand beside this record; None if it can."""
    model, title, dataset = record["model"], "published numbers are not shown", record["dataset"]
    if record["data"]["origin"].get("kind") == "embeddings":
        return f"{title}: this is a file of embeddings, and whether it holds all images is not known"
    if corrupt := record["data"]["origin"].get("corrupt"):
        return f"{title}: they are for the images as they are, and these are corrupted by {corrupt}"
    if record["data"].get("unknown_classes"):
        return f"{title}: they are for all classes, and this run has {', '.join(stream_words(record))}"
    files = [content for content in map(published, FILES) if dataset in content["datasets"]]
    known = {domain for content in files for domain in content["datasets"][dataset]["domains"]}
    if unknown := [domain for domain in record["data"]["domains"] if domain not in known]:
        return f"{title}: none are known for {f'{unknown[0]} of ' if known else ''}{dataset}"
    if model is None:
        return f"{title}: the model is not known"
    if _content(record) is None:
        of = [f"{file['models'][0]} / {file['pretrained'][0]}" for file in files if _can_be_had(file, dataset)]
        name = " / ".join(filter(None, (model["model"], model["pretrained"])))
        return f"{title}: they are for {' and '.join(of) or 'models that their authors trained'}, this is {name}"
    if record["data"]["differences"]:
        return f"{title}: they are for the whole data set, and the counts differ"
    if not _rows_in_setting(record):
        drawn = f", and this run has {', '.join(words)}" if (words := stream_words(record)) else ""
        return f"{title}: none are known for this setting and order of images{drawn}"
    return None


def in_setting(record: EvaluationRecord, when: Mapping[str, Any] | None) -> bool:
    """Whether the record was made as ``when`` says: setting, batch size and stream; what it does not say is plain.

    Without a ``when`` the authors' setting is known from their papers, and any of ours may stand beside it.
    """
    stream = cast("Mapping[str, Any]", record).get("stream") or {}
    drawn = {name: value for name, value in stream.items() if value not in (None, False, "iid")}
    if when is None:
        return not drawn
    if drawn != when.get("stream", {}) or record["setting"] != when["setting"]:
        return False
    return "batch_size" not in when or record["batch_size"] == int(when["batch_size"])


def published_source(record: EvaluationRecord) -> str:
    """Where the published rows for this record are from; empty if there are none."""
    content = _content(record)
    if content is None:
        return ""
    return next((str(row["source"]) for _, row in _rows_in_setting(record) if "source" in row), str(content["source"]))


def published_rows(record: EvaluationRecord, domains: list[str]) -> list[PublishedRow]:
    """Published rows for ``domains``: as published, and rescaled where the divisor was another; none if none apply."""
    content = _content(record)
    if content is None or why_not(record):
        return []
    benchmark = content["datasets"][record["dataset"]]
    rows = []
    for method, row in _rows_in_setting(record):
        if "accuracy" not in row and not set(benchmark["domains"]) <= set(domains):
            continue  # an average over other domains
        divisor = row.get("divided_by") or PROTOCOLS.get(row["protocol"], NOT_STATED)
        forms = [("accuracy", "average", "", divisor)]
        if "rescaled_to_kept" in row:
            forms.append(("rescaled_to_kept", "rescaled_average", ", rescaled", PROTOCOLS["kept"]))
        for key, average_key, suffix, divisor in forms:
            accuracy = dict(zip(benchmark["domains"], row.get(key, []), strict=False))
            std = dict(zip(benchmark["domains"], row.get("std", []), strict=False)) if key == "accuracy" else {}
            values = [accuracy[domain] for domain in domains if domain in accuracy]
            average = row[average_key] if len(values) == len(accuracy) else sum(values) / len(values)
            rows.append(PublishedRow(f"{method} [{row['measured_by']}{suffix}]", accuracy, std, average, divisor))
    return rows


def _rows_in_setting(record: EvaluationRecord) -> list[tuple[str, dict[str, Any]]]:
    """Methods and rows for data set and setting of a record: its own, and its column of those over many data sets."""
    if (content := _content(record)) is None:
        return []
    dataset, averages = record["dataset"], content.get("averages", {"datasets": []})
    rows = list(content["datasets"][dataset]["methods"].items())
    if dataset in averages["datasets"]:
        place = averages["datasets"].index(dataset)
        for each in averages["scenarios"]:
            about = {name: each[name] for name in ("when", "measured_by", "divided_by")}
            about["source"] = averages.get("by_dataset", averages["source"])
            for method, values in each.get("accuracy", {}).items():
                rows.append((method, {**about, "accuracy": [values[place]], "average": values[place]}))
    return [(method, row) for method, row in rows if in_setting(record, row.get("when"))]


def _content(record: EvaluationRecord) -> dict[str, Any] | None:
    """The file with numbers of the record's model on its data set."""
    model, dataset = record["model"], record["dataset"]
    return next(
        (file for file in map(published, FILES) if model and _can_be_had(file, dataset) and same_model(file, model)),
        None,
    )


def _can_be_had(file: dict[str, Any], dataset: str) -> bool:
    """Whether the file has numbers for the data set that were measured with weights that others can have."""
    return dataset in file["datasets"] and "training" not in file["datasets"][dataset]


def same_model(file: dict[str, Any], model: ModelInfo) -> bool:
    """Whether a file's numbers were measured with this model, by its name and the tag or the hash of its weights."""
    return model["model"] in file["models"] and (
        model["pretrained"] in file["pretrained"] or model["weights"] in file["weights"]
    )
