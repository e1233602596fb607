"""Tables of records: accuracy and the other measures, cost, and averages over many data sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any, cast

from clip_tca.core.checks import counted
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.intervals import accuracy_interval, average_gain
from clip_tca.results.published import PublishedRow, published_rows, suites, why_not
from clip_tca.results.schema import (
    METRICS,
    PLAIN_CLIP,
    PROTOCOLS,
    DataInfo,
    EvaluationRecord,
    MethodInfo,
    ModelInfo,
    PromptInfo,
    ResultRow,
    check_metrics,
)

TENTH = 10  # from this number of runs on, the mean of the worst tenth of them is shown
HEADLINE = ("conditional-tca", "linear-tca")  # the methods that the first line speaks of
TRAINED_ON = {"pacs": "photo", "officehome": "Real World"}  # domains that the bundled model has seen in training
COST = "Time and memory of the method alone, without encoding, unless a base method encodes images itself."

INTERVALS = "In brackets: 95 % intervals (accuracies: Wilson; gains: conservative, from the changed predictions)."

Section = tuple[str, list[list[str]]]


@dataclass
class Table:
    """A table of text."""

    title: list[str]  # lines above
    head: list[str]
    sections: list[Section]  # of rows; the first cell is a name, the last what the numbers are divided by
    notes: list[str] = field(default_factory=list)  # lines below

    def map(self, change: Callable[[str], str]) -> Table:
        title, head, notes = ([change(text) for text in part] for part in (self.title, self.head, self.notes))
        sections = [(change(name), [[change(cell) for cell in row] for row in rows]) for name, rows in self.sections]
        return Table(title, head, sections, notes)


def summary(record: EvaluationRecord) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and population standard deviation of the accuracy (%) over seeds, by method and domain."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        values.setdefault(row["method"], {}).setdefault(row["domain"], []).append(row["accuracy"])
    return {
        method: {domain: (fmean(accuracies), pstdev(accuracies)) for domain, accuracies in domains.items()}
        for method, domains in values.items()
    }


def measured(record: EvaluationRecord, method: str, metric: str) -> dict[tuple[str, int], float]:
    """A measure of a method by domain and seed, where it has a value."""
    rows = [row for row in record["rows"] if row["method"] == method]
    values = [row["accuracy"] if metric == "accuracy" else row["metrics"].get(metric) for row in rows]
    return {(row["domain"], row["seed"]): v for row, v in zip(rows, values, strict=True) if v is not None}


def averages(record: EvaluationRecord, method: str, metric: str = "accuracy") -> list[float]:
    """A measure of a method in each run, the mean over domains; of time and memory one value for all runs."""
    if METRICS[metric].overall:
        return _cost(record, method, metric)
    by_seed: dict[int, list[float]] = {}
    for (_, seed), value in measured(record, method, metric).items():
        by_seed.setdefault(seed, []).append(value)
    return [fmean(values) for values in by_seed.values()]


def _cost(record: EvaluationRecord, method: str, metric: str) -> list[float]:
    cost = record["cost"]["methods"].get(method)
    if cost is None:
        return []
    if metric == "seconds":
        seconds = cost["adapting_seconds"] + cost["predicting_seconds"] + cost["base_seconds"]
        return [1000 * seconds / cost["images"]]
    size, unit = (cost["memory_bytes_per_image"], 1e3) if metric == "memory" else (cost["memory_bytes"], 1e6)
    return [] if size is None else [size / unit]


def worst_tenth(values: list[float], higher: bool = True) -> float:
    """Mean of the worst tenth of some runs, at least one of them; ``higher`` values are better, or lower ones."""
    return fmean(sorted(values, reverse=not higher)[: max(1, len(values) // 10)])


def accuracy_table(record: EvaluationRecord) -> Table:
    """Measured rows, then the published ones."""
    return metric_table(record, "accuracy")


def metric_table(record: EvaluationRecord, metrics: str | Sequence[str], intervals: bool = False) -> Table:
    """One measure by domain, or several as averages over domains; accuracy alone has the published rows below it."""
    table = _table({"": record}, check_metrics(metrics))
    return _with_intervals(table, record) if intervals else table


def _with_intervals(table: Table, record: EvaluationRecord) -> Table:
    measured = next(rows for _, rows in table.sections)
    gain = table.head.index("gain")
    for cells, method in zip(measured, dict.fromkeys(row["method"] for row in record["rows"]), strict=True):
        for column, domain in enumerate(record["data"]["domains"], 1):
            rows = [row for row in record["rows"] if (row["method"], row["domain"]) == (method, domain)]
            low, high = accuracy_interval(fmean(row["correct"] for row in rows), rows[0]["divisor"])
            cells[column] += f" ({low:.1f} to {high:.1f})"
        if average := average_gain(record["rows"], method):
            cells[gain] += f" ({average.interval})"
    table.notes.append(INTERVALS)
    return table


def comparison(records: dict[str, EvaluationRecord], metrics: str | Sequence[str] = "accuracy") -> list[Table]:
    """A table for each data set, a section for each record; below those of accuracy the averages over data sets."""
    by_dataset: dict[str, dict[str, EvaluationRecord]] = {}
    for label, record in records.items():
        by_dataset.setdefault(dataset_name(record), {})[label] = record
    shown = check_metrics(metrics)
    tables = [_table(group, shown) for group in by_dataset.values()]
    return tables + (average_tables(list(records.values())) if shown == ["accuracy"] else [])


def _table(group: dict[str, EvaluationRecord], metrics: list[str]) -> Table:
    records, is_accuracy = list(group.values()), metrics == ["accuracy"]
    by_domain = len(metrics) == 1 and not METRICS[metrics[0]].overall
    domains = list(dict.fromkeys(domain for record in records for domain in record["data"]["domains"]))
    tenth = ["worst tenth"] if any(len(record["seeds"]) >= TENTH for record in records) else []
    what, head = "Measures, averaged over domains,", [METRICS[metric].title for metric in metrics]
    if by_domain:
        what, seen = "Accuracy (%)" if is_accuracy else head[0], {_seen(record) for record in records}
        head = [f"{domain} (seen)" if domain in seen else domain for domain in domains]
        head += ["average", *tenth, "gain" if is_accuracy else "change"]
    sections = []
    title = _once({label: title_lines(record, what) for label, record in group.items()})
    notes = [COST] if any(METRICS[metric].overall for metric in metrics) else []
    notes += _once({label: note_lines(record) for label, record in group.items()})
    for label, record in group.items():
        rows = []
        divided_by = PROTOCOLS[record["protocol"] if "accuracy" in metrics else "kept"]
        for method in dict.fromkeys(row["method"] for row in record["rows"]):
            cells = [_cell(averages(record, method, metric), metric) for metric in metrics]
            if by_domain:
                cells = _by_domain(record, method, metrics[0], domains, bool(tenth))
            rows.append([method_label(record, method), *cells, divided_by])
        sections.append((label or "measured", rows))
    if is_accuracy:
        reported = next(filter(None, (published_rows(record, domains) for record in records)), [])
        sections += _reported(reported, domains, [*tenth, "gain"])
    return Table(title, ["method", *head, "divided by"], sections, notes)


def _once(lines: dict[str, list[str]]) -> list[str]:
    """Lines about several records: once if all have it, else with the labels of those that have it."""
    records: dict[str, list[str]] = {}
    for label, about in lines.items():
        for line in about:
            records.setdefault(line, []).append(label)
    return [line if len(labels) == len(lines) else f"{', '.join(labels)}: {line}" for line, labels in records.items()]


def _by_domain(record: EvaluationRecord, method: str, metric: str, domains: list[str], tenth: bool) -> list[str]:
    """A measure in every domain, its average, perhaps that of the worst tenth of the runs, and the gain."""
    values, digits = measured(record, method, metric), METRICS[metric].digits
    cells = [_cell([value for (name, _), value in values.items() if name == d], metric) for d in domains]
    runs, before = averages(record, method, metric), averages(record, ZERO_SHOT, metric)
    cells.append(f"{fmean(runs):.{digits}f}" if runs else "")
    if tenth:
        cells.append(f"{worst_tenth(runs, METRICS[metric].higher):.{digits}f}" if len(runs) >= TENTH else "")
    return [*cells, f"{fmean(runs) - fmean(before):+.{digits}f}" if runs and before else ""]


def _cell(values: list[float], metric: str) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):.{METRICS[metric].digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {pstdev(values):.{METRICS[metric].digits}f}"


def _reported(rows: list[PublishedRow], columns: list[str], unknown: list[str]) -> list[Section]:
    """Published rows, a section for each source, with as many digits as that gives, and gaps for what is unknown."""
    sections = []
    for source in dict.fromkeys(row.source for row in rows):
        of_source, lines = [row for row in rows if row.source == source], []
        values = [value for row in of_source for value in (*row.accuracy.values(), row.average)]
        digits = 1 if all(value == round(value, 1) for value in values) else 2
        for row in of_source:
            cells = [f"{row.accuracy[name]:.{digits}f}" if name in row.accuracy else "" for name in columns]
            for i, name in enumerate(columns):
                cells[i] += f" ± {row.std[name]:.{digits}f}" if name in row.std else ""
            lines.append([row.method, *cells, f"{row.average:.{digits}f}", *["" for _ in unknown], row.divisor])
        sections.append((f"reported ({source})", lines))
    return sections


def headline_method(record: EvaluationRecord) -> str | None:
    """The first of :data:`HEADLINE` in the record, else its first method; the accuracies do not matter."""
    adapting = [method["name"] for method in record["methods"] if not method["uses_labels"]]
    return next((name for name in (*HEADLINE, *adapting) if name in adapting and name != ZERO_SHOT), None)


def headline(record: EvaluationRecord) -> str | None:
    """What adaptation gained or lost, in one line; None where nothing adapts, or without zero-shot to compare with."""
    name = headline_method(record)
    if name is None or all(method["name"] != ZERO_SHOT for method in record["methods"]):
        return None
    before, after = fmean(averages(record, ZERO_SHOT)), fmean(averages(record, name))
    where = " on average" if len(record["data"]["domains"]) > 1 else ""
    points, change = f"{abs(after - before):.2f} points", f"{before:.2f} → {after:.2f}."
    if points == "0.00 points":
        return f"{name} neither gains nor loses compared with zero-shot{where}: {after:.2f}."
    if after < before:
        return f"{name} loses {points} compared with zero-shot{where}: {change}"
    how = "with the class shares that were given" if name in given_shares(record) else "without labels"
    return f"{name} gains {points} over zero-shot{where}, {how}: {change}"


def given_shares(record: EvaluationRecord) -> list[str]:
    """The methods with class shares from ``--shares FILE``."""
    shares = {method["name"]: method["parameters"].get("shares") for method in record["methods"]}
    return [name for name, value in shares.items() if isinstance(value, (list, dict))]


def side_tables(record: EvaluationRecord) -> list[Table]:
    """If plain CLIP was timed (``--profile``), milliseconds per image and memory of each method against it."""
    costs, lines = record["cost"]["methods"], []
    if PLAIN_CLIP not in costs:
        return []
    plain = costs[PLAIN_CLIP]["base_seconds"] / costs[PLAIN_CLIP]["images"]
    for name, cost in costs.items():
        seconds = cost["adapting_seconds"] + cost["predicting_seconds"] + cost["base_seconds"]
        total = seconds / cost["images"] + (0 if cost["embeds"] else plain)  # an adapter needs embeddings first
        relative, memory = f"{total / plain:.2f}" if plain else "", cost["base_memory_bytes"]
        lines.append([name, f"{1000 * total:.2f}", relative, "" if memory is None else f"{memory / 1e6:.0f}"])
    head = ["method", "ms/image", "of plain CLIP", "extra memory, MB"]
    notes = ["Extra memory is the peak above what was in use before; on a CPU it is resident memory."]
    return [Table([f"Cost at batch {record['batch_size']}; decoding included."], head, [("cost", lines)], notes)]


def suite_tables(records: Sequence[EvaluationRecord]) -> list[Table]:
    """A table over many data sets for each group of records made alike, if all data sets of a list are among them."""
    return [
        accuracy_table(_suite(title, [group[name] for name in names]))
        for group in _alike(records)
        for names, title in suites().items()
        if set(names) <= set(group)
    ]


def average_tables(records: Sequence[EvaluationRecord]) -> list[Table]:
    """A table with the data sets as columns, and their average, for each group of records made alike."""
    titles = {frozenset(names): title for names, title in suites().items()}
    return [
        accuracy_table(_suite(titles.get(frozenset(group), f"{len(group)} data sets"), list(group.values())))
        for group in _alike(records)
        if len(group) > 1
    ]


def _alike(records: Sequence[EvaluationRecord]) -> list[dict[str, EvaluationRecord]]:
    """Groups of records that differ in the data set alone, by its name; a second of a data set is in another group."""
    groups: dict[str, dict[str, EvaluationRecord]] = {}
    names: Counter[str] = Counter()
    for record in records:
        content = cast("Mapping[str, Any]", record)
        alike = [content[key] for key in ("setting", "protocol", "batch_size", "stream", "seeds", "model")]
        prompts = record["prompts"]["name"] if record["prompts"] else None
        methods = [method["name"] for method in record["methods"]]
        key, name = json.dumps([*alike, prompts, methods, record["data"]["origin"].get("corrupt")]), _set_name(record)
        names[key + name] += 1
        groups.setdefault(f"{key} {names[key + name]}", {})[name] = record
    return list(groups.values())


def _suite(title: str, records: list[EvaluationRecord]) -> EvaluationRecord:
    """Records of many data sets as one record, in which the data sets are the domains."""
    first, rows = records[0], []
    data: DataInfo = {**first["data"], "domains": {}, "differences": [], "ignored": [], "left_out": 0}
    data["origin"] = {"corrupt": first["data"]["origin"].get("corrupt")}
    for record in records:
        name, about = f"{_set_name(record)}{' (seen in part)' if _seen(record) else ''}", record["data"]
        data["domains"][name] = {"images": sum(domain["images"] for domain in about["domains"].values())}
        data["differences"] += [f"{name}: {difference}" for difference in about["differences"]]
        data["left_out"] += about["left_out"]
        for method in record["methods"]:
            row: ResultRow = {**record["rows"][0], "method": method["name"], "domain": name}
            runs = zip(record["seeds"], averages(record, method["name"]), strict=True)
            rows += [cast("ResultRow", {**row, "seed": seed, "accuracy": accuracy}) for seed, accuracy in runs]
    return {**first, "dataset": title, "prompts": None, "data": data, "rows": rows}


def title_lines(record: EvaluationRecord, what: str = "Accuracy (%)") -> list[str]:
    """What was measured on which data with which model and prompts."""
    seeds, drawn = len(record["seeds"]), stream_words(record)
    shuffles = f", mean ± std of {seeds} {'runs' if drawn else 'shuffles'}" if seeds > 1 else ""
    how = [record["setting"], f"protocol {record['protocol']}"]
    how += [f"batch {record['batch_size']}"] if has_batches(record) else []
    lines = [f"{what} on {dataset_name(record)}: {', '.join([*how, *drawn])}{shuffles}."]
    model, prompts, origin = record["model"], record["prompts"], record["data"]["origin"]
    if mirror := origin.get("mirror"):
        lines.append(f"Data from {mirror} (clip-tca data get).")
    if model:
        lines.append(f"Model {model_line(model)}.")
    if "text" in origin:
        lines.append(f"Embeddings {origin['path']}, classes {origin['text']}, logit scale {origin['scale']:g}.")
    if head := head_line(model):
        lines.append(f"Classifier: {head}.")
    if prompts:
        lines.append(f"Prompts {prompts['name']}: {prompt_line(prompts)}, {prompts['class_names']} class names.")
    return lines


def note_lines(record: EvaluationRecord) -> list[str]:
    """What a reader of the numbers must know, below the table."""
    notes, data = [], record["data"]
    is_synthetic, is_demo = data["origin"].get("kind") == "synthetic", record["dataset"] == "demo"
    if is_synthetic:
        notes.append("These are made-up embeddings, not a benchmark.")
    if is_demo:
        notes += [
            "These figures are from small pictures and a small bundled model. To use CLIP itself:",
            "  your own pictures  clip-tca eval --dataset folder --data-dir DIR",
            "  the benchmark      clip-tca eval --dataset pacs",
        ]
    if head_line(record["model"]):
        notes.append(f"{ZERO_SHOT}: the model's own head, not adapted.")
    if seen := _seen(record):
        notes.append(f"{seen}: the bundled model has seen these pictures in training; the average includes them.")
    if any(_in_batches(method, record) for method in record["methods"]):
        notes.append(f"in batches: the method sees {record['batch_size']} images at a time, not the whole domain.")
    if methods := given_shares(record):
        notes.append(f"Class shares were given (--shares): {', '.join(methods)}.")
    for method in record["methods"]:
        if tuned := method.get("tuned_on_test"):
            notes.append(f"authors tuned on test data: {method['name']}: {tuned}.")
    if differences := data["differences"]:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        notes.append(f"WARNING: counts differ from the published ones: {'; '.join(differences[:4])}{more}.")
    if ignored := data["ignored"]:
        more = ", …" if len(ignored) > 3 else ""
        notes.append(f"Found and not used: {', '.join(ignored[:3])}{more}.")
    if left_out := data["left_out"]:
        notes.append(f"WARNING: {counted(left_out, 'image')} could not be read and are not counted (--skip-bad).")
    if not is_synthetic and not is_demo and (reason := why_not(record)):
        notes.append(f"Published numbers are not shown: {reason}.")
    return notes


def method_label(record: EvaluationRecord, name: str) -> str:
    """A method's name, with what sets its row apart."""
    method = next(method for method in record["methods"] if method["name"] == name)
    if method["uses_labels"]:
        return f"{name} (oracle: uses true labels)"
    marks = ["in batches"] if _in_batches(method, record) else []
    if record["setting"] == "online" and method.get("nature", "online") != "online":
        marks = ["each batch alone"]
    marks += ["authors tuned on test data"] if "tuned_on_test" in method else []
    return f"{name} ({', '.join(marks)})" if marks else name


