"""``clip-tca explain``: in plain words, what a saved adapter or a record says, and whether to trust it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    command = commands.add_parser(
        "explain",
        help="in plain words: the shift, what was chosen, what moved, and whether to trust it",
        description="Explain a state that LinearTCA.save, MLPTCA.save or ConditionalTCA.save wrote, or a JSON record "
        "of clip-tca eval --output FILE.json.",
    )
    command.add_argument("file", metavar="STATE|RESULT", help="saved state (safetensors) or record (JSON)")
    command.add_argument("--class-names", metavar="FILE", help="names of a state's classes, one a line, in their order")
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, explain, print."""
    path = Path(options.file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a saved state or a record of clip-tca eval --output")
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    told, lines = _record(path, options) if start.startswith(b"{") else _state(path, options)
    print(json.dumps(told, indent=1) if options.format == "json" else "\n".join(lines))
    return 0


def _state(path: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from clip_tca.adapters.diagnosis import diagnose_state
    from clip_tca.adapters.state import read_state
    from clip_tca.datasets.prompts import read_classes
    from clip_tca.results.explanation import explain_state, judged

    try:
        saved = read_state(path)
    except ValueError as error:
        raise ValueError(f"{error}, or give a JSON record of clip-tca eval") from None
    count = saved.shape[1]
    names = [f"class {c}" for c in range(count)]
    if options.class_names is not None:
        names = list(read_classes(Path(options.class_names)).values())
        if len(names) != count:
            raise ValueError(f"class names: {options.class_names} has {len(names)}, but the state has {count} classes")
    try:
        found = diagnose_state(saved)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    about = {"file": str(path), "options": saved.options, "classes": names, "diagnosis": found}
    return {**about, **judged(found, names)}, explain_state({"options": saved.options}, found, names)


def _record(path: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from clip_tca.results.explanation import explain_record, judged_gains
    from clip_tca.results.record import DAMAGED, read

    if options.class_names is not None:
        raise ValueError("class names: a record holds its own; --class-names is for a saved state")
    told: list[dict[str, Any]] = []
    lines: list[str] = []
    for record in read(path):
        try:
            lines += [*([""] if lines else []), *explain_record(record)]
            told.append({"dataset": record["dataset"], "domains": judged_gains(record)})
        except DAMAGED as error:
            raise ValueError(f"{path}: not a whole record of clip-tca eval ({error!r}); evaluate again") from None
    return {"file": str(path), "records": told}, lines
