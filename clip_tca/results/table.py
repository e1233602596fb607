"""Tables of accuracy. Every row says what its accuracy is divided by."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.published import published_rows, published_source, why_not
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord, MethodInfo, ModelInfo

HEADLINE = ("conditional-tca", "linear-tca")
"""The methods that the first line speaks of."""

TRAINED_ON = {"pacs": "photo", "officehome": "Real World"}
"""The benchmarks' domains that the bundled model has seen in training."""


@dataclass
class Table:
    """Lines above, a head, sections of rows (the first cell is text, the last the divisor), lines below."""

    title: list[str]
    head: list[str]
    sections: list[tuple[str, list[list[str]]]]
    notes: list[str] = field(default_factory=list)


def summary(record: EvaluationRecord) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and population standard deviation of the accuracy (%) over seeds, by method and domain."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        values.setdefault(row["method"], {}).setdefault(row["domain"], []).append(row["accuracy"])
    return {
        method: {domain: (fmean(accuracies), pstdev(accuracies)) for domain, accuracies in domains.items()}
        for method, domains in values.items()
    }


def accuracy_table(record: EvaluationRecord) -> Table:
    """Measured rows, then the published ones."""
    domains = list(record["data"]["domains"])
    sections = [("measured", _measured(record, domains)), *_reported(record, domains)]
    head = _head([f"{domain} (seen)" if domain == _seen(record) else domain for domain in domains])
    return Table(_title(record), head, sections, _notes(record))


def headline(record: EvaluationRecord) -> list[str]:
    """What adaptation gained or lost, in one line; none where nothing adapts or there is no zero-shot to compare with.

    It is of the first of :data:`HEADLINE` in the record, else of its first method: never chosen by the accuracies.
    """
    methods = summary(record)
    adapting = [method["name"] for method in record["methods"] if not method["uses_labels"]]
    name = next((name for name in (*HEADLINE, *adapting) if name in adapting and name != ZERO_SHOT), None)
    if name is None or ZERO_SHOT not in methods:
        return []
    before, after = _average(methods[ZERO_SHOT]), _average(methods[name])
    where = " on average" if len(methods[name]) > 1 else ""
    points = f"{abs(after - before):.2f} points"
    if points == "0.00 points":
        return [f"{name} neither gains nor loses against zero-shot{where}: {after:.2f}."]
    change = f"{before:.2f} → {after:.2f}."
    if after > before:
        return [f"{name} gains {points} over zero-shot{where}, without labels: {change}"]
    return [f"{name} loses {points} against zero-shot{where}: {change}"]


def comparison(records: dict[str, EvaluationRecord]) -> list[Table]:
    """One table for each data set, with the measured rows of all records and one set of published ones."""
    by_dataset: dict[str, dict[str, EvaluationRecord]] = {}
    for label, record in records.items():
        by_dataset.setdefault(_dataset(record), {})[label] = record
    tables = []
    for group in by_dataset.values():
        domains = list(dict.fromkeys(domain for record in group.values() for domain in record["data"]["domains"]))
        title, notes, sections = [], [], []
        for label, record in group.items():
            title += [f"{label}: {line}" for line in _title(record)]
            notes += [f"{label}: {line}" for line in _notes(record)]
            sections.append((label, _measured(record, domains)))
        sections += next(filter(None, (_reported(record, domains) for record in group.values())), [])
        tables.append(Table(title, _head(domains), sections, notes))
    return tables


def has_batches(record: EvaluationRecord) -> bool:
    """Whether results depend on the batch size: by the setting, the protocol, or a base method."""
    whole = record["setting"] == "transductive" and record["protocol"] == "full"
    return not whole or any(_in_batches(method, record) for method in record["methods"])


def model_line(model: ModelInfo) -> str:
    """Model, weights, precision and device."""
    weights = f"{model['pretrained']}, " if model["pretrained"] else ""
    return f"{model['model']} ({weights}sha256 {model['weights'][:12]}), {model['precision']}, {model['device']}"


def head_line(model: ModelInfo | None) -> str | None:
    """The model's own head, if that classifies; None if prompts do, or it is not known."""
    return f"the model's own head, {model['head']} classes" if model and "head" in model else None


def _head(domains: list[str]) -> list[str]:
    return ["method", *domains, "average", "gain", "divided by"]


def _seen(record: EvaluationRecord) -> str | None:
    """The domain that the model was trained on, if that is known and the record has it."""
    domain = TRAINED_ON.get(record["dataset"]) if record["model"] and record["model"]["model"] == "demo" else None
    return domain if domain in record["data"]["domains"] else None


def _dataset(record: EvaluationRecord) -> str:
    """The name of the data set; for images of the user, also that of their folder; and what corrupts the images."""
    name, folder, corrupt = record["dataset"], record["data"].get("name"), record["data"]["origin"].get("corrupt")
    name = f"{name} {folder}" if name == "folder" and folder else name
    return f"{name} corrupted by {corrupt}" if corrupt else name


