"""What was run and how: the main facts in short, and everything else at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clip_tca.report.html_tables import grid, without_empty
from clip_tca.report.markup import Content, Safe, count, join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.names import PROTOCOLS
from clip_tca.results.table import has_batches

SETTINGS = {
    "transductive": "one fit on the whole domain",
    "online": "batch after batch, never a later one",
    "episodic": "each batch alone",
}


def facts(run: Run) -> Safe:
    """Data, model, prompts and protocol in a few words each."""
    record, prompts = run.record, run.record["prompts"] or {}
    images = sum(domain.get("images", 0) for domain in record["data"]["domains"].values())
    domains, classes = len(run.domains), len(run.classes)
    size = f"{count(images, 'image', 'images')}, {count(domains, 'domain', 'domains')}, {classes} classes"
    seeds = len(record["seeds"])
    templates = prompts.get("templates", [])
    shown = f"“{templates[0]}”" if len(templates) == 1 else f"{len(templates)} templates"
    return definitions(
        {
            "Data": f"{record['dataset']}: {size}",
            "Model": _model(record["model"]) or "stored embeddings; the file does not say of which model",
            "Prompts": f"{prompts['name']}: {shown}" if prompts else "stored with the embeddings",
            "Setting": f"{record['setting']}: {SETTINGS.get(record['setting'], '')}",
            "Protocol": f"{record['protocol']}: accuracy divided by {PROTOCOLS[record['protocol']]}",
            "Order": ", ".join([*([f"batch {record['batch_size']}"] if has_batches(record) else []), _shuffles(seeds)]),
        },
        "facts",
    )


def setup(run: Run) -> Section:
    """Everything that is needed to run it again."""
    record = run.record
    model, prompts, data = record["model"] or {}, record["prompts"] or {}, record["data"]
    unknown = tag("p", "The file of embeddings does not say.", class_="note")
    versions = [[name, found] for name, found in record.get("versions", {}).items()]
    parts: list[Content] = [
        tag("h4", "Data"),
        definitions({"Origin": _named(data["origin"]), "Classes": ", ".join(run.classes), **_remarks(data)}),
        _table("Images by domain", ["domain", "images", "sha256 of the file list"], _domains(data)),
        tag("h4", "Model"),
        definitions(model) if model else unknown,
        tag("h4", "Prompts"),
        definitions({name: value for name, value in prompts.items() if name != "classes"}) if prompts else unknown,
        tag("h4", "Methods"),
        _table("Parameters", ["method", "uses labels", "parameters"], (_method(run, m) for m in record["methods"])),
        tag("h4", "Versions"),
        definitions({"Commit": record.get("commit") or "not run from a checkout"}),
        _table("Packages", ["package", "version"], versions),
    ]
    return Section("How it was run", join(*parts))


def _model(model: dict[str, Any] | None) -> str:
    """Model, weights, precision and device; nothing if they are not known."""
    if not model:
        return ""
    weights = f"{model['pretrained']}, " if model.get("pretrained") else ""
    return f"{model['model']} ({weights}sha256 {model['weights'][:12]}), {model['precision']}, {model['device']}"


def _shuffles(seeds: int) -> str:
    return "one shuffle" if seeds == 1 else f"{seeds} shuffles, mean ± standard deviation"


def _domains(data: dict[str, Any]) -> Iterable[list[str]]:
    for name, domain in data["domains"].items():
        yield [name, f"{domain.get('images', '')}", (domain.get("files_sha256") or "")[:12]]


def _remarks(data: dict[str, Any]) -> dict[str, Any]:
    found = {
        "Differs from the published counts": "; ".join(data["differences"]),
        "Found and not used": ", ".join(data.get("ignored") or []),
        "Could not be read, in no count": data["left_out"],
    }
    return {name: value for name, value in found.items() if value}


def _method(run: Run, method: dict[str, Any]) -> list[str]:
    base = method.get("base")
    parameters = _named(method["parameters"])
    if base:
        parameters = "; ".join(filter(None, (f"{base['name']}: {_named(base['parameters'])}", parameters)))
    return [run.shown(method["name"]), "yes" if method["uses_labels"] else "no", parameters]


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _table(title: str, head: list[str], lines: Iterable[list[str]]) -> Safe:
    head, rows = without_empty(head, list(lines))
    return grid(title, head, [("", rows)])


def definitions(values: dict[str, Any], kind: str = "plain") -> Safe:
    """Names and values, those that are unknown left out."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return " · ".join(map(str, value))
        return _named(value) if isinstance(value, dict) else str(value)

    return tag(
        "dl",
        *[tag("div", tag("dt", k), tag("dd", shown(v))) for k, v in values.items() if v not in (None, "")],
        class_=kind,
    )
