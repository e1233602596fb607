"""The setup of a run: the main facts in short, and everything that is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clip_tca.report.html_tables import single
from clip_tca.report.markup import Content, Safe, count, join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.schema import PROTOCOLS, MethodInfo, Setting
from clip_tca.results.stream_words import stream_words
from clip_tca.results.table import has_batches, head_line, model_line, prompt_line

MEANING: dict[Setting, str] = {
    "transductive": "one fit on the whole domain",
    "online": "batch after batch, never a later one",
    "episodic": "each batch alone",
}


def facts(run: Run) -> Safe:
    """Data, model, prompts and protocol in a few words each."""
    record, model, prompts = run.record, run.record["model"], run.record["prompts"]
    images = sum(domain["images"] for domain in record["data"]["domains"].values())
    domains, classes = len(run.domains), len(run.classes)
    size = f"{count(images, 'image', 'images')}, {count(domains, 'domain', 'domains')}, {classes} classes"
    seeds = len(record["seeds"])
    shuffles = "one shuffle" if seeds == 1 else f"{seeds} shuffles, mean ± standard deviation"
    order = [*([f"batch {record['batch_size']}"] if has_batches(record) else []), *stream_words(record), shuffles]
    without = head_line(model) or "stored with the embeddings"
    return definitions(
        {
            "Data": f"{record['dataset']}: {size}",
            "Model": model_line(model) if model else "stored embeddings; the file does not say of which model",
            "Prompts": f"{prompts['name']}: {prompt_line(prompts)}" if prompts else without,
            "Setting": f"{record['setting']}: {MEANING[record['setting']]}",
            "Protocol": f"{record['protocol']}: accuracy divided by {PROTOCOLS[record['protocol']]}",
            "Order": ", ".join(order),
        },
        "facts",
    )


def setup(run: Run) -> Section:
    """Everything that is needed to repeat the run."""
    record = run.record
    model, prompts, data = record["model"], record["prompts"], record["data"]
    unknown = tag("p", "The file of embeddings does not say.", class_="note")
    no_prompts = tag("p", f"None: {head}.", class_="note") if (head := head_line(model)) else unknown
    domains = [[name, str(d["images"]), d.get("files_sha256", "")[:12]] for name, d in data["domains"].items()]
    parts: list[Content] = [
        tag("h4", "Data"),
        definitions(
            {
                "Origin": _named(data["origin"]),
                "Classes": ", ".join(run.classes),
                "Unknown classes": ", ".join(data.get("unknown_classes", [])),
                "Differs from the published counts": "; ".join(data["differences"]),
                "Found and not used": ", ".join(data.get("ignored", [])),
                "Could not be read, in no count": data["left_out"] or None,
            }
        ),
        single("Images by domain", ["domain", "images", "sha256 of the file list"], domains),
        tag("h4", "Model"),
        definitions(model) if model else unknown,
        tag("h4", "Prompts"),
        definitions({name: value for name, value in prompts.items() if name != "classes"}) if prompts else no_prompts,
        tag("h4", "Methods"),
        single("Parameters", ["method", "uses labels", "parameters"], [_method(run, m) for m in record["methods"]]),
        tag("h4", "Versions"),
        definitions({"Commit": record["commit"] or "not run from a checkout"}),
        single("Packages", ["package", "version"], [[*item] for item in record["versions"].items()]),
    ]
    return Section("How it was run", join(*parts))


def _method(run: Run, method: MethodInfo) -> list[str]:
    base = method.get("base")
    parameters = _named(method["parameters"])
    if base:
        nature = f" ({method['nature']})" if "nature" in method else ""
        parameters = "; ".join(filter(None, (f"{base['name']}{nature}: {_named(base['parameters'])}", parameters)))
    return [run.method_label(method["name"]), "yes" if method["uses_labels"] else "no", parameters]


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def definitions(values: Mapping[str, Any], kind: str = "plain") -> Safe:
    """Names and values, without those that are unknown."""

    def described(value: Any) -> str:
        if isinstance(value, list):
            return " · ".join(map(str, value))
        return _named(value) if isinstance(value, dict) else str(value)

    return tag(
        "dl",
        *[tag("div", tag("dt", k), tag("dd", described(v))) for k, v in values.items() if v not in (None, "")],
        class_=kind,
    )
