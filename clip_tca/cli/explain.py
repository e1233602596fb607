"""``clip-tca explain``: a saved adapter or a record in plain words, and whether adaptation can be trusted."""

from __future__ import annotations

import argparse
import json

from clip_tca.core.remote import Location, locate


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Explain a saved adapter, as adapter.explain() does, or a JSON record of clip-tca eval --output FILE.json."
    )
    command.add_argument("file", metavar="STATE|RESULT", help="saved state (safetensors) or record (JSON)")
    command.add_argument("--class-names", metavar="FILE", help="names of a state's classes, one a line, in their order")
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, explain, print."""
    path = locate(options.file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a saved state or a record of clip-tca eval --output")
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    print(_record(path, options) if start.startswith(b"{") else _state(path, options))
    return 0


def _state(path: Location, options: argparse.Namespace) -> str:
    from clip_tca.adapters.diagnosis import diagnose
    from clip_tca.adapters.state import load
    from clip_tca.datasets.prompts import read_classes
    from clip_tca.explanation import judged

    try:
        adapter = load(path)
    except ValueError as error:
        raise ValueError(f"{error}, or give a JSON record of clip-tca eval") from None
    if options.class_names is not None:
        names, count = list(read_classes(locate(options.class_names)).values()), adapter.classifier.n_classes
        if len(names) != count:
            raise ValueError(f"class names: {options.class_names} has {len(names)}, but the state has {count} classes")
        adapter.classifier = adapter.classifier.named(names)
    if options.format == "text":
        return adapter.explain()
    diagnosis, names = diagnose(adapter), adapter.classifier.class_names()
    content = {"file": str(path), "options": adapter.options(), "classes": names, "diagnosis": diagnosis}
    return json.dumps({**content, **judged(diagnosis, names)}, indent=1)


def _record(path: Location, options: argparse.Namespace) -> str:
    from clip_tca.results.explanation import explain_record, judged_gains
    from clip_tca.results.record import read

    if options.class_names is not None:
        raise ValueError("class names: a record has its own; --class-names is for a saved state")
    records = read(path)
    if options.format == "text":
        return "\n\n".join("\n".join(explain_record(record)) for record in records)
    content = [{"dataset": record["dataset"], "domains": judged_gains(record)} for record in records]
    return json.dumps({"file": str(path), "records": content}, indent=1)
