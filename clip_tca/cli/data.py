"""``clip-tca data``: list the data sets, get one, check a copy against the published counts, show the demo."""

from __future__ import annotations

import argparse
from pathlib import Path

from clip_tca.cli import options as shared
from clip_tca.datasets.corruptions import COMMON, EXTRA
from clip_tca.datasets.mirrors import MIRRORS
from clip_tca.datasets.registry import BENCHMARKS, Benchmark

WIDTH = 17
"""Of the column of names."""

OTHERS = {
    "folder": "your own images: --data-dir DIR with DIR/domain/class/image or DIR/class/image, or --hub-id ID",
    "demo": "icons, clip art and sketches in this package, with a small model of its own; needs no download",
    "synthetic": "made-up embeddings; needs neither pictures nor a model",
}
"""Data sets that are not benchmarks."""


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="the data sets that have a name").set_defaults(run=list_datasets)
    get = actions.add_parser(
        "get",
        help="load a benchmark from the first of its mirrors that has it whole",
        description="Load benchmarks into the folder where eval looks for them. A killed run goes on where it was; the "
        "images are counted, and hashes recorded.",
    )
    get.add_argument("dataset", nargs="+", metavar="NAME", help=", ".join(MIRRORS))
    get.add_argument(
        "--mirror",
        action="append",
        metavar="ADDRESS",
        help="instead of the known ones: an archive (address or file), or OWNER/NAME[@REVISION] on the hub; repeatable",
    )
    get.add_argument("--data-dir", metavar="DIR", help="load into DIR/NAME (default: data/NAME beside the store)")
    shared.add_quiet(get)
    get.set_defaults(run=load)
    check = actions.add_parser("check", help="compare a copy with the published counts")
    shared.add_data(check)
    check.set_defaults(run=compare)
    show = actions.add_parser("show", help="a contact sheet of the demo's pictures, as PNG")
    show.add_argument("dataset", choices=["demo"])
    show.add_argument("--columns", type=shared.positive, default=6, metavar="N", help="default: %(default)s")
    show.add_argument("--all", action="store_true", help="every picture, not only one row of each class")
    show.add_argument("--output", "-o", metavar="FILE", default="clip-tca-demo.png", help="default: %(default)s")
    show.set_defaults(run=sheet)


def list_datasets(_options: argparse.Namespace) -> int:
    """Name, counts, domains and hub id of each benchmark."""
    for benchmark in BENCHMARKS.values():
        mirror = (benchmark.hub_id or "none") + ("" if benchmark.verified else " (community copy, counts are checked)")
        chosen = benchmark.only((), ()) if benchmark.corrupted else benchmark
        total = f"{sum(chosen.images.values()):6d} images" if chosen.images else "not counted  "
        print(f"{benchmark.name:{WIDTH}}{total}  {len(benchmark.classes):4d} classes  hub: {mirror}")
        print(" " * WIDTH + _domains(benchmark))
    for name, about in OTHERS.items():
        print(f"{name:{WIDTH}}{about}")
    return 0


def load(options: argparse.Namespace) -> int:
    """Get each data set, and print where it is; 1 if one of several failed."""
    from clip_tca.datasets.local_copy import Getter, receipt

    if options.mirror and len(options.dataset) > 1:
        raise ValueError("mirror: an address is of one data set; name one")
    getters = [
        Getter.of(name, options.mirror or (), options.data_dir, not options.quiet)
        for name in dict.fromkeys(options.dataset)
    ]
    failures = []
    for getter in getters:
        try:
            folder = getter.get()
        except (ValueError, OSError) as error:
            failures.append(error)
            continue
        about, name = receipt(folder), getter.benchmark.name
        images = sum(domain["images"] for domain in about["domains"].values())
        counted = "as published" if getter.benchmark.images else "no published counts to compare with"
        print(f"{name}: {images} images, {len(about['domains'])} domains, {counted}, from {about['mirror']}")
        print(f"  {folder}")
        where = f" --data-dir {folder}" if options.data_dir else ""
        print(f"  next: clip-tca eval --dataset {name}{where}")
    if failures:
        raise ValueError("\n  ".join(map(str, failures)))
    return 0


def _domains(benchmark: Benchmark) -> str:
    """The domains with their counts, in one line."""
    counts = {name: benchmark.images.get(name) for name in benchmark.domains}
    if benchmark.corrupted:
        each = next(iter(counts.values()))
        return (
            f"{len(COMMON)} corruptions, severity 5 (--corruption {', '.join(EXTRA)}; --severity 1 to 5), {each} each"
        )
    listed = ", ".join(name if count is None else f"{name} {count}" for name, count in counts.items())
    if benchmark.form == "listed":
        listed += f", CoOp's split ({benchmark.listed})"
    if other := benchmark.hub_split:
        listed += f"; on the hub {other.images}, another split: {other.whose}"
    return listed


def compare(options: argparse.Namespace) -> int:
    """Counts for each domain and class against the published ones; 1 if they differ."""
    from clip_tca.datasets.image_source import ImageSource

    data = ImageSource(options.dataset, **shared.given(options, *shared.DATA)).load()
    counts = data.counts()
    width = max(map(len, [*data.classes, "class"]))
    for domain in dict.fromkeys([*data.expected, *data.domains]):
        images, published = sum(counts.get(domain, [])), data.expected.get(domain)
        print(f"{domain}: {images} images" + ("" if published is None else f", {published} published"))
        per_class = counts.get(domain, [0] * len(data.classes))
        expected = data.expected_classes.get(domain, [None] * len(data.classes))
        for name, count, wanted in zip(data.classes, per_class, expected, strict=True):
            note = "" if wanted is None else f" of {wanted}" + ("" if count == wanted else "  <- differs")
            print(f"  {name:{width}} {count:5d}{note or ('  <- missing' if not count else '')}")
    for name in data.ignored:
        print(f"extra, not used: {name}")
    if data.other_split:
        print(f"note: {data.other_split}")
    differences = data.differences()
    if missing := [domain for domain in data.expected if domain not in data.domains]:
        print(f"missing domains: {', '.join(missing)}")
    if not data.expected:
        print("no published counts to compare with")
    else:
        print("complete" if not differences else f"{len(differences)} differences from the published counts")
    return 1 if differences else 0


def sheet(options: argparse.Namespace) -> int:
    """Write the contact sheet."""
    from clip_tca.core.files import atomic
    from clip_tca.datasets.demo import contact_sheet

    shared.check_output(options.output)
    picture = contact_sheet(options.columns, options.all)
    with atomic(Path(options.output)) as part:
        picture.save(part, format="PNG")
    print(f"written: {options.output}")
    return 0
