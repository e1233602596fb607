"""The published numbers (eval/reported/), shown only beside a run of the same model on the same images.

WATT never saw the last batch of 128 and still divided by all images; the TCA paper divided by the images seen. So each
row carries its divisor, and WATT's rows appear twice: as published, and rescaled to the images seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clip_tca.core.resources import resource
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord

MODELS = ("ViT-B-16", "ViT-B-16-quickgelu")
OPENAI = "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f"
"""SHA-256 of OpenAI's ViT-B-16.pt, as in its public address."""


@dataclass(frozen=True)
class PublishedRow:
    """One published row: accuracy (%) by domain and on average, standard deviations, and what it is divided by."""

    method: str
    accuracy: dict[str, float]
    std: dict[str, float]
    average: float
    divisor: str


def published() -> dict[str, Any]:
    """The file of published numbers."""
    content: dict[str, Any] = json.loads(resource("eval/reported/clip_vit_b16.json").read_text(encoding="utf-8"))
    return content


def why_not(record: EvaluationRecord) -> str | None:
    """Why no published number can stand beside this record; None if it can."""
    model, title = record["model"], "published numbers are not shown"
    if record["data"]["origin"].get("kind") == "embeddings":
        return f"{title}: this is a file of embeddings, and whether it holds all images is not known"
    benchmark = published()["datasets"].get(record["dataset"])
    if benchmark is None or not set(record["data"]["domains"]) <= set(benchmark["domains"]):
        return f"{title}: none are known for {record['dataset']}"
    if model is None:
        return f"{title}: the model is not known"
    if model["model"] not in MODELS or not (model["pretrained"] == "openai" or model["weights"] == OPENAI):
        name = " / ".join(filter(None, (model["model"], model["pretrained"])))
        return f"{title}: they are for ViT-B-16-quickgelu / openai, this is {name}"
    if record["data"]["differences"]:
        return f"{title}: they are for the whole data set, and the counts differ"
    return None


def published_rows(record: EvaluationRecord, domains: list[str]) -> list[PublishedRow]:
    """Published rows for ``domains``: as published, and rescaled where the divisor was another; none if none apply."""
    if why_not(record):
        return []
    benchmark = published()["datasets"][record["dataset"]]
    rows = []
    for method, row in benchmark["methods"].items():
        forms = [("accuracy", "average", "", PROTOCOLS[row["protocol"]])]
        if "rescaled_to_kept" in row:
            forms.append(("rescaled_to_kept", "rescaled_average", ", rescaled", PROTOCOLS["kept"]))
        for key, average_key, suffix, divisor in forms:
            accuracy = dict(zip(benchmark["domains"], row[key], strict=True))
            std = dict(zip(benchmark["domains"], row.get("std", []), strict=False)) if key == "accuracy" else {}
            values = [accuracy[domain] for domain in domains if domain in accuracy]
            average = row[average_key] if len(values) == len(accuracy) else sum(values) / len(values)
            rows.append(PublishedRow(f"{method} [{row['measured_by']}{suffix}]", accuracy, std, average, divisor))
    return rows
