"""``clip-tca merge``: what tasks have saved of one fit, as one state."""

from __future__ import annotations

import argparse

from clip_tca.cli import options as shared


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Merge what adapt --fit-only --task I/N saved, for every I, into the state of one fit: that of one "
        "process, for adapt --load-state, explain and export."
    )
    command.add_argument("states", nargs="+", metavar="STATE", help="what the tasks saved; paths or URLs, in any order")
    command.add_argument("--output", "-o", required=True, metavar="FILE", help="the merged state, .safetensors")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Merge, solve, and write the state."""
    shared.check_output(options.output)
    shared.check_inputs(options)
    from clip_tca.adapters.partial import merge_partials
    from clip_tca.core.remote import locate

    merged = merge_partials([locate(state) for state in options.states])
    merged.save(options.output)
    count = len(options.states)
    print(f"{merged.n_seen_} rows of {count} {'task' if count == 1 else 'tasks'}")
    print(f"written: {options.output}")
    return 0
