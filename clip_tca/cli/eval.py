"""``clip-tca eval``: zero-shot and adapted accuracy for each domain of a data set, beside the published numbers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from clip_tca.cli import options as shared
from clip_tca.methods.registry import ALLOWED, DEFAULT_METHODS, GROUPS, METHODS
from clip_tca.results.schema import PROTOCOLS, SETTINGS, EvaluationRecord

STREAM = ("stream", "classes_present", "long_tail", "mix_domains", "unknown_classes")
PASSED_ON = ("setting", "protocol", "batch_size", "seeds", *STREAM, "profile", "forgetting", "examples")


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = "Encode images, classify them by prompts, adapt, and print accuracy (%%) for each domain."
    shared.add_data(command, required=False, foreign=True)
    shared.add_foreign(command)
    shared.add_model(command)
    shared.add_prompts(command)
    group = command.add_argument_group("evaluation")
    group.add_argument(
        "--method",
        action="append",
        type=method,
        metavar="NAME",
        help=f"{ALLOWED}; repeatable (default: {', '.join(DEFAULT_METHODS)})",
    )
    shared.add_method(group)
    group.add_argument("--setting", choices=SETTINGS, default="transductive", help="default: %(default)s")
    group.add_argument("--protocol", choices=tuple(PROTOCOLS), default="full", help="default: %(default)s")
    group.add_argument("--batch-size", type=shared.positive, default=128, metavar="N", help="default: %(default)s")
    group.add_argument(
        "--runs",
        "--seeds",
        dest="seeds",
        type=shared.positive,
        default=1,
        metavar="N",
        help="runs, each with its own shuffle or draw: mean ± standard deviation, from 10 on also the mean of the "
        "worst tenth (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, help="of the synthetic set (default: 0)")
    group.add_argument("--profile", action="store_true", help="also time plain CLIP, and print what each method costs")
    group.add_argument("--forgetting", metavar="DOMAIN", help="also test this domain after adapting to each other one")
    group.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="also list up to N images of each kind whose prediction changed",
    )
    group.add_argument("--micro-batch", type=shared.positive, metavar="N", help="images to back-propagate at a time")
    group.add_argument(
        "--recipe",
        metavar="FILE",
        help="TOML file of runs, or a name in eval/recipes/; options given here override its own",
    )
    add_stream(command)
    shared.add_metrics(shared.add_output(command))
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command, torchrun=True)


def add_stream(command: argparse.ArgumentParser) -> None:
    """Which images a run draws, in which order."""
    group = command.add_argument_group("stream (labels make it and reach no method)")
    group.add_argument(
        "--stream",
        default="iid",
        metavar="iid|sorted|dirichlet:GAMMA",
        help="order, online and episodic: shuffled, class after class, or correlated as in StatA, the more the smaller "
        "GAMMA is, such as 0.1, 0.01 or 0.001 (default: %(default)s)",
    )
    group.add_argument(
        "--classes-present",
        metavar="K|A-B",
        help="classes in each batch, online and episodic, or A to B drawn for each; in the whole domain, transductive",
    )
    group.add_argument(
        "--long-tail", type=float, metavar="RATIO", help="images of the most frequent class for one of the rarest"
    )
    group.add_argument("--mix-domains", action="store_true", help="one stream over all domains; accuracy by domain")
    group.add_argument(
        "--unknown-classes",
        metavar="LIST|K",
        help="classes without prompts, by name between commas, or K of them: their images stay, and count for "
        "unknown_auroc only",
    )


def method(text: str) -> str:
    """A method's name."""
    if text in (*METHODS, *GROUPS):
        return text
    raise argparse.ArgumentTypeError(f"{text!r}; allowed are {ALLOWED}")


def run(options: argparse.Namespace) -> int:
    """Evaluate once, or once for each run of a recipe."""
    shared.check_output(options.output)
    runs = [options]
    if options.recipe is not None:
        from clip_tca.cli.recipe import arguments, find

        lines = arguments(find(options.recipe), options.parser, options.arguments)
        runs = [options.parser.parse_args(line) for line in lines]
        if any(each.dataset is None for each in runs):
            raise ValueError(f"recipe: {options.recipe}: a run has no dataset; add it there, or give --dataset")
    elif options.dataset is None:
        options.parser.error(f"--dataset or --recipe is needed; data sets are {', '.join(shared.DATASETS)}")
    metrics = list(dict.fromkeys(name for each in runs for name in each.metric or ()))
    if "unknown_auroc" in metrics and not all(each.unknown_classes for each in runs):
        raise ValueError("metric: unknown_auroc needs unknown classes; add --unknown-classes LIST|K")
    for each in runs:
        shared.check_inputs(each)
    from clip_tca.core.processes import current
    from clip_tca.evaluation.runner import evaluate
    from clip_tca.results.rendering import render

    records: list[EvaluationRecord] = []
    try:
        for each in runs:
            records.append(evaluate(each.dataset, **keywords(each)))
    except BaseException:
        if records and current().first:  # of a recipe whose later run failed
            sys.stdout.write(render(records, metrics=metrics))
        raise
    if current().first:
        shared.deliver(options, lambda output_format: render(records, output_format, metrics))
    return 0


def keywords(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of :func:`clip_tca.evaluate`."""
    return {
        **shared.inputs(options),
        **shared.given(options, "seed", "text", "labels", "scale", "column", "text_column"),
        "methods": options.method or DEFAULT_METHODS,
        "options": shared.method_options(options),
        **{name: getattr(options, name) for name in PASSED_ON},
    }
