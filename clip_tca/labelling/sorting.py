"""Pictures into one folder for each label, as links or copies, and back again. Nothing is moved or overwritten."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clip_tca.core.files import write_text
from clip_tca.core.folders import default_root
from clip_tca.core.remote import is_url
from clip_tca.data.pictures import Source, content

REVIEW = "review"  # the folder of pictures that have no label
UNDO = "undo.csv"  # the list of links and copies, in the same folder: a path below it, and a mark of its content


def check_folder(folder: str | Path) -> None:
    """Raise ValueError unless ``folder`` is new or empty, and on this machine."""
    if is_url(folder):
        raise ValueError(f"sort into: {folder} is in a store; name a folder of this machine")
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        undo = f"; or undo the last run: clip-tca label --undo {folder}" if (folder / UNDO).is_file() else ""
        raise ValueError(f"sort into: {folder} is not empty; name a new folder{undo}")


def sort_into(
    folder: Path, names: Sequence[str], pictures: Sequence[Source], labels: Sequence[str], copy: bool = False
) -> int:
    """Put every picture into the folder of its label, and those with an empty one into ``review``; their number.

    Files of this machine are linked, unless ``copy``; where the system allows no links, or the file is in our cache,
    they are copied. The list for :func:`undo` is written first, so that a run that was killed can be undone too.
    """
    check_folder(folder)
    folders = folder_names(sorted({label for label in labels if label}))
    targets: dict[str, str | Path | bytes] = {}
    taken: set[str] = set()
    for name, picture, label in zip(names, pictures, labels, strict=True):
        if picture is not None:
            targets[_free(f"{folders.get(label, REVIEW)}/{_file_name(name, picture)}", name, taken)] = picture
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    rows = [("made", "mark"), *((target, content(picture)) for target, picture in targets.items())]
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(folder / UNDO, text.getvalue())
    for target, picture in targets.items():
        (folder / target).parent.mkdir(exist_ok=True)
        _put(folder / target, picture, copy)
    return len(targets)


def undo(folder: Path) -> tuple[int, int]:
    """Remove what :func:`sort_into` made; how many files, and how many stay because they have changed since."""
    path = folder / UNDO
    if not path.is_file():
        raise FileNotFoundError(f"undo: {path}: no such file; name a folder that --sort-into made")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    removed, kept = 0, 0
    for row in rows:
        target = folder / (row.get("made") or "")
        if not target.resolve().parent.is_relative_to(folder.resolve()) and not target.is_symlink():
            raise ValueError(f"undo: {path} names {row.get('made')!r}, which is not in {folder}; the list was edited")
        if target.is_symlink() or (target.is_file() and content(target) == row["mark"]):
            target.unlink()
            removed += 1
        elif target.exists():
            kept += 1
    for inner in {(folder / row["made"]).parent for row in rows}:
        with suppress(OSError):  # something else is in it
            inner.rmdir()
    if not kept:
        path.unlink()
        with suppress(OSError):
            folder.rmdir()
    return removed, kept


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A folder name for each label that any file system takes; no two are the same, and none is ``review``."""
    taken, names = {REVIEW}, {}
    for label in labels:
        plain = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", label).strip(". ")[:100] or "_"
        name, number = plain, 2
        while name.casefold() in taken:
            name, number = f"{plain} ({number})", number + 1
        taken.add(name.casefold())
        names[label] = name
    return names


def _file_name(name: str, picture: Source) -> str:
    last = re.split(r"[/\\]", name)[-1]
    return last if isinstance(picture, (str, Path)) or "." in last else f"{last}.png"


def _free(target: str, name: str, taken: set[str]) -> str:
    """``target``, or one with the folders of the picture in its name, or with a number, that is not taken yet."""
    stem, suffix = os.path.splitext(target)
    parent = "_".join(re.split(r"[/\\]", name)[:-1])[-100:]
    numbered = (f"{stem} ({number}){suffix}" for number in itertools.count(2))
    candidates = itertools.chain([target, *([f"{stem} ({parent}){suffix}"] if parent else [])], numbered)
    free = next(candidate for candidate in candidates if candidate.casefold() not in taken)
    taken.add(free.casefold())
    return free


def _put(target: Path, picture: Source, copy: bool) -> None:
    if isinstance(picture, bytes):
        with target.open("xb") as file:
            file.write(picture)
        return
    source = Path(str(picture)).absolute()
    if not copy and not source.is_relative_to(default_root().absolute()):
        try:
            target.symlink_to(source)
            return
        except FileExistsError:
            raise
        except OSError:  # links need a right on Windows, and some disks have none
            pass
    with source.open("rb") as content, target.open("xb") as file:
        shutil.copyfileobj(content, file)
