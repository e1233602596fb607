"""Images in the folders of CoOp, of which a file lists those of the test split.

``split_zhou_NAME.json`` has ``{"test": [[path, label, class name], …], …}``, with paths below the folder of pictures.
``images_variant_test.txt`` of FGVC-Aircraft has an image's number and the name of its class in each line.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from clip_tca.core.checks import is_whole, one_line
from clip_tca.datasets.benchmark import Benchmark
from clip_tca.datasets.folder import Files, require_folder, subfolders
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import mark


def load_listed(folder: Path, benchmark: Benchmark) -> ImageSet:
    """The images that the benchmark's file lists; the file is in ``folder``, or in a folder of it."""
    require_folder(folder)
    places = [folder, *subfolders(folder)]
    path = next((place / benchmark.listed for place in places if (place / benchmark.listed).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder}: no {benchmark.listed}, which lists the test images of {benchmark.title}; a folder is expected "
            f"that looks like {benchmark.layout()}"
        )
    rows = _rows(path, benchmark)
    root = path.parent / benchmark.pictures
    missing = [name for name, _ in rows if not (root / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{root}: {len(missing)} of the {len(rows)} images in {benchmark.listed} are not there, such as "
            f"{missing[0]}; unpack the images beside it, like {benchmark.layout()}"
        )
    rows.sort(key=lambda row: (row[1], row[0]))
    names, labels = [name for name, _ in rows], [label for _, label in rows]
    (domain,) = benchmark.domains
    files = Domain(names, [mark(root / name) for name in names], labels, Files(str(root), tuple(names)))
    origin = {"kind": "folder", "path": str(path.parent), "split": f"CoOp's, {benchmark.listed}"}
    return ImageSet(benchmark.name, benchmark.classes, {domain: files}, origin, benchmark.images)


def _rows(path: Path, benchmark: Benchmark) -> list[tuple[str, int]]:
    """Path and label of each test image; ValueError names the line or entry that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        entries = _json(text) if path.suffix == ".json" else _lines(text, benchmark)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a list of test images ({one_line(error)}); download it again") from None
    last = len(benchmark.classes) - 1
    for number, (name, label) in enumerate(entries):
        inside = isinstance(name, str) and not PurePosixPath(name).is_absolute() and ".." not in name.split("/")
        if not inside or not is_whole(label, 0) or label > last:
            raise ValueError(
                f"{path}: test image {number} is {name!r} with label {label!r}; a path below {benchmark.pictures}/ and "
                f"a label from 0 to {last} are needed"
            )
    if not entries:
        raise ValueError(f"{path}: no test image in it; download it again")
    return entries


def _json(text: str) -> list[tuple[Any, Any]]:
    return [(name, label) for name, label, _ in json.loads(text)["test"]]


def _lines(text: str, benchmark: Benchmark) -> list[tuple[Any, Any]]:
    parts = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(f"{number}.jpg", benchmark.label(variant.strip())) for number, variant in parts]
