"""``clip-tca explain``: a saved adapter or a record in plain words, and whether adaptation can be trusted."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clip_tca.core.remote import Location, locate


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Explain a state that LinearTCA.save, MLPTCA.save or ConditionalTCA.save wrote, or a JSON record "
        "of clip-tca eval --output FILE.json."
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
    content, lines = _record(path, options) if start.startswith(b"{") else _state(path, options)
    print(json.dumps(content, indent=1) if options.format == "json" else "\n".join(lines))
    return 0


def _state(path: Location, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from clip_tca.adapters.diagnosis import diagnose_state
    from clip_tca.adapters.state import read_fit
    from clip_tca.datasets.prompts import read_classes
    from clip_tca.results.explanation import explain_state, judged

    try:
        saved = read_fit(path)
    except ValueError as error:
        raise ValueError(f"{error}, or give a JSON record of clip-tca eval") from None
    count = saved.shape[1]
    names = list(saved.classes or (f"class {c}" for c in range(count)))
    if options.class_names is not None:
        names = list(read_classes(locate(options.class_names)).values())
        if len(names) != count:
            raise ValueError(f"class names: {options.class_names} has {len(names)}, but the state has {count} classes")
    try:
        diagnosis = diagnose_state(saved)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    content = {"file": str(path), "options": saved.options, "classes": names, "diagnosis": diagnosis}
    return {**content, **judged(diagnosis, names)}, explain_state(saved.options, diagnosis, names)


def _record(path: Location, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from clip_tca.results.explanation import explain_record, judged_gains
    from clip_tca.results.record import read

    if options.class_names is not None:
        raise ValueError("class names: a record has its own; --class-names is for a saved state")
    records = read(path)
    content = [{"dataset": record["dataset"], "domains": judged_gains(record)} for record in records]
    lines = [line for record in records for line in ("", *explain_record(record))][1:]
    return {"file": str(path), "records": content}, lines
