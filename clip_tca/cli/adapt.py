"""``clip-tca adapt``: adapt embeddings from files of any size, a pipe or the hub."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from clip_tca.adapters.registry import ADAPTERS, DEFAULT
from clip_tca.cli import adapt_inputs as inputs
from clip_tca.cli import options as shared
from clip_tca.core.remote import locate
from clip_tca.datasets.formats.kinds import KINDS, Kind

if TYPE_CHECKING:
    from clip_tca.bulk.class_texts import GivenClassifier
    from clip_tca.bulk.job import Job
    from clip_tca.bulk.tally import Tally

METHODS = tuple(name for name, adapter in ADAPTERS.items() if not adapter.oracle)

ABOUT = """\
Adapt stored embeddings in constant memory: one pass for the statistics, one for the map.

EMBEDDINGS is a .npy, .npz, .safetensors, .parquet, Arrow or webdataset .tar file, a folder or a glob pattern of such
shards, a folder of clip-retrieval, or - for standard input: an Arrow IPC stream with a list column of floats, or a .npy
file (implies --online). Every path may be a URL that fsspec takes: s3://, gs://, hf://, memory://.
TEXT is a file of text embeddings, (classes, d) or (templates, classes, d), or with --model a list of class names.
With --head FILE.safetensors (tensors weight and bias) embeddings are features as that layer takes them, not scaled.
A state of --load-state has its own classifier, and needs neither.

The output has the format and the shard names of the input. That of standard input is an Arrow IPC stream: the input's
columns with adapted embeddings (column embeddings for .npy), tca_label and tca_score as --write says; one record batch
for every --batch-size rows, as soon as they have come.
A run over several shards that was killed goes on where it was when the same command is given again.
On several machines: fit once (--fit-only --save-state), then --load-state on each, with its own shards."""


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = ABOUT
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("embeddings", nargs="?", metavar="EMBEDDINGS", help="file, folder, glob pattern or -")
    command.add_argument("--column", metavar="NAME", help="array, tensor or list column with the embeddings")
    command.add_argument("--hub-id", metavar="ID", help="instead: a data set on the hub, with --streaming")
    command.add_argument("--streaming", action="store_true", help="take the data set as a stream, never whole")
    command.add_argument("--revision", help="commit or tag on the hub")
    command.add_argument("--split", default="train", help="of the data set on the hub (default: %(default)s)")
    command.add_argument("--output", "-o", metavar="OUT", help="file or folder; - for standard output")
    command.add_argument(
        "--write", type=kinds, default=("embeddings",), metavar="KINDS", help="embeddings, labels, scores (of labels)"
    )
    command.add_argument(
        "--dtype", choices=("float16", "float32"), help="of embeddings (default: as they came; float32 for float64)"
    )
    command.add_argument("--names", action="store_true", help="write labels as names of the classes, not as numbers")
    command.add_argument("--overwrite", action="store_true", help="replace an output of an earlier run")
    command.add_argument("--drop-bad-rows", action="store_true", help="leave out rows of NaN or infinity")
    command.add_argument("--labels", metavar="FILE", help="true classes (.npy, or text), for scoring only")
    text = command.add_argument_group("classifier")
    either = text.add_mutually_exclusive_group()
    either.add_argument("--text", metavar="TEXT", help="text embeddings, or class names with --model")
    either.add_argument("--head", metavar="FILE", help="instead: the last layer of a model, tensors weight and bias")
    text.add_argument("--text-column", metavar="NAME", help="array or tensor with the text embeddings")
    text.add_argument(
        "--scale", type=shared.number, metavar="S", help="logit scale (default: the file's or model's, else 100)"
    )
    text.add_argument("--model", help="open_clip model to encode class names with")
    text.add_argument("--pretrained", metavar="TAG|FILE", help="its weights (default: openai)")
    shared.add_trust(text)
    text.add_argument(
        "--prompts", default="single", metavar="NAME|FILE", help="single, watt, clip80, templates or .json descriptions"
    )
    text.add_argument("--class-names", metavar="FILE", help="names of the classes, one a line, in their order")
    group = command.add_argument_group("adaptation")
    group.add_argument("--method", choices=METHODS, help=f"default: {DEFAULT}, or that of --load-state")
    shared.add_method(group)
    group.add_argument("--online", action="store_true", help="one pass, in order, learning as it goes")
    group.add_argument(
        "--batch-size",
        type=shared.positive,
        default=128,
        metavar="N",
        help="rows of a batch of --online (default: 128)",
    )
    group.add_argument("--save-state", metavar="FILE", help="save the fitted adapter, for --load-state and export")
    group.add_argument("--load-state", metavar="FILE", help="fit nothing: use an adapter that --save-state saved")
    group.add_argument("--fit-only", action="store_true", help="write no output, only --save-state")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command)


def kinds(text: str) -> tuple[Kind, ...]:
    """``embeddings,labels,scores``, or some of them."""
    words = [word.strip() for word in text.split(",")]
    if any(word not in KINDS for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are {', '.join(KINDS)}, with commas between them")
    return tuple(kind for kind in KINDS if kind in words)


def run(options: argparse.Namespace) -> int:
    """Adapt, and print a summary."""
    check_words(options)
    check_alone()
    shared.check_inputs(options)
    job, given = prepare(options)
    if options.fit_only:
        tally = job.fit()
    elif options.embeddings == "-":
        tally = stream(job, options, given)
    else:
        tally = job.run(locate(options.output), options.overwrite, lambda tally: record(job, tally, options, given))
    summary(job, tally, options, given)
    return 0


def check_words(options: argparse.Namespace) -> None:
    """Which options go together."""
    if options.fit_only:
        if options.save_state is None or options.load_state is not None or options.output is not None:
            options.parser.error("--fit-only needs --save-state FILE, and neither --load-state nor --output")
        if options.online or options.embeddings == "-":
            options.parser.error("--fit-only reads files in any order; leave out --online")
    elif options.output is None:
        options.parser.error("the following arguments are required: --output/-o")
    if options.load_state is None and options.text is None and options.head is None:
        options.parser.error("one of the arguments --text --head --load-state is required")


def check_alone() -> None:
    """Raise ValueError if torchrun has started several processes: each would write the same output."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        raise ValueError(f"adapt: runs in one process, and torchrun started {size}; start it without torchrun")


