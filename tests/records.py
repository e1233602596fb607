"""Records for tests of the report: small, and with names that try to be markup."""

from __future__ import annotations

import copy
from typing import Any

import clip_tca

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "</style></title><!-- größe ☃ 犬 'q' & &amp; \" -->",
)
ORACLE = "linear-tca:reference"


def honest(**options: Any) -> dict[str, Any]:
    """A record of made-up embeddings, an oracle among its methods."""
    methods = ["zero-shot", "linear-tca", "conditional-tca", ORACLE]
    return clip_tca.evaluate(
        "synthetic", **{"methods": methods, "examples": 2, "domains": ["clean", "skewed"], **options}
    )


def hostile(record: dict[str, Any]) -> dict[str, Any]:
    """The record with markup, quotes, other alphabets and broken Unicode wherever a name may stand."""
    odd = copy.deepcopy(record)
    script, quotes, end = HOSTILE
    classes = {old: f"{HOSTILE[i % 3]} {i}" for i, old in enumerate(odd["data"]["classes"])}
    domains = {"clean": f"clean \u202e{quotes}", "skewed": f"skewed \udcff\n{end}"}
    methods = {"conditional-tca": f"conditional {script}"}
    odd["dataset"] = f"set {script}"
    odd["data"]["classes"] = list(classes.values())
    odd["data"]["domains"] = {domains[name]: about for name, about in odd["data"]["domains"].items()}
    odd["data"]["origin"]["path"] = quotes
    odd["data"]["differences"] = [end]
    odd["data"]["ignored"] = [script]
    weights = {"pretrained": quotes, "weights": end, "precision": script, "device": quotes}
    odd["model"] = {"model": script, **weights, "preprocessing": {script: quotes}}
    odd["prompts"] = {"name": quotes, "templates": [f"{script} {{}}"], "class_names": end, "classes": []}
    odd["versions"][script] = end
    odd["commit"] = quotes
    for method in odd["methods"]:
        method["name"] = methods.get(method["name"], method["name"])
        method["parameters"][script] = end
    for row in odd["rows"]:
        row["method"], row["domain"] = methods.get(row["method"], row["method"]), domains[row["domain"]]
        row["per_class"] = {classes[name]: score for name, score in row["per_class"].items()}
    for group in odd["examples"]["groups"]:
        group["method"], group["domain"] = methods.get(group["method"], group["method"]), domains[group["domain"]]
        for kind in ("fixed", "broken", "still_wrong"):
            for image in group[kind]:
                image.update({key: classes[image[key]] for key in ("true", "before", "after")})
                image.update(name=quotes, thumbnail=f"AAAA{quotes}")
    odd["cost"]["methods"] = {methods.get(name, name): spent for name, spent in odd["cost"]["methods"].items()}
    return odd


def scored(record: dict[str, Any], correct: dict[str, int], **changes: Any) -> dict[str, Any]:
    """The record with so many right answers of 1000 in each domain, by method; other methods have 100."""
    other = {**copy.deepcopy(record), **changes}
    for row in other["rows"]:
        give(row, correct.get(row["method"], 100))
    return other


def give(row: dict[str, Any], right: int) -> None:
    """Let a row have so many right answers of 1000, all of the first class."""
    row.update(correct=right, images=1000, divisor=1000, accuracy=right / 10)
    first, *rest = row["per_class"].values()
    first.update(correct=right, images=1000, accuracy=right / 10)
    for score in rest:
        score.update(correct=0, images=0, accuracy=None)
