"""``clip-tca data``: list the data sets, get one, check a copy against the published counts."""

from __future__ import annotations

import argparse
from pathlib import Path

from clip_tca.cli import options as shared
from clip_tca.core.checks import counted
from clip_tca.data.registry import BENCHMARKS, COMMON, EXTRA, Benchmark

WIDTH = 17  # of the column of names

OTHERS = {  # data sets that are not benchmarks
    "folder": "your own images: --data-dir DIR with DIR/domain/class/image or DIR/class/image, or --hub-id ID",
    "demo": "bundled icons, clip art and sketches, with a small bundled model; needs no download",
    "synthetic": "made-up embeddings; needs neither pictures nor a model",
}


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="the data sets that have a name").set_defaults(run=list_datasets)
    about = "Download a benchmark from the first mirror that has all of it to the folder where eval looks for it."
    get = actions.add_parser("get", help=about, description=about)
    get.add_argument("dataset", nargs="+", metavar="NAME", help=", ".join(_known()))
    source = "another source: an archive (address or file), or OWNER/NAME[@REVISION] on the hub; repeatable"
    get.add_argument("--mirror", action="append", metavar="ADDRESS", help=source)
    get.add_argument("--data-dir", metavar="DIR", help="download to DIR/NAME (default: data/NAME in the cache folder)")
    shared.add_quiet(get)
    get.set_defaults(run=load)
    check = actions.add_parser("check", help="compare a copy with the published counts")
    shared.add_data(check)
    check.set_defaults(run=compare)


def _known() -> list[str]:
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.mirrors]


def list_datasets(_options: argparse.Namespace) -> int:
    """Name, counts, domains and hub id of each benchmark."""
    for benchmark in BENCHMARKS.values():
        images = (benchmark.only() if benchmark.corrupted else benchmark).images
        total = f"{sum(images.values()):6d} images" if images else "not counted  "
        hub = benchmark.hub_id or "none"
        print(f"{benchmark.name:{WIDTH}}{total}  {len(benchmark.classes):4d} classes  hub: {hub}")
        print(" " * WIDTH + _domains(benchmark))
    for name, about in OTHERS.items():
        print(f"{name:{WIDTH}}{about}")
    return 0


def _domains(benchmark: Benchmark) -> str:
    if benchmark.corrupted:
        each = next(iter(benchmark.images.values()))
        extra = ", ".join(EXTRA)
        return f"{len(COMMON)} corruptions, severity 5 (--corruption {extra}; --severity 1 to 5), {each} each"
    listed = ", ".join(f"{name} {benchmark.images.get(name, '')}".rstrip() for name in benchmark.domains)
    listed += f", CoOp's split ({benchmark.listed})" if benchmark.listed else ""
    other = benchmark.hub_split
    return listed + (f"; on the hub {other.images}, another split: {other.whose}" if other else "")


def load(options: argparse.Namespace) -> int:
    """Get each data set, and print where it is."""
    from clip_tca.data.local_copy import get, mirrors_of, receipt

    names, addresses = list(dict.fromkeys(options.dataset)), options.mirror or ()
    if addresses and len(names) > 1:
        raise ValueError("mirror: an address has one data set; name only that one")
    mirrors = {name: mirrors_of(name, addresses) for name in names}
    for name in names:
        if name not in BENCHMARKS or not mirrors[name]:
            own = f", or {name} with --mirror ADDRESS" if name in BENCHMARKS else ""
            raise ValueError(f"data: {name!r} has no known mirror; allowed are {', '.join(_known())}{own}")
    for name in names:
        root = Path(options.data_dir).expanduser() if options.data_dir else None
        folder = get(name, mirrors[name], root, not options.quiet)
        about = receipt(folder)
        images = sum(domain["images"] for domain in about["domains"].values())
        compared = "as published" if BENCHMARKS[name].images else "no published counts to compare with"
        domains = counted(len(about["domains"]), "domain")
        print(f"{name}: {counted(images, 'image')}, {domains}, {compared}, from {about['mirror']}")
        print(f"  {folder}")
        print(f"  next: clip-tca eval --dataset {name}{f' --data-dir {folder}' if root else ''}")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Counts for each domain and class against the published ones; 1 if they differ."""
    from clip_tca.data.image_source import ImageSource

    data = ImageSource(options.dataset, **shared.given(options, *shared.DATA)).load()
    counts = data.counts()
    width = max(map(len, [*data.classes, "class"]))
    for domain in dict.fromkeys([*data.expected, *data.domains]):
        images, published = sum(counts.get(domain, [])), data.expected.get(domain)
        print(f"{domain}: {counted(images, 'image')}" + ("" if published is None else f", {published} published"))
        per_class = counts.get(domain, [0] * len(data.classes))
        expected = data.expected_classes.get(domain, [None] * len(data.classes))
        for name, count, wanted in zip(data.classes, per_class, expected, strict=True):
            note = "" if wanted is None else f" of {wanted}" + ("" if count == wanted else "  <- differs")
            print(f"  {name:{width}} {count:5d}{note or ('  <- missing' if not count else '')}")
    for name in data.ignored:
        print(f"extra, not used: {name}")
    if data.other_split:
        print(f"note: {data.other_split}")
    if missing := [domain for domain in data.expected if domain not in data.domains]:
        print(f"missing domains: {', '.join(missing)}")
    differences = data.differences()
    found = f"{counted(len(differences), 'difference')} from the published counts" if differences else "complete"
    print(found if data.expected else "no published counts to compare with")
    return 1 if differences else 0