def prepare(options: argparse.Namespace) -> tuple[Job, GivenClassifier]:
    """Check everything that can be checked before the first pass."""
    import numpy as np

    from clip_tca.bulk.job import Job
    from clip_tca.bulk.layout import Layout, lay_out
    from clip_tca.core.device import choose_device
    from clip_tca.datasets.label_file import read_labels

    if (options.embeddings is None) == (options.hub_id is None):
        raise ValueError(
            "embeddings: name a file, a folder, a pattern or -; or a data set with --hub-id ID --streaming"
        )
    if options.hub_id is not None and not options.streaming:
        raise ValueError("hub_id: embeddings on the hub are taken as a stream; add --streaming")
    check_targets(options)
    device = choose_device(options.device)
    source = inputs.open_source(options)
    chosen, given = inputs.read_adapter(options, device)
    if source.dim != given.classifier.dim:
        whose = {"text": "class texts have", "head": "head has", "state": "state has"}[given.kind]
        raise ValueError(
            f"embeddings: dimension {source.dim}, but the {whose} {given.classifier.dim}; both must come from the "
            "same model"
        )
    fallback = "float16" if source.dtype == np.float16 else "float32"
    dtype = np.dtype(options.dtype or fallback)
    if options.fit_only:
        layout = Layout(source, options.write, dtype, single=False)
    else:
        layout = lay_out(source, locate(options.output), options.write, dtype, label_names(options, given))
    batch = options.batch_size if options.online or options.embeddings == "-" else None
    job = Job(
        layout,
        chosen,
        device,
        loaded=given.about["sha256"] if given.kind == "state" else None,
        batch=batch,
        drop_bad=options.drop_bad_rows,
        labels=None
        if options.labels is None
        else read_labels(locate(options.labels), given.classifier.n_classes).numpy(),
        state=None if options.save_state is None else locate(options.save_state),
        progress=not options.quiet,
    )
    job.check()
    return job, given


