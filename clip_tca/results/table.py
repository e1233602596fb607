"""Tables of accuracy. Every row says what its accuracy is divided by."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev

from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.published import published_rows, published_source, why_not
from clip_tca.results.schema import PROTOCOLS, EvaluationRecord, MethodInfo, ModelInfo, PromptInfo
from clip_tca.results.stream_words import stream_words
from clip_tca.results.values import averages, worst_tenth

TENTH = 10
"""From this number of runs on, the mean of the worst tenth of them is shown."""

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
    tenth = len(record["seeds"]) >= TENTH
    sections = [("measured", _measured(record, domains, tenth)), *_reported(record, domains, tenth)]
    names = [f"{domain} (seen)" if domain == _seen(record) else domain for domain in domains]
    head = _head(names, tenth)
    return Table(title_lines(record), head, sections, note_lines(record))


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
    tables = []
    for group in same_data(records):
        domains = list(dict.fromkeys(domain for record in group.values() for domain in record["data"]["domains"]))
        tenth = any(len(record["seeds"]) >= TENTH for record in group.values())
        title, notes, sections = [], [], []
        for label, record in group.items():
            title += [f"{label}: {line}" for line in title_lines(record)]
            notes += [f"{label}: {line}" for line in note_lines(record)]
            sections.append((label, _measured(record, domains, tenth)))
        sections += next(filter(None, (_reported(record, domains, tenth) for record in group.values())), [])
        tables.append(Table(title, _head(domains, tenth), sections, notes))
    return tables


def same_data(records: dict[str, EvaluationRecord]) -> list[dict[str, EvaluationRecord]]:
    """Labelled records in groups of one data set."""
    by_dataset: dict[str, dict[str, EvaluationRecord]] = {}
    for label, record in records.items():
        by_dataset.setdefault(dataset_name(record), {})[label] = record
    return list(by_dataset.values())


def has_batches(record: EvaluationRecord) -> bool:
    """Whether results depend on the batch size: by the setting, the protocol, or a base method."""
    whole = record["setting"] == "transductive" and record["protocol"] == "full"
    return not whole or any(_in_batches(method, record) for method in record["methods"])


def dataset_name(record: EvaluationRecord) -> str:
    """The name of the data set; for images of the user, also that of their folder; and what corrupts the images."""
    name, folder, corrupt = record["dataset"], record["data"].get("name"), record["data"]["origin"].get("corrupt")
    name = f"{name} {folder}" if name == "folder" and folder else name
    return f"{name} corrupted by {corrupt}" if corrupt else name


def model_line(model: ModelInfo) -> str:
    """Model, weights, precision and device."""
    weights = f"{model['pretrained']}, " if model["pretrained"] else ""
    return f"{model['model']} ({weights}sha256 {model['weights'][:12]}), {model['precision']}, {model['device']}"


def prompt_line(prompts: PromptInfo) -> str:
    """The template, or how many templates or descriptions there are."""
    count = len(prompts["templates"])
    if "descriptions" in prompts:
        return f"{prompts['descriptions']} descriptions of the classes"
    return f'"{prompts["templates"][0]}"' if count == 1 else f"{count} templates"


def head_line(model: ModelInfo | None) -> str | None:
    """The model's own head, if that classifies; None if prompts do, or it is not known."""
    return f"the model's own head, {model['head']} classes" if model and "head" in model else None


def _head(domains: list[str], tenth: bool) -> list[str]:
    return ["method", *domains, "average", *(["worst tenth"] if tenth else []), "gain", "divided by"]


def _seen(record: EvaluationRecord) -> str | None:
    """The domain that the model was trained on, if that is known and the record has it."""
    domain = TRAINED_ON.get(record["dataset"]) if record["model"] and record["model"]["model"] == "demo" else None
    return domain if domain in record["data"]["domains"] else None


