"""``clip-tca adapt``: adapt embeddings from files of any size."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING

from clip_tca.cli import options as shared
from clip_tca.core.checks import counted
from clip_tca.core.remote import is_url, locate
from clip_tca.data.formats import KINDS, Kind
from clip_tca.methods.registry import ADAPTERS, DEFAULT, EMBEDDING_BASES, ZERO_SHOT

if TYPE_CHECKING:
    import torch

    from clip_tca.adapters.base import Adapter
    from clip_tca.bulk.classifiers import GivenClassifier
    from clip_tca.bulk.one_shard import ShardResult
    from clip_tca.bulk.rivals import Rival
    from clip_tca.bulk.run import Run
    from clip_tca.explanation import Outcome, Verdict

log = logging.getLogger("clip_tca")

ASK = "--labels FILE, or clip-tca label --ask 40 with the pictures, tells what adaptation gained or lost"
METHODS = (*[name for name, adapter in ADAPTERS.items() if not adapter.oracle], ZERO_SHOT, *EMBEDDING_BASES)

CLASSIFIER = ("text_column", "scale", "model", "pretrained")  # options of a zero-shot classifier
METHOD = ("method", "k", "shares", "solver", "set")

ABOUT = """\
Adapt stored embeddings in constant memory: fit on a sample of the rows, then adapt shard by shard.

EMBEDDINGS is a .npy, .npz, .safetensors, .parquet or Arrow file, a folder or a glob pattern of such shards, or a folder
of clip-retrieval. Every path may be a URL that fsspec takes: s3://, gs://, hf://, memory://.
TEXT is a file of text embeddings, (classes, d) or (templates, classes, d), or with --model a list of class names.
With --head FILE.safetensors (tensors weight and bias) embeddings are features as that layer takes them, not scaled.
A state of --load-state has its own classifier, and needs neither.