def _in_batches(method: MethodInfo, record: EvaluationRecord) -> bool:
    """Whether a base method saw batches in a transductive table."""
    return record["setting"] == "transductive" and "base" in method and method.get("nature") != "transductive"


def has_batches(record: EvaluationRecord) -> bool:
    """Whether results depend on the batch size: by the setting, the protocol, or a base method."""
    whole = record["setting"] == "transductive" and record["protocol"] == "full"
    return not whole or any(_in_batches(method, record) for method in record["methods"])


def stream_words(record: EvaluationRecord) -> list[str]:
    """The stream in words; none for whole domains, shuffled one by one."""
    words, stream = [], record["stream"]
    if stream["kind"] != "iid":
        words.append("class after class" if stream["gamma"] is None else f"Dirichlet stream γ = {stream['gamma']:g}")
    if present := stream["classes_present"]:
        where = "" if record["setting"] == "transductive" else " in each batch"
        count = "–".join(map(str, dict.fromkeys(present)))
        words.append(f"{count} {'class' if present == [1, 1] else 'classes'}{where}")
    if stream["long_tail"] is not None:
        words.append(f"long tail {stream['long_tail']:g}:1")
    if stream["mix_domains"]:
        words.append("domains mixed")
    return words


def dataset_name(record: EvaluationRecord) -> str:
    """The name of the data set, and what corrupts the images."""
    name, corrupt = _set_name(record), record["data"]["origin"].get("corrupt")
    return f"{name} corrupted by {corrupt}" if corrupt else name


def _set_name(record: EvaluationRecord) -> str:
    name, folder = record["dataset"], record["data"].get("name")
    return f"{name} {folder}" if name == "folder" and folder else name


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


def _seen(record: EvaluationRecord) -> str | None:
    """The domain that the model was trained on, if that is known and the record has it."""
    domain = TRAINED_ON.get(record["dataset"]) if record["model"] and record["model"]["model"] == "demo" else None
    return domain if domain in record["data"]["domains"] else None