def check_targets(options: argparse.Namespace) -> None:
    """Fail before the work, not after it, if a file could not be written."""
    if options.embeddings != "-" and options.output == "-":
        raise ValueError("output: standard output is for embeddings from standard input; name a file or a folder")
    if options.embeddings == "-" and options.output != "-":
        shared.check_output(options.output)
        path = locate(options.output)
        existing = [file for file in (path, path.with_name(f"{path.name}.json")) if file.is_file()]
        if existing and not options.overwrite:
            raise ValueError(f"output: {existing[0]} exists; choose another name, or replace it: --overwrite")
    shared.check_output(options.save_state, "save_state")


def label_names(options: argparse.Namespace, given: GivenClassifier) -> tuple[str, ...] | None:
    """The names to write in place of labels; None for numbers."""
    if not options.names:
        return None
    if "labels" not in options.write:
        raise ValueError("names: they stand for labels, which are not written; add --write labels")
    if given.classes is None:
        raise ValueError("names: the classes have none; give a file with one a line: --class-names FILE")
    return tuple(given.classes)


def name_of(job: Job, options: argparse.Namespace) -> str:
    """Name of the method, or of the class of a loaded state."""
    return type(job.adapter).__name__ if job.loaded else options.method or DEFAULT


def stream(job: Job, options: argparse.Namespace, given: GivenClassifier) -> Tally:
    """Adapt standard input to standard output, or to a file that appears whole."""
    from clip_tca.core.files import atomic, write_text

    if options.output == "-":
        return job.adapt_shards([0], lambda _shard: job.layout.stream(sys.stdout.buffer))
    path = locate(options.output)
    with atomic(path) as part, part.open("wb") as file:
        tally = job.adapt_shards([0], lambda _shard: job.layout.stream(file))
        if part.is_file():  # the record first: where the file is, its record is too
            write_text(path.with_name(f"{path.name}.json"), record(job, tally, options, given))
    return tally


def record(job: Job, tally: Tally, options: argparse.Namespace, given: GivenClassifier) -> str:
    """The record, as JSON."""
    from clip_tca.bulk.job_record import describe

    return json.dumps(describe(job, tally, name_of(job, options), given), indent=1) + "\n"


def summary(job: Job, tally: Tally, options: argparse.Namespace, given: GivenClassifier) -> None:
    """Print a few lines, on standard error if the output goes to standard output."""
    out = sys.stderr if options.output == "-" else sys.stdout
    source = job.layout.source
    shards = len(source.shards)
    files = "" if source.single else f" in {shards} {'shard' if shards == 1 else 'shards'}"
    what = "" if options.fit_only else f", {', '.join(job.layout.kinds)}"
    print(f"{tally.rows} rows of {source.dim} dimensions{files}{what}", file=out)
    if tally.kept:
        print(f"{tally.kept} of the shards had been finished by an earlier run", file=out)
    if dropped := sum(map(len, tally.bad.values())):
        print(f"{dropped} rows of NaN or infinity were left out (the record says which)", file=out)
    if job.labels is not None and tally.rows:
        before, after = (100 * count / tally.rows for count in (tally.right_before, tally.right))
        plain = {"text": "zero-shot", "head": "head", "state": "without"}[given.kind]
        print(f"accuracy (%): {plain} {before:.2f}, {name_of(job, options)} {after:.2f}", file=out)
    if options.output not in ("-", None):
        print(f"written: {options.output}", file=out)
    if options.save_state is not None:
        print(f"state: {options.save_state}", file=out)
