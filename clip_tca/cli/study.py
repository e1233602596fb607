"""``clip-tca study``: the paper's figures and analysis tables on any data set, from stored embeddings."""

from __future__ import annotations

import argparse
from typing import Any

from clip_tca.cli import options as shared
from clip_tca.studies import STUDIES, study_class


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Measure one study and print its finding; with --output also write its record and its figure. "
        "Without a name: list the studies."
    )
    command.add_argument("name", nargs="?", choices=STUDIES, metavar="NAME", help=", ".join(STUDIES))
    shared.add_data(command, required=False)
    shared.add_model(command)
    shared.add_prompts(command)
    group = command.add_argument_group("study")
    group.add_argument("--reference", metavar="DOMAIN", help="the source-like domain (default: photo, if there is one)")
    chosen = "an option of the study; several as A,B"
    group.add_argument("--set", action="append", type=shared.assignment, metavar="NAME=VALUE", help=chosen)
    group.add_argument("--output", "-o", metavar="PREFIX", help="write PREFIX.json, PREFIX.svg and PREFIX.png")
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command)


def run(options: argparse.Namespace) -> int:
    """Measure, print the finding, write the files; without a name list every study and its place in the paper."""
    if options.name is None:
        for name in STUDIES:
            study = study_class(name)
            data = "" if study.needs_data else "; makes its own data"
            print(f"{name:14}{study.summary}\n{'':14}{study.paper}{data}")
        return 0
    from clip_tca.studies.frame import check_matplotlib, output_files, run_study, save_study

    study = study_class(options.name)
    if study.needs_data and options.dataset is None:
        options.parser.error(f"{options.name} needs --dataset; data sets are {', '.join(shared.DATASETS)}")
    if options.output is not None:
        check_matplotlib()
        for path in output_files(options.output).values():
            shared.check_output(path)
    given = {name: values(text) for name, text in options.set or []}
    inputs = shared.inputs(options) if study.needs_data else {"progress": not options.quiet}
    record = run_study(options.name, options.dataset, reference=options.reference, options=given, **inputs)
    written = [] if options.output is None else save_study(record, options.output)
    where = f" on {record['dataset']}" if record["dataset"] else ""
    where += f", source-like domain {record['reference']}" if record["reference"] else ""
    print(f"{options.name}{where}: {record['title']} (paper: {record['paper']})")
    for line in record["finding"]:
        print(f"  {line}")
    for path in written:
        print(f"written: {path}")
    return 0


def values(text: str) -> Any:
    """``3``, ``0.5``, ``auto``, or several as ``1,4,16``."""
    parts = [shared.parse_value(part.strip()) for part in text.split(",")]
    return parts if "," in text else parts[0]
