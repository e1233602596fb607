"""Records as tables. Every row says what its accuracy is divided by."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from clip_tca.results import published
from clip_tca.results.names import PROTOCOLS


@dataclass
class Table:
    """Lines above, a head, sections of rows (the first cell is text, the last the divisor), lines below."""

    title: list[str]
    head: list[str]
    sections: list[tuple[str, list[list[str]]]]
    notes: list[str] = field(default_factory=list)


def summary(record: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and population standard deviation over seeds, by method and domain."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        values.setdefault(row["method"], {}).setdefault(row["domain"], []).append(row["accuracy"])
    return {
        method: {domain: (fmean(found), pstdev(found)) for domain, found in domains.items()}
        for method, domains in values.items()
    }


def table(record: dict[str, Any]) -> Table:
    """Measured rows, then the published ones."""
    domains = list(record["data"]["domains"])
    head = ["method", *domains, "average", "gain", "divided by"]
    sections = [("measured", _measured(record, domains))]
    return Table(_title(record), head, [*sections, *_reported(record, domains)], _notes(record))


def comparison(records: dict[str, dict[str, Any]]) -> list[Table]:
    """One table for each data set, with the measured rows of all records and one set of published ones."""
    tables = []
    for dataset in dict.fromkeys(map(_dataset, records.values())):
        mine = {name: record for name, record in records.items() if _dataset(record) == dataset}
        domains = list(dict.fromkeys(domain for record in mine.values() for domain in record["data"]["domains"]))
        title, notes, sections = [], [], []
        for name, record in mine.items():
            title += [f"{name}: {line}" for line in _title(record)]
            notes += [f"{name}: {line}" for line in _notes(record)]
            sections.append((name, _measured(record, domains)))
        sections += next(filter(None, (_reported(record, domains) for record in mine.values())), [])
        tables.append(Table(title, ["method", *domains, "average", "gain", "divided by"], sections, notes))
    return tables


def _dataset(record: dict[str, Any]) -> str:
    """Its name: of a folder of one's own, the folder's."""
    name: str = record["dataset"]
    return f"{name} {record['data']['name']}" if name == "folder" and record["data"].get("name") else name


def _reported(record: dict[str, Any], domains: list[str]) -> list[tuple[str, list[list[str]]]]:
    """The published rows that can stand beside the record, as a section; no section where none can."""
    lines = [
        [row.method, *[_cell(row.accuracy[d], row.std.get(d)) for d in domains], _cell(row.average), "", row.divisor]
        for row in published.rows(record, domains)
    ]
    return [(f"reported ({published.published()['source']})", lines)] if lines else []


def _measured(record: dict[str, Any], domains: list[str]) -> list[list[str]]:
    oracles = {method["name"] for method in record["methods"] if method["uses_labels"]}
    several = len(record["seeds"]) > 1
    means = summary(record)
    base = _average(means["zero-shot"]) if "zero-shot" in means else None
    lines = []
    for method, found in means.items():
        name = f"{method} (oracle: uses true labels)" if method in oracles else method
        cells = [_cell(*(found[d] if several else found[d][:1])) if d in found else "" for d in domains]
        gain = "" if base is None else f"{_average(found) - base:+.2f}"
        lines.append([name, *cells, _cell(_average(found)), gain, PROTOCOLS[record["protocol"]]])
    return lines


def _average(found: dict[str, tuple[float, float]]) -> float:
    return fmean(mean for mean, _ in found.values())


def _cell(value: float, std: float | None = None) -> str:
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"


def has_batches(record: dict[str, Any]) -> bool:
    """Whether anything depends on the size of batches: the setting, the protocol, or a base method."""
    whole = record["setting"] == "transductive" and record["protocol"] == "full"
    return not whole or any("base" in method for method in record["methods"])


def _title(record: dict[str, Any]) -> list[str]:
    batches = f", batch {record['batch_size']}" if has_batches(record) else ""
    seeds = len(record["seeds"])
    shuffles = f", mean ± std of {seeds} shuffles" if seeds > 1 else ""
    lines = [
        f"Accuracy (%) on {_dataset(record)}: {record['setting']}, protocol {record['protocol']}{batches}{shuffles}."
    ]
    model, prompts = record["model"], record["prompts"]
    if model:
        weights = f"{model['pretrained']}, " if model["pretrained"] else ""
        weights += f"sha256 {model['weights'][:12]}"
        lines.append(f"Model {model['model']} ({weights}), {model['precision']}, {model['device']}.")
    if prompts:
        count = len(prompts["templates"])
        shown = f'"{prompts["templates"][0]}"' if count == 1 else f"{count} templates"
        lines.append(f"Prompts {prompts['name']}: {shown}, {prompts['class_names']} class names.")
    return lines


def _notes(record: dict[str, Any]) -> list[str]:
    notes = []
    kind = record["data"]["origin"]["kind"]
    if kind == "synthetic":
        notes.append("These are made-up embeddings, not a benchmark.")
    if record["dataset"] == "demo":
        notes.append(
            "These are the demo's numbers, not the benchmark's. For the benchmark: clip-tca eval --dataset pacs"
        )
    if differences := record["data"]["differences"]:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        notes.append(f"WARNING: counts differ from the published ones: {'; '.join(differences[:4])}{more}.")
    if ignored := record["data"].get("ignored"):
        more = ", …" if len(ignored) > 3 else ""
        notes.append(f"Found and not used: {', '.join(ignored[:3])}{more}.")
    if left_out := record["data"]["left_out"]:
        notes.append(f"WARNING: {left_out} images could not be read and are in no count (--skip-bad).")
    if kind != "synthetic" and record["dataset"] != "demo" and (reason := published.why_not(record)):
        notes.append(f"{reason[0].upper()}{reason[1:]}.")
    return notes