The output has the format and the shard names of the input. If a run is killed, the same command continues where it
stopped; finished shards are not written again."""


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = ABOUT
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add("embeddings", metavar="EMBEDDINGS", help="file, folder or glob pattern")
    add("--column", metavar="NAME", help="array, tensor or list column with the embeddings")
    add("--output", "-o", metavar="OUT", help="file or folder")
    every = "embeddings, labels, scores (of labels)"
    add("--write", type=kinds, default=("embeddings",), metavar="KINDS", help=every)
    dtypes = "of embeddings (default: as they came; float32 for float64)"
    add("--dtype", choices=("float16", "float32"), help=dtypes)
    add("--names", action="store_true", help="write labels as names of the classes, not as numbers")
    add("--overwrite", action="store_true", help="replace files of other inputs or options")
    add("--drop-bad-rows", action="store_true", help="leave out rows of NaN or infinity")
    add("--labels", metavar="FILE", help="true classes (.npy, or text), for scoring only")
    text = command.add_argument_group("classifier")
    either = text.add_mutually_exclusive_group()
    either.add_argument("--text", metavar="TEXT", help="text embeddings, or class names with --model")
    either.add_argument("--head", metavar="FILE", help="instead: the last layer of a model, tensors weight and bias")
    add = text.add_argument
    add("--text-column", metavar="NAME", help="array or tensor with the text embeddings")
    add("--scale", type=shared.number, metavar="S", help="logit scale (default: the file's or model's, else 100)")
    add("--model", help="open_clip model to encode class names with")
    add("--pretrained", metavar="TAG|FILE", help="its weights (default: openai)")
    prompts = "single, watt, clip80, templates or .json descriptions"
    add("--prompts", default="single", metavar="NAME|FILE", help=prompts)
    add("--class-names", metavar="FILE", help="names of the classes, one a line, in their order")
    group = command.add_argument_group("adaptation")
    add = group.add_argument
    names = f"any on embeddings of clip-tca methods (default: {DEFAULT}, or that of --load-state)"
    add("--method", choices=METHODS, metavar="NAME", help=names)
    shared.add_method(group)
    rows = "rows to fit on, evenly spread over all shards, if there are more (default: 200000)"
    add("--fit-rows", type=rows_or_all, default=200_000, metavar="N|all", help=rows)
    add("--online", action="store_true", help="one pass, in order, learning as it goes")
    add("--batch-size", type=shared.positive, default=128, metavar="N", help="of --online (default: 128)")
    add("--save-state", metavar="FILE", help="save the fitted adapter, for --load-state and export")
    add("--load-state", metavar="FILE", help="fit nothing: use a saved adapter (file, folder or hub id)")
    add("--fit-only", action="store_true", help="write no output, only --save-state")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    cluster = "share the shards on a Ray cluster (default: this machine)"
    add("--ray", nargs="?", const="", metavar="ADDRESS", help=cluster)
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command)


def rows_or_all(text: str) -> int | None:
    """A number of rows, or ``all``."""
    return None if text == "all" else shared.positive(text)


def kinds(text: str) -> tuple[Kind, ...]:
    """``embeddings,labels,scores``, or some of them."""
    words = [word.strip() for word in text.split(",")]
    if any(word not in KINDS for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are {', '.join(KINDS)}, with commas between them")
    return tuple(kind for kind in KINDS if kind in words)


def check_words(options: argparse.Namespace) -> None:
    """Which options go together."""
    error, loaded = options.parser.error, options.load_state is not None
    others = (options.output, options.load_state, options.ray)
    if options.fit_only and (options.save_state is None or options.online or others != (None, None, None)):
        error("--fit-only needs --save-state FILE; leave out --load-state, --output, --online and --ray")
    if not options.fit_only and options.output is None:
        error("the following arguments are required: --output/-o")
    if not loaded and options.text is None and options.head is None:
        error("one of the arguments --text --head --load-state is required")
    if options.online and (loaded or options.ray is not None):
        error("--online learns from one batch after the other; leave out --load-state and --ray")
    if loaded and options.save_state is not None:
        error("--load-state learns nothing new; leave out --save-state")


def run(options: argparse.Namespace) -> int:
    """Adapt, and print a summary."""
    check_words(options)
    shared.check_output(options.save_state, "save_state")
    from clip_tca.bulk.run import Run
    from clip_tca.core.machine import choose_device
    from clip_tca.data.embeddings import read_labels
    from clip_tca.data.shards import open_embeddings

    device = choose_device(options.device)
    source = open_embeddings(address(options.embeddings, options), options.column)
    adapter, given = read_adapter(options, device)
    labels = None if options.labels is None else read_labels(locate(options.labels), given.classifier.n_classes).numpy()
    job = Run(
        source=source,
        adapter=adapter,
        given=given,
        method=type(adapter).__name__ if options.load_state else options.method or DEFAULT,
        device=device,
        target=None if options.output is None else locate(address(options.output, options)),
        kinds=options.write,
        dtype=options.dtype,
        names=options.names,
        labels=labels,
        drop_bad_rows=options.drop_bad_rows,
        overwrite=options.overwrite,
        fit_rows=options.fit_rows,
        batch=options.batch_size if options.online else None,
        ray=options.ray,
        gpus=options.device != "cpu",
        shown=not options.quiet,
    )
    job.check()
    results = job.adapt()
    if options.save_state is not None:
        job.adapter.save(options.save_state)  # type: ignore[union-attr]  # read_adapter refuses it for a Rival
    summary(options, job, results)
    return 0


def address(path: str, options: argparse.Namespace) -> str:
    """A path as the workers of Ray, which have folders of their own, can be told of it."""
    return path if options.ray is None or is_url(path) else os.path.abspath(path)


def read_adapter(options: argparse.Namespace, device: torch.device) -> tuple[Adapter | Rival, GivenClassifier]:
    """The adapter, new or saved, and where its classifier came from; with the names of --class-names."""
    from clip_tca.bulk.classifiers import GivenClassifier
    from clip_tca.bulk.rivals import Rival
    from clip_tca.data.prompts import read_classes
    from clip_tca.evaluation.method_spec import method_specs

    names = None if options.class_names is None else list(read_classes(locate(options.class_names)).values())
    if options.load_state is not None:
        from clip_tca.adapters.state import load, state_file
        from clip_tca.core.files import sha256

        _leave_out(options, "--load-state has its own classifier", "text", "head", *CLASSIFIER)
        _leave_out(options, "--load-state has its own options", *METHOD)
        path = state_file(options.load_state)
        adapter = load(path, device)
        about = {"file": path.name, "sha256": sha256(path), "classes": adapter.g.n_classes}
        given = GivenClassifier(adapter.g, about, kind="state")
        if names is not None:
            adapter.classifier = adapter.g.named(names)
    else:
        given = read_classifier(options, device)
        classifier = given.classifier if names is None else given.classifier.named(names)
        spec = method_specs([options.method or DEFAULT], shared.method_options(options))[0]
        made = spec.adapter(classifier)
        if made is None:
            _leave_out(options, f"{spec.name} keeps no state", "save_state")
            return Rival(spec.name, classifier, options.batch_size, **spec.base_options), given
        adapter = made
    if adapter.uses_labels:
        raise ValueError("shares: 'oracle' uses true labels and is for evaluation only; use clip-tca eval")
    return adapter, given


def read_classifier(options: argparse.Namespace, device: torch.device) -> GivenClassifier:
    """The classifier: a head, or zero-shot from text embeddings or class names."""
    from clip_tca.bulk import classifiers

    if options.head is not None:
        _leave_out(options, f"head: {options.head} is the whole classifier", *CLASSIFIER)
        return classifiers.read_head(locate(options.head), str(device))
    path = locate(options.text)
    if options.model is None:
        return classifiers.read_texts(path, options.text_column, options.scale, str(device))
    from clip_tca.encoding.base import make_encoder
    from clip_tca.encoding.store import Store

    store = Store()
    encoder = make_encoder(options.model, options.pretrained, str(device), "auto", store)
    return classifiers.encode_texts(path, options.prompts, encoder, store, options.scale)


def _leave_out(options: argparse.Namespace, why: str, *names: str) -> None:
    if given := next((name for name in names if getattr(options, name) is not None), None):
        raise ValueError(f"{why}; leave out --{given.replace('_', '-')}")


def summary(options: argparse.Namespace, job: Run, results: list[ShardResult]) -> None:
    """Print a few lines."""
    source, rows = job.source, sum(result.rows for result in results) if results else job.adapter.n_seen_
    shards, skipped = len(source.shards), sum(result.skipped for result in results)
    files = "" if source.single else f" in {counted(shards, 'shard')}"
    kinds = ", ".join(options.write) if results else "fitted"
    print(f"{counted(rows, 'row')} of {source.dim} dimensions{files}, {kinds}")
    if skipped:
        rest = f"{skipped} of the shards had been finished by an earlier run"
        print("nothing was left to do: all of it is there" if skipped == shards else rest)
    if dropped := sum(result.left_out for result in results):
        print(f"left out: {counted(dropped, 'row')} of NaN or infinity (the record says which)")
    if options.labels is not None and rows:
        before, after = (100 * sum(getattr(r, name) for r in results) / rows for name in ("correct_before", "correct"))
        plain = {"text": "zero-shot", "head": "head", "state": "without"}[job.given.kind]
        print(f"accuracy (%): {plain} {before:.2f}, {job.method} {after:.2f}")
    for title, path in (("written", options.output), ("state", options.save_state)):
        if path is not None:
            print(f"{title}: {path}")
    print("\n".join([*scale_lines(job), *(trust_lines(job, results) if job.method != ZERO_SHOT else [])]))


def scale_lines(job: Run) -> list[str]:
    """The logit scale and where it came from; a warning if that is no file or model, and confidences look wrong."""
    from clip_tca.adapters.diagnosis import kept_rows
    from clip_tca.bulk.classifiers import scale_doubt
    from clip_tca.bulk.rivals import Rival

    about, adapter = job.given.about, job.adapter
    rows = adapter.kept_.rows() if isinstance(adapter, Rival) else kept_rows(adapter)
    if "scale" not in about:
        return []
    sources = {"given": "--scale", "model": f"that of {about.get('model')}", "file": f"that of {about['file']}"}
    source = sources.get(about["scale_from"])
    if (
        about["scale_from"] in ("given", "assumed")
        and rows is not None
        and (doubt := scale_doubt(job.given.classifier, rows))
    ):
        log.warning("logit scale %g: %s; give the model's own by --scale S", about["scale"], doubt)
    return [f"logit scale: {about['scale']:g} ({source or 'assumed, as the file of texts has none; --scale S'})"]


def trust_lines(job: Run, results: list[ShardResult]) -> list[str]:
    """How many predictions changed, of those that the adapter keeps, the verdict, and what to do next."""
    from clip_tca.adapters.diagnosis import diagnose, kept_rows
    from clip_tca.bulk.rivals import Rival
    from clip_tca.explanation import LABELLED, Finding, closing_lines, verdict
    from clip_tca.results.intervals import half_width, outcome

    rows, adapter = sum(result.rows for result in results), job.adapter
    says: Verdict | Outcome | None = None
    changed: float | None
    if isinstance(adapter, Rival):
        changed, counted, is_exact = adapter.changed_, adapter.n_seen_, True
    else:
        diagnosis, kept = diagnose(adapter), kept_rows(adapter)
        says, share, counted = verdict(diagnosis), diagnosis["changed"], 0 if kept is None else len(kept)
        changed = None if share is None else share * counted
        is_exact = not counted or (counted == (rows or adapter.n_seen_) and not job.batch)
    if job.labels is not None and changed is not None and rows:
        gained = sum((result.correct or 0) - (result.correct_before or 0) for result in results)
        says = outcome(gained, half_width(changed / counted * rows))
    ask = ASK if job.labels is None else LABELLED
    what = "predictions" if is_exact else "predictions in a sample"
    return closing_lines(job.method, {"": Finding(changed, counted, says)}, ask, what)
