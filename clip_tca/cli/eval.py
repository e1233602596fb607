"""``clip-tca eval``: accuracy for each domain of a data set, beside the published numbers; ``clip-tca methods``.

A recipe is a TOML file that lists the runs of a table, with the options of the command line:

[all]                       # options of every run
model = "ViT-B-16-quickgelu"
[[run]]                     # one run
dataset = "pacs"
method = ["zero-shot", "linear-tca"]

With ``--output FILE`` every finished run is kept in ``FILE.unfinished`` until the last one is done. The same command
then continues from there.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from clip_tca.cli import options as shared
from clip_tca.core.checks import visible
from clip_tca.core.folders import resource
from clip_tca.core.progress import Progress, announce
from clip_tca.core.remote import Location, locate
from clip_tca.methods.registry import ALLOWED, DEFAULT_METHODS, GROUPS, METHODS
from clip_tca.results.predictions import SUFFIXES as TABLES
from clip_tca.results.schema import PROTOCOLS, SETTINGS, EvaluationRecord

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PASSED_ON = ("setting", "protocol", "batch_size", "seeds", "stream", "classes_present", "long_tail", "mix_domains",
             "profile", "examples", "predictions")  # fmt: skip
NOT_IN_RECIPES = {"--recipe", "--output", "--overwrite", "--format", "--help"}

logger = logging.getLogger(__name__)

NATURES = {
    "transductive": "the whole set at once (transductive)",
    "online": "batch after batch (online)",
    "batch": "each batch alone (batch)",
}


def add(command: argparse.ArgumentParser) -> None:
    """Add the options of ``eval``."""
    command.description = "Encode images, classify them by prompts, adapt, and print the accuracy (%) on each domain."
    shared.add_data(command, required=False, foreign=True)
    shared.add_model(command)
    shared.add_prompts(command)
    group = command.add_argument_group("evaluation")
    add = group.add_argument
    names = f"{ALLOWED}; repeatable (default: {', '.join(DEFAULT_METHODS)})"
    add("--method", action="append", choices=(*METHODS, *GROUPS), metavar="NAME", help=names)
    shared.add_method(group)
    settings = "transductive: adapt to the whole domain at once; online: batch after batch; episodic: each batch alone"
    add("--setting", choices=SETTINGS, default="transductive", help=f"{settings} (default: %(default)s)")
    divided = f"what accuracy is divided by: {'; '.join(f'{name}: {by}' for name, by in PROTOCOLS.items())}"
    add("--protocol", choices=tuple(PROTOCOLS), default="full", help=f"{divided} (default: %(default)s)")
    batch = "images in a batch (default: %(default)s)"
    add("--batch-size", type=shared.positive, default=128, metavar="N", help=batch)
    runs = (
        "repeat with other shuffles or draws: mean ± standard deviation, from 10 runs on also the mean of the worst "
        "tenth (default: %(default)s)"
    )
    add("--runs", dest="seeds", type=shared.positive, default=1, metavar="N", help=runs)
    add("--intervals", action="store_true", help="add 95 %% intervals to accuracies and gains")
    add("--profile", action="store_true", help="also time plain CLIP, and print what each method costs")
    listed = "keep up to N pictures of each kind whose prediction changed, for the report"
    add("--examples", type=int, default=0, metavar="N", help=listed)
    every = "also write every prediction with the true label: .csv, .parquet or .json"
    add("--predictions", metavar="FILE", help=every)
    recipes = "TOML file of runs, or a name in eval/recipes/; options given here override its own"
    add("--recipe", metavar="FILE", help=recipes)
    add = command.add_argument_group("stream (true labels define it; no method sees them)").add_argument
    order = (
        "order of the images, online and episodic: shuffled, sorted by class, or correlated as in StatA, more with a "
        "smaller GAMMA, such as 0.1, 0.01 or 0.001 (default: %(default)s)"
    )
    add("--stream", default="iid", metavar="iid|sorted|dirichlet:GAMMA", help=order)
    present = "number of classes in each batch (in the whole domain if transductive); A-B draws it for each batch"
    add("--classes-present", metavar="K|A-B", help=present)
    ratio = "how many times more images the most frequent class has than the rarest"
    add("--long-tail", type=float, metavar="RATIO", help=ratio)
    mixed = "one stream of all domains together; accuracy is still by domain"
    add("--mix-domains", action="store_true", help=mixed)
    shared.add_output(command)
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command)


def run(options: argparse.Namespace) -> int:
    """Evaluate once, or once for each run of a recipe."""
    shared.check_result(options)
    runs, lines, unfinished = [options], [[""]], None
    if options.recipe is not None:
        lines = recipe_lines(options.recipe, options.parser, options.arguments)
        runs = [options.parser.parse_args(line) for line in lines]
        unfinished = locate(f"{options.output}.unfinished") if options.output else None
        if any(each.dataset is None for each in runs):
            raise ValueError(f"recipe: {options.recipe}: a run has no dataset; add it there, or give --dataset")
    elif options.dataset is None:
        options.parser.error(f"--dataset or --recipe is needed; data sets are {', '.join(shared.DATASETS)}")
    intervals = any(each.intervals for each in runs)
    metrics = list(dict.fromkeys(name for each in runs for name in each.metric or ()))
    if intervals and metrics not in ([], ["accuracy"]):
        options.parser.error(f"--intervals: they are of accuracy; leave out --metric {','.join(metrics)}")
    for each in runs:
        shared.check_output(each.predictions, "predictions", TABLES)
    with Progress(None, "loading PyTorch", "", not options.quiet):
        from clip_tca.core.files import write_text
        from clip_tca.evaluation.runner import evaluate
        from clip_tca.results.explanation import closing
        from clip_tca.results.rendering import render

    records = finished(unfinished, lines)
    try:
        for each in runs[len(records) :]:
            keywords = {name: getattr(each, name) for name in PASSED_ON} | shared.inputs(each)
            keywords |= {"methods": each.method or DEFAULT_METHODS, "options": shared.method_options(each)}
            records.append(evaluate(each.dataset, on_domain=None if each.quiet else show, **keywords))
            if unfinished:
                write_text(unfinished, json.dumps({"lines": lines, "records": records}))
    except BaseException:
        if records:  # of a recipe whose later run failed
            sys.stdout.write(render(records, metrics=metrics, intervals=intervals))
        if records and unfinished:
            state = "%d of %d runs are kept in %s; the same command continues from there"
            logger.warning(state, len(records), len(runs), unfinished)
        raise
    shared.deliver(options, lambda output_format: render(records, output_format, metrics, intervals))
    if unfinished:
        unfinished.unlink(missing_ok=True)
    if options.output is not None or options.format in (None, "table"):
        for record in records:
            print("\n".join(["", *closing(record)]))
    return 0


def show(domain: str, accuracy: dict[str, float]) -> None:
    """Print the accuracies on a domain on stderr, above a bar."""
    accuracies = ", ".join(f"{method} {value:.2f}" for method, value in accuracy.items())
    announce(visible(f"{domain}: {accuracies}"))


def finished(path: Location | None, lines: list[list[str]]) -> list[EvaluationRecord]:
    """The records of the first runs of a recipe, if an interrupted run of the same ``lines`` kept some."""
    from clip_tca.results.record import checked, parse

    if path is None or not path.is_file():
        return []
    try:
        content = parse(path)
        records = checked(content, path)
    except ValueError as error:
        raise ValueError(f"{error}, or delete {path}") from None
    if content.get("lines") != lines:
        raise ValueError(
            f"output: {path} belongs to an interrupted recipe with other options; use the same options, or delete it"
        )
    logger.warning("%d of %d runs are taken from %s", len(records), len(lines), path)
    return records


def recipe_lines(recipe: str, parser: argparse.ArgumentParser, given: Sequence[str]) -> list[list[str]]:
    """The arguments of ``clip-tca eval`` for each run: the options of the recipe, overridden by those given.

    ``recipe`` is a path, or a name in eval/recipes/ (``clip``).
    """
    path = locate(recipe)
    if not path.is_file():
        try:
            path = resource(f"eval/recipes/{recipe}.toml")
        except FileNotFoundError:
            raise FileNotFoundError(f"recipe: {recipe}: no such file, and none of that name in eval/recipes/") from None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML ({error})") from None
    if unknown := sorted(set(content) - {"all", "run", "title"}):
        raise ValueError(f"{path}: {unknown[0]!r} is not part of a recipe; allowed are title, [all] and [[run]]")
    common, runs = content.get("all", {}), content.get("run")
    if not runs or not isinstance(runs, list) or not all(isinstance(section, dict) for section in (common, *runs)):
        raise ValueError(f"{path}: no runs; a recipe has [[run]] sections, and may have one [all]")
    allowed = {option for action in parser._actions for option in action.option_strings} - NOT_IN_RECIPES
    overridden = {word.split("=")[0] for word in given if word.startswith("--")}
    lines = []
    for run in runs:
        line: list[str] = []
        for name, value in {**common, **run}.items():
            option = f"--{name.replace('_', '-')}"
            if option not in allowed:
                raise ValueError(f"{path}: {name!r} is not an option of clip-tca eval")
            values = [f"{key}={inner}" for key, inner in value.items()] if isinstance(value, dict) else value
            if option in overridden or value is False:
                continue
            for inner in values if isinstance(values, list) else [values]:
                line += [option] if inner is True else [option, str(inner)]
        lines.append([*line, *given])
    return lines


def add_methods(command: argparse.ArgumentParser) -> None:
    """``methods`` has no options."""
    command.set_defaults(run=list_methods)


def list_methods(_options: argparse.Namespace) -> int:
    """Print a summary of every method, what it updates, and whether it needs back-propagation."""
    from clip_tca.methods.registry import ADAPTERS, BASES, ZERO_SHOT, base_method

    print("adapters of embeddings (no back-propagation through the model, any data set):")
    summaries = {name: adapter.summary for name, adapter in ADAPTERS.items()}
    for name, line in {ZERO_SHOT: "similarity to the prompts; nothing adapts", **summaries}.items():
        print(f"  {name:22}{line}")
    print("\nbase methods; NAME+tca puts linear-tca on top:")
    for name in BASES:
        base = base_method(name)
        gradient = "back-propagation" if base.backpropagation else "no back-propagation"
        print(f"  {name:22}{base.summary}")
        print(f"  {'':22}sees {base.sees}, {NATURES[base.nature]}; updates {base.updates}; {gradient}")
        if base.changed:
            print(f"  {'':22}here: {base.changed}")
        if base.tuned_on_test:
            print(f"  {'':22}authors tuned on test data: {base.tuned_on_test}")
    return 0
