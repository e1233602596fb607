"""``clip-tca label``: pictures in, labels out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from clip_tca.cli import options as shared
from clip_tca.core.checks import counted
from clip_tca.core.remote import locate
from clip_tca.methods.registry import DEFAULT, METHODS
from clip_tca.results.predictions import SUFFIXES as TABLES

if TYPE_CHECKING:
    from clip_tca.labelling.change import Change
    from clip_tca.labelling.label import Labelling

ABOUT = """\
Label pictures that have no labels. CLIP encodes them and classifies them by the names of the classes. Adapting to all
pictures together then corrects many labels that CLIP gets wrong on its own.

PICTURES is a folder with anything below it, files, a glob pattern in quotes, a .zip or .tar archive, a Parquet file, a
text file with one path per line, an address such as s3://bucket/folder, or demo for the bundled pictures."""

MOST_CLASSES = 30  # lines of the table of classes

ASK = "--ask 40 --overwrite asks you about forty of the changed pictures and estimates what adaptation gained or lost"


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = ABOUT
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add("pictures", nargs="*", metavar="PICTURES", help="folder, files, pattern, archive, table or address")
    add("--classes", metavar="NAMES|FILE", help='"dog, cat, horse", or a file with one class per line')
    add("--output", "-o", metavar="FILE", help=".csv, .parquet or .json: a row for each picture")
    add("--html", metavar="FILE", help="write a page with the pictures: what changed, the least certain, every class")
    ask = "write a page that asks you what N of the changed pictures show, such as 40: ask.html, or beside -o FILE"
    add("--ask", type=shared.positive, metavar="N", help=ask)
    answers = "the answers that page saved: print how accuracy changed, with a 95 %% interval"
    add("--answers", metavar="FILE", help=answers)
    add("--overwrite", action="store_true", help="replace files that exist")
    add("--top", type=shared.positive, default=0, metavar="K", help="also write the K most probable classes")
    review = "leave uncertain pictures without a label, so that at most this share of the others should be wrong"
    add("--review-below", type=shared.share, metavar="P", help=f"{review}, such as 0.05")
    into = "link the pictures into a new folder DIR, with a folder for each label; nothing is moved"
    add("--sort-into", metavar="DIR", help=into)
    add("--copy", action="store_true", help="copy them instead")
    add("--undo", metavar="DIR", help="only remove what --sort-into made in DIR")
    add("--domains", dest="by_domain", action="store_true", help="adapt to each subfolder by itself")
    group = command.add_argument_group("pictures in tables")
    group.add_argument("--hub-id", metavar="ID", help="data set on the hub, or a saved data set, instead of PICTURES")
    group.add_argument("--revision", help="commit or tag on the hub")
    for what in ("image", "domain"):
        group.add_argument(f"--{what}-column", metavar="NAME", help=f"column with the {what}s")
    shared.add_model(command)
    shared.add_prompts(command, class_names=False)
    group = command.add_argument_group("adaptation")
    names = f"see clip-tca methods (default: {DEFAULT})"
    group.add_argument("--method", choices=METHODS, default=DEFAULT, metavar="NAME", help=names)
    shared.add_method(group)
    shared.add_quiet(command)
    command.set_defaults(run=run, parser=command)


def run(options: argparse.Namespace) -> int:
    """Label, write what was asked for, and print a summary."""
    if options.undo is not None:
        return take_back(Path(options.undo))
    check(options)
    from clip_tca.labelling.change import estimate_change, read_answers
    from clip_tca.labelling.label import run_labelling

    answers = None if options.answers is None else read_answers(options.answers)
    labelling = run_labelling(
        options.pictures or None,
        options.classes,
        method=options.method,
        options=shared.method_options(options),
        top=options.top,
        review_below=options.review_below,
        by_domain=options.by_domain,
        **shared.inputs(options),
    )
    change = None if answers is None else estimate_change(labelling.table, answers)
    written = write(options, labelling)  # after the answers: wrong ones are noticed before anything is written
    estimate = [] if change is None else [estimate_line(change), ""]
    asked = next_step(options) if options.ask is not None and labelling.table["changed"].any() else ""
    print("\n".join([*estimate, *summary(labelling), *written, *trust_lines(labelling, change, asked)]))
    return 0


def check(options: argparse.Namespace) -> None:
    """Raise, before any work, for options that can't work."""
    if not options.pictures and options.hub_id is None:
        options.parser.error("PICTURES or --hub-id is needed")
    if options.classes is None and options.pictures != ["demo"]:
        options.parser.error('--classes is needed: "dog, cat, horse", or a file with one class per line')
    shared.check_output(options.output, "output", TABLES, options.overwrite)
    shared.check_output(options.html, "html", (), options.overwrite)
    if options.ask is not None:
        shared.check_output(ask_file(options), "ask", (), options.overwrite)
    if options.sort_into is not None:
        from clip_tca.labelling.sorting import check_folder

        check_folder(options.sort_into)