def _reported(record: EvaluationRecord, domains: list[str]) -> list[tuple[str, list[list[str]]]]:
    """The published rows that can stand beside the record, as a section; no section where none can."""
    lines = []
    for row in published_rows(record, domains):
        cells = [_cell(row.accuracy[d], row.std.get(d)) if d in row.accuracy else "" for d in domains]
        lines.append([row.method, *cells, _cell(row.average), "", row.divisor])
    return [(f"reported ({published_source(record)})", lines)] if lines else []


def _measured(record: EvaluationRecord, domains: list[str]) -> list[list[str]]:
    marks = {method["name"]: _mark(method, record) for method in record["methods"]}
    several = len(record["seeds"]) > 1
    methods = summary(record)
    zero_shot = _average(methods[ZERO_SHOT]) if ZERO_SHOT in methods else None
    lines = []
    for method, values in methods.items():
        cells = [_cell(*(values[d] if several else values[d][:1])) if d in values else "" for d in domains]
        average = _average(values)
        gain = "" if zero_shot is None else f"{average - zero_shot:+.2f}"
        lines.append([method + marks[method], *cells, _cell(average), gain, PROTOCOLS[record["protocol"]]])
    return lines


def _mark(method: MethodInfo, record: EvaluationRecord) -> str:
    """What sets a row apart from the others: true labels, or that the method saw less of the domain than they did."""
    if method["uses_labels"]:
        return " (oracle: uses true labels)"
    marks = ["in batches"] if _in_batches(method, record) else []
    if record["setting"] == "online" and method.get("nature", "online") != "online":
        marks = ["each batch alone"]
    marks += ["authors tuned on test data"] if "tuned_on_test" in method else []
    return f" ({', '.join(marks)})" if marks else ""


def _in_batches(method: MethodInfo, record: EvaluationRecord) -> bool:
    """Whether a base method saw batches in a transductive table; those of older records all did."""
    return record["setting"] == "transductive" and "base" in method and method.get("nature") != "transductive"


def _average(values: dict[str, tuple[float, float]]) -> float:
    return fmean(mean for mean, _ in values.values())


def _cell(value: float, std: float | None = None) -> str:
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"


def _title(record: EvaluationRecord) -> list[str]:
    batches = f", batch {record['batch_size']}" if has_batches(record) else ""
    seeds = len(record["seeds"])
    shuffles = f", mean ± std of {seeds} shuffles" if seeds > 1 else ""
    lines = [
        f"Accuracy (%) on {_dataset(record)}: {record['setting']}, protocol {record['protocol']}{batches}{shuffles}."
    ]
    model, prompts = record["model"], record["prompts"]
    if model:
        lines.append(f"Model {model_line(model)}.")
    if head := head_line(model):
        lines.append(f"Classifier: {head}.")
    if prompts:
        count = len(prompts["templates"])
        templates = f'"{prompts["templates"][0]}"' if count == 1 else f"{count} templates"
        lines.append(f"Prompts {prompts['name']}: {templates}, {prompts['class_names']} class names.")
    return lines


def _notes(record: EvaluationRecord) -> list[str]:
    notes = []
    data = record["data"]
    is_made_up, is_demo = data["origin"].get("kind") == "synthetic", record["dataset"] == "demo"
    if is_made_up:
        notes.append("These are made-up embeddings, not a benchmark.")
    if is_demo:
        notes += [
            "These are the demo's numbers: small pictures, and a small model of its own. With CLIP itself:",
            "  your own pictures  clip-tca eval --dataset folder --data-dir DIR",
            "  the benchmark      clip-tca eval --dataset pacs",
        ]
    if seen := _seen(record):
        notes.append(f"{seen}: the bundled model has seen these pictures in training; the average includes them.")
    if any(_in_batches(method, record) for method in record["methods"]):
        notes.append(f"in batches: the method sees {record['batch_size']} images at a time, not the whole domain.")
    for method in record["methods"]:
        if tuned := method.get("tuned_on_test"):
            notes.append(f"authors tuned on test data: {method['name']}: {tuned}.")
    if differences := data["differences"]:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        notes.append(f"WARNING: counts differ from the published ones: {'; '.join(differences[:4])}{more}.")
    if ignored := data.get("ignored"):
        more = ", …" if len(ignored) > 3 else ""
        notes.append(f"Found and not used: {', '.join(ignored[:3])}{more}.")
    if left_out := data["left_out"]:
        notes.append(f"WARNING: {left_out} images could not be read and are in no count (--skip-bad).")
    if not is_made_up and not is_demo and (reason := why_not(record)):
        notes.append(f"{reason[0].upper()}{reason[1:]}.")
    return notes