def _reported(record: EvaluationRecord, domains: list[str], tenth: bool) -> list[tuple[str, list[list[str]]]]:
    """The published rows that can stand beside the record, as a section; no section where none can."""
    lines = []
    for row in published_rows(record, domains):
        cells = [cell(row.accuracy[d], row.std.get(d)) if d in row.accuracy else "" for d in domains]
        lines.append([row.method, *cells, cell(row.average), *([""] if tenth else []), "", row.divisor])
    return [(f"reported ({published_source(record)})", lines)] if lines else []


def _measured(record: EvaluationRecord, domains: list[str], tenth: bool) -> list[list[str]]:
    several = len(record["seeds"]) > 1
    methods = summary(record)
    zero_shot = _average(methods[ZERO_SHOT]) if ZERO_SHOT in methods else None
    lines = []
    for method, values in methods.items():
        cells = [cell(*(values[d] if several else values[d][:1])) if d in values else "" for d in domains]
        average = _average(values)
        gain = "" if zero_shot is None else f"{average - zero_shot:+.2f}"
        worst = [cell(worst_tenth(averages(record, method, "accuracy")))] if len(record["seeds"]) >= TENTH else [""]
        divided_by = PROTOCOLS[record["protocol"]]
        lines.append([method_label(record, method), *cells, cell(average), *(worst if tenth else []), gain, divided_by])
    return lines


def method_label(record: EvaluationRecord, name: str) -> str:
    """A method's name, with what sets its row apart: true labels, or that it saw less of the domain than the others."""
    method = next(method for method in record["methods"] if method["name"] == name)
    if method["uses_labels"]:
        return f"{name} (oracle: uses true labels)"
    marks = ["in batches"] if _in_batches(method, record) else []
    if record["setting"] == "online" and method.get("nature", "online") != "online":
        marks = ["each batch alone"]
    marks += ["authors tuned on test data"] if "tuned_on_test" in method else []
    return f"{name} ({', '.join(marks)})" if marks else name


def _in_batches(method: MethodInfo, record: EvaluationRecord) -> bool:
    """Whether a base method saw batches in a transductive table; those of older records all did."""
    return record["setting"] == "transductive" and "base" in method and method.get("nature") != "transductive"


def _average(values: dict[str, tuple[float, float]]) -> float:
    return fmean(mean for mean, _ in values.values())


def cell(value: float, std: float | None = None) -> str:
    """A number, with its standard deviation if there is one."""
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"


def title_lines(record: EvaluationRecord, what: str = "Accuracy (%)") -> list[str]:
    """What was measured on which data with which model and prompts."""
    batches = f", batch {record['batch_size']}" if has_batches(record) else ""
    seeds = len(record["seeds"])
    drawn = stream_words(record)
    shuffles = f", mean ± std of {seeds} {'runs' if drawn else 'shuffles'}" if seeds > 1 else ""
    how = f"{record['setting']}, protocol {record['protocol']}{batches}{''.join(f', {words}' for words in drawn)}"
    lines = [f"{what} on {dataset_name(record)}: {how}{shuffles}."]
    if mirror := record["data"]["origin"].get("mirror"):
        lines.append(f"Data from {mirror} (clip-tca data get).")
    model, prompts = record["model"], record["prompts"]
    if model:
        lines.append(f"Model {model_line(model)}.")
    origin = record["data"]["origin"]
    if "text" in origin:
        lines.append(f"Embeddings {origin['path']}, classes {origin['text']}, logit scale {origin['scale']:g}.")
    if head := head_line(model):
        lines.append(f"Classifier: {head}.")
    if prompts:
        lines.append(f"Prompts {prompts['name']}: {prompt_line(prompts)}, {prompts['class_names']} class names.")
    return lines


def note_lines(record: EvaluationRecord) -> list[str]:
    """What a reader of the numbers must know, below the table."""
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
    if head_line(record["model"]):
        notes.append(f"{ZERO_SHOT}: the model's own head, unadapted.")
    if seen := _seen(record):
        notes.append(f"{seen}: the bundled model has seen these pictures in training; the average includes them.")
    if unknown := data.get("unknown_classes"):
        notes.append(f"Without prompts, and in no number but the AUROC: {', '.join(unknown)}.")
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