def write(options: argparse.Namespace, labelling: Labelling) -> list[str]:
    """Write what was asked for; a line about each."""
    lines = []
    if options.output is not None:
        from clip_tca.results.predictions import write_table

        write_table(locate(options.output), labelling.table)
        lines.append(f"written: {options.output}")
    if options.html is not None:
        from clip_tca.core.files import write_text
        from clip_tca.labelling.page import page

        write_text(locate(options.html), page(labelling))
        lines.append(f"written: {options.html} (open it in a browser)")
    if options.ask is not None:
        lines.append(write_questions(options, labelling))
    if options.sort_into is not None:
        from clip_tca.labelling.sorting import UNDO, sort_into

        domains = labelling.pictures.domains.values()
        pictures = [domain.picture(i) for domain in domains for i in range(len(domain))]
        names, labels = labelling.table["file"].tolist(), labelling.table["label"].tolist()
        count = sort_into(Path(options.sort_into), names, pictures, labels, options.copy)
        lines.append(f"sorted: {counted(count, 'picture')} into {options.sort_into}, with the list {UNDO}")
        lines.append(f"  to undo it: clip-tca label --undo {options.sort_into}")
    if not lines and options.answers is None:
        lines.append("Nothing was written. To keep the labels, add -o labels.csv")
    return lines


def ask_file(options: argparse.Namespace) -> str:
    """The page of ``--ask``: beside the table, if there is one."""
    return "ask.html" if options.output is None else f"{options.output.rpartition('.')[0]}.ask.html"


def write_questions(options: argparse.Namespace, labelling: Labelling) -> str:
    """Write the page of ``--ask``; a line about it."""
    from clip_tca.core.files import write_text
    from clip_tca.labelling.page import ask_page

    if not labelling.table["changed"].any():
        return "Nothing to ask: no label changed."
    text, asked = ask_page(labelling, options.ask, "answers.csv")
    write_text(locate(ask_file(options)), text)
    return f"written: {ask_file(options)} asks about {asked} of the changed pictures"


def next_step(options: argparse.Namespace) -> str:
    """What to do with the page of ``--ask``."""
    again = " --overwrite" if options.output or options.html else ""  # they have been written by then
    answer = f"open {ask_file(options)} in a browser, answer, and save answers.csv"
    return f"What next: {answer}; then run the same command with --answers answers.csv{again} instead of --ask."


def take_back(folder: Path) -> int:
    """Undo ``--sort-into``."""
    from clip_tca.labelling.sorting import undo

    removed, kept = undo(folder)
    stay = f"; {kept} changed since and stayed" if kept else ""
    print(
        f"removed: {counted(removed, 'link')} or copies from {folder}{stay}; the pictures themselves were not touched"
    )
    return 0


# -- on the screen -----------------------------------------------------------------------------------------------------


def summary(labelling: Labelling) -> list[str]:
    """How many pictures, and the classes before and after."""
    from clip_tca.labelling.label import FEW

    table, count = labelling.table, len(labelling.table)
    review = int(table.get("review", table["changed"] & False).sum())
    model = labelling.embedded.about["model"]
    lines = [f"{counted(count, 'picture')}, {len(labelling.classes)} classes; model {model['model'] if model else ''}."]
    if labelling.pictures.ignored:
        some = ", ".join(labelling.pictures.ignored[:3])
        lines.append(f"left out: {counted(len(labelling.pictures.ignored), 'file')} of another kind, such as {some}")
    if left_out := labelling.embedded.about["data"]["left_out"]:
        lines.append(f"left out: {counted(left_out, 'picture')} that can't be read")
    if count < FEW:
        lines.append(f"Fewer than {FEW} pictures: there is little to adapt to, so expect few changes.")
    lines += ["", *class_lines(labelling), ""]
    if review:
        lines.append(f"For you to look at: {counted(review, 'picture')}. The other {count - review} have a label.")
    return lines


def class_lines(labelling: Labelling) -> list[str]:
    """Classes with their counts before and after; of many, those that changed most."""
    before, after = (column.value_counts() for column in (labelling.table["zero_shot"], labelling.proposed))
    rows = [(name, int(before.get(name, 0)), int(after.get(name, 0))) for name in labelling.classes]
    shown = sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:MOST_CLASSES] if len(rows) > MOST_CLASSES else rows
    width = max(map(len, [name for name, *_ in shown] + ["class"]))
    lines = [f"{'class':{width}}  before   after", *(f"{name:{width}}  {a:6d}  {b:6d}" for name, a, b in shown)]
    return lines + [f"and {len(rows) - len(shown)} classes that changed less"] * (len(rows) > len(shown))


def estimate_line(change: Change) -> str:
    """What the answers say."""
    left_out = f', and {change.unknown} "can\'t tell"' if change.unknown else ""
    return f"By {counted(change.answered, 'answer')}{left_out}, accuracy changed by {change}."


def trust_lines(labelling: Labelling, change: Change | None = None, asked: str = "") -> list[str]:
    """How many labels changed, the verdict, by the answers if there are some, and what to do next, or ``asked``."""
    from clip_tca.explanation import Finding, closing_lines

    if labelling.method == "zero-shot":
        return []
    domains = [domain for domain, (z, _) in labelling.embedded.data.domains.items() for _ in z]
    parts = labelling.table["changed"].groupby(domains, sort=False)
    findings = {name: Finding(part.sum(), len(part), labelling.trust.get(name)) for name, part in parts}
    if change is None:
        lines = closing_lines(labelling.method, findings, ASK, "labels")
        return [*lines[:-1], asked] if asked else lines
    findings = {"": Finding(change.changed, change.pictures, change.says)}
    more = change.answered + change.unknown < change.changed
    ask = "--ask with more pictures narrows the interval" if more else "you answered about every changed picture"
    lines = closing_lines(labelling.method, findings, ask, "labels")
    return [line.replace("by the labels", "by your answers") for line in lines]
