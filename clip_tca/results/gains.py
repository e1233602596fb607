"""What a record says of gain and loss, and how far chance could do the same.

A record holds counts, not which image was right. Of two methods on the same n images, only those on which their
predictions differ can tell them apart: with D images gained and m predictions changed, the standard error of D is at
most √m, so ±(1.96 √m + 1) images is a careful 95 % interval (McNemar's, with continuity correction, taking every
changed prediction for one that counts). Where a record does not say how many changed, the class counts bound it.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from clip_tca.methods.registry import PLUS

Row = dict[str, Any]


def gains(record: dict[str, Any]) -> list[dict[str, Any]]:
    """For each domain its ``images`` and, for each method, accuracy and what it gained over its reference.

    The reference of NAME+tca is NAME where the record has it, and zero-shot otherwise.
    """
    found: dict[str, dict[str, list[Row]]] = {}
    for row in record["rows"]:
        found.setdefault(row["domain"], {}).setdefault(row["method"], []).append(row)
    return [
        {
            "domain": domain,
            "images": methods[next(iter(methods))][0]["images"],
            "methods": [_told(name, rows, methods) for name, rows in methods.items()],
        }
        for domain, methods in found.items()
    ]


def half_width(differing: float) -> float:
    """Of the 95 % interval of the number of images gained, when at most ``differing`` predictions differ."""
    return 1.96 * differing**0.5 + 1 if differing else 0.0


def most_differing(row: Row, base: Row) -> int:
    """The most images on which one of two methods can be right and the other wrong, by their counts in each class."""
    pairs = [(row["per_class"][name], base["per_class"][name]) for name in row["per_class"]]
    return sum(min(a["correct"] + b["correct"], 2 * a["images"] - a["correct"] - b["correct"]) for a, b in pairs)


def _told(name: str, rows: list[Row], methods: dict[str, list[Row]]) -> dict[str, Any]:
    told = {
        "method": name,
        "uses_labels": rows[0]["uses_labels"],
        "accuracy": fmean(row["accuracy"] for row in rows),
        "correct": [row["correct"] for row in rows],
        "diagnosis": rows[0].get("diagnosis"),
    }
    reference = name.removesuffix(PLUS) if name.removesuffix(PLUS) in methods and name.endswith(PLUS) else "zero-shot"
    if reference == name or reference not in methods:
        return told
    return told | {"reference": reference} | _gain(rows, methods[reference], reference == "zero-shot" and PLUS in name)


def _gain(rows: list[Row], base: list[Row], other: bool) -> dict[str, Any]:
    """Points gained, by shuffle and by class; ``other``: what changed was counted against another reference."""
    pairs = list(zip(rows, base, strict=True))
    images = [row["correct"] - plain["correct"] for row, plain in pairs]
    divisor = rows[0]["divisor"]
    changed = [row["diagnosis"]["changed"] * row["images"] if "diagnosis" in row else None for row in rows]
    counted = None not in changed and not other
    differing = fmean(c for c in changed if c is not None) if counted else fmean(most_differing(*p) for p in pairs)
    gained, half = fmean(images), half_width(differing)
    beyond = "gain" if gained > half else "loss" if gained < -half else "chance" if differing else "same"
    classes = {
        name: fmean(a["per_class"][name]["accuracy"] - b["per_class"][name]["accuracy"] for a, b in pairs)
        for name in rows[0]["per_class"]
        if all(row["per_class"][name]["images"] for row in rows)
    }
    return {
        "gain": 100 * gained / divisor,
        "interval": [100 * (gained - half) / divisor, 100 * (gained + half) / divisor],
        "beyond_chance": beyond,
        "pairs_known": counted,
        "gains": [100 * one / divisor for one in images],
        "classes": classes,
    }
