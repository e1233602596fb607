"""Pictures into one folder for each label, as links or copies, and back again. Nothing is moved or overwritten."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clip_tca.core.files import write_text
from clip_tca.core.folders import default_root
from clip_tca.datasets.pictures import Source, content

REVIEW = "review"
"""The folder of pictures that have no label."""

UNDO = "undo.csv"
"""The list of what was made, in the folder that was sorted into: a path below it, and a mark of its content."""


def check_folder(folder: Path) -> None:
    """Raise ValueError unless ``folder`` is new or empty."""
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
    homes = folder_names(sorted({label for label in labels if label}))
    taken: set[str] = set()
    rows: list[tuple[str, str, Source]] = []
    for name, picture, label in zip(names, pictures, labels, strict=True):
        if picture is not None:
            place = _free(f"{homes.get(label, REVIEW)}/{_file_name(name, picture)}", name, taken)
            rows.append((place, content(picture), picture))
    folder.mkdir(parents=True, exist_ok=True)
    listed = io.StringIO()
    csv.writer(listed, lineterminator="\n").writerows([("made", "mark"), *((place, own) for place, own, _ in rows)])
    write_text(folder / UNDO, listed.getvalue())
    for place, _, picture in rows:
        (folder / place).parent.mkdir(exist_ok=True)
        _put(folder / place, picture, copy)
    return len(rows)


def undo(folder: Path) -> tuple[int, int]:
    """Remove what :func:`sort_into` made; how many files, and how many stay because they have changed since."""
    path = folder / UNDO
    if not path.is_file():
        raise FileNotFoundError(f"undo: {path}: no such file; name a folder that --sort-into made")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    removed, kept = 0, 0
    for row in rows:
        made = folder / (row.get("made") or "")
        if not made.resolve().parent.is_relative_to(folder.resolve()) and not made.is_symlink():
            raise ValueError(f"undo: {path} names {row.get('made')!r}, which is not in {folder}; the list was edited")
        if made.is_symlink() or (made.is_file() and content(made) == row["mark"]):
            made.unlink()
            removed += 1
        elif made.exists():
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
    """The last part of the name; a picture from memory gets the suffix of what it is."""
    last = re.split(r"[/\\]", name)[-1]
    return last if isinstance(picture, (str, Path)) or "." in last else f"{last}.png"


def _free(place: str, name: str, taken: set[str]) -> str:
    """``place``, or one with the folders of the picture in its name, or with a number, that is not taken yet."""
    stem, suffix = os.path.splitext(place)
    parent = "_".join(re.split(r"[/\\]", name)[:-1])[-100:]
    candidates = [place, f"{stem} ({parent}){suffix}"] if parent else [place]
    number = 2
    while (found := candidates.pop(0)).casefold() in taken:
        candidates.append(f"{stem} ({number}){suffix}")
        number += 1
    taken.add(found.casefold())
    return found


def _put(target: Path, picture: Source, copy: bool) -> None:
    """Make one file; an error if there is one of that name."""
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
