"""Images in folders: the public layouts of the benchmarks, and your own ``domain/class/image``.

CIFAR-10-C and CIFAR-100-C are arrays: a file for each corruption, ``(5 n, 32, 32, 3)`` of 8 bits, the n test images at
severity 1, then at severity 2, and so on. ``labels.npy`` holds 5 n labels, or n, as they repeat.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from clip_tca.core.checks import is_whole, one_line
from clip_tca.data.pictures import SUFFIXES, Domain, ImageSet, Picture, mark
from clip_tca.data.registry import BENCHMARKS, CORRUPTIONS, Benchmark, plain

BETWEEN = (("full",), ("images",), ("train", "crossval", "val", "test"))
"""Folders between domain and class in some releases: one that holds everything, or parts."""

DEPTH = 3
"""Levels below ``--data-dir`` that are searched for domain folders."""

LABELS = "labels.npy"


def load_benchmark(folder: Path, benchmark: Benchmark) -> ImageSet:
    """A benchmark in any of its public layouts, in ``folder`` or up to three levels below; else FileNotFoundError."""
    if benchmark.home and (folder / benchmark.home).is_dir():  # the others there have folders of the same names
        folder /= benchmark.home
    _require(folder)
    readers = {"folders": _from_folders, "arrays": _from_arrays, "severities": _from_severities}
    ignored: list[str] = []
    root, domains = (_from_list if benchmark.listed else readers[benchmark.form])(folder, benchmark, ignored)
    if not domains:
        some = ", ".join(list(benchmark.domains)[:3]) + (", …" if len(benchmark.domains) > 3 else "")
        raise FileNotFoundError(
            f"{folder}: no {benchmark.title} found{f' with {some}' if benchmark.corrupted else ''}; a folder is "
            f"expected that looks like {benchmark.layout()}"
        )
    ordered = {name: domains[name] for name in benchmark.domains if name in domains}
    origin = {"kind": "folder", "path": str(root)}
    if benchmark.listed:
        origin["split"] = f"CoOp's, {benchmark.listed}"
    published = benchmark.images, benchmark.class_images
    return ImageSet(benchmark.name, benchmark.classes, ordered, origin, *published, ignored)


def load_folder(folder: Path) -> ImageSet:
    """Your own images: ``DIR/domain/class/image``, or ``DIR/class/image`` for a single domain."""
    _require(folder)
    expected, inner = "DIR/domain/class/image or DIR/class/image", _subfolders(folder)
    with_images = [path for path in inner if _images(path)]
    deep = [path for path in inner if any(map(_images, _subfolders(path)))]
    if with_images and deep:
        raise ValueError(
            f"{folder}: {with_images[0].name} holds images, {deep[0].name} holds folders of images; "
            f"use one layout throughout: {expected}"
        )
    name = _text(folder.resolve())
    roots = {name: folder} if with_images else {_text(path): path for path in inner}
    by_domain = {domain: [path for path in _subfolders(root) if _images(path)] for domain, root in roots.items()}
    classes = sorted({_text(path) for folders in by_domain.values() for path in folders})
    spelled: dict[str, str] = {}
    for one in classes:
        if (other := spelled.setdefault(plain(one), one)) != one:
            raise ValueError(f"{folder}: class folders {other!r} and {one!r} differ in spelling only; rename one")
    if len(classes) < 2:
        raise ValueError(f"{folder}: {len(classes)} class folders with images; at least 2 are needed, as {expected}")
    ignored = [domain for domain, folders in by_domain.items() if not folders]
    ignored += [f"{image} (beside the folders)" for image in sorted(_images(folder))]
    domains = {}
    for domain, folders in by_domain.items():
        if folders:
            empty = [path for path in _subfolders(roots[domain]) if path not in folders]
            ignored += [f"{domain}/{_text(path)} (no pictures directly in it)" for path in empty]
            labelled = [(classes.index(_text(path)), path) for path in folders]
            domains[domain] = _files(roots[domain], labelled, ignored)
    return ImageSet(name, classes, domains, {"kind": "folder", "path": str(folder)}, ignored=ignored)


def _require(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; --data-dir names the folder that holds the images")


def _subfolders(path: Path) -> list[Path]:
    folders = [entry for entry in os.scandir(path) if entry.is_dir() and entry.name != "__MACOSX"]
    return sorted(Path(entry.path) for entry in folders if not entry.name.startswith("."))


def _candidates(folder: Path) -> Iterator[Path]:
    """The folder and those below that may hold domains, higher ones first; nothing inside those of corruptions."""
    level = [folder]
    for _ in range(DEPTH):
        yield from level
        inside = [path for path in level if path.name not in CORRUPTIONS] if len(level) < 200 else []
        level = [child for path in inside for child in _subfolders(path)]


# -- domain/class/image ------------------------------------------------------------------------------------------------


def _from_folders(folder: Path, benchmark: Benchmark, ignored: list[str]) -> tuple[Path, dict[str, Domain]]:
    """The folder with the most class folders of the benchmark's domains (of equals the one higher up), and them."""
    candidates = {
        root: {path: _class_folders(path, benchmark) for path in _subfolders(root)} for root in _candidates(folder)
    }
    root = max(candidates, key=lambda root: sum(map(len, candidates[root].values())))
    domains: dict[str, Domain] = {}
    between = {name for names in BETWEEN for name in names}
    fuller_first = sorted(candidates[root].items(), key=lambda item: -sum(len(_images(child)) for child in item[1]))
    for path, folders in fuller_first:
        name = benchmark.domain(path.name)
        if name is None or name in domains:  # of two folders for a domain the one with more images is used
            ignored.append(path.name)
        elif folders:
            others = [child.name for child in _subfolders(path) if benchmark.label(child.name) is None]
            ignored += [f"{path.name}/{other}" for other in others if plain(other) not in between]
            listed = _listed(root, f"{name}_{benchmark.split}.txt") if benchmark.split else None
            labelled = [(benchmark.label(child.name) or 0, child) for child in folders]
            domains[name] = _files(path, labelled, ignored, listed)
    return root, domains


def _class_folders(path: Path, benchmark: Benchmark) -> list[Path]:
    """Class folders of a domain; where a release has several sets of them, the first that has images."""
    if benchmark.domain(path.name) is None:
        return []
    inner = {plain(child.name): child for child in _subfolders(path)}
    sets = []
    for parents in [*([inner[name] for name in names if name in inner] for names in BETWEEN), [path]]:
        children = [child for parent in parents for child in _subfolders(parent)]
        sets.append([child for child in children if benchmark.label(child.name) is not None])
    with_images = (folders for folders in sets if any(map(_images, folders)))
    return next(with_images, next(filter(None, sets), []))


def _listed(root: Path, name: str) -> set[str] | None:
    """Images of a domain in the official list of a split, ``DOMAIN/class/image label`` a line; None without a list."""
    path = next((folder / name for folder in (root, root / "splits") if (folder / name).is_file()), None)
    if path is None:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.rsplit(maxsplit=1)[0].split("/", 1)[-1] for line in lines if line.strip()}


def _files(root: Path, folders: list[tuple[int, Path]], ignored: list[str], listed: set[str] | None = None) -> Domain:
    """All images of the class folders, or those ``listed``."""
    rows = []
    for label, folder in folders:
        images = set(_images(folder))
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            name = f"{folder.relative_to(root).as_posix()}/{entry.name}"
            if entry.name not in images and not entry.name.startswith("."):
                ignored.append(f"{root.name}/{name}")
            elif entry.name in images and (listed is None or name in listed):
                rows.append((label, name, entry.path))
    return _domain(rows)


def _domain(rows: list[tuple[int, str, str]]) -> Domain:
    return Domain([Picture(name, mark(path), label, path) for label, name, path in sorted(rows)])


def _images(path: Path) -> list[str]:
    """Names of the images of a folder, with broken links, so that they are reported and not skipped."""
    names = [entry.name for entry in os.scandir(path) if entry.is_file() or entry.is_symlink()]
    return [name for name in names if not name.startswith(".") and name.lower().endswith(SUFFIXES)]


def _text(path: Path) -> str:
    """The last part of a path as UTF-8 in any locale; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


# -- CoOp's lists of files ---------------------------------------------------------------------------------------------


def _from_list(folder: Path, benchmark: Benchmark, _ignored: list[str]) -> tuple[Path, dict[str, Domain]]:
    lists = (parent / benchmark.listed for parent in (folder, *_subfolders(folder)))
    path = next((path for path in lists if path.is_file()), None)
    if path is None:
        return folder, {}
    rows, root = _rows(path, benchmark), path.parent / benchmark.pictures
    if missing := [name for _, name in rows if not (root / name).is_file()]:
        raise FileNotFoundError(
            f"{root}: {len(missing)} of the {len(rows)} images in {benchmark.listed} are not there, such as "
            f"{missing[0]}; unpack the images beside it, like {benchmark.layout()}"
        )
    (domain,) = benchmark.domains
    return path.parent, {domain: _domain([(label, name, str(root / name)) for label, name in rows])}


def _rows(path: Path, benchmark: Benchmark) -> list[tuple[int, str]]:
    """Label and path of each test image, of ``{"test": [[path, label, class name], …], …}`` in JSON.

    The list of FGVC-Aircraft has the number of an image and the name of its class in each line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            rows = [(label, name) for name, label, _ in json.loads(text)["test"]]
        else:
            lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
            rows = [(benchmark.label(variant.strip()), f"{number}.jpg") for number, variant in lines]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a list of test images ({one_line(error)}); download it again") from None
    last = len(benchmark.classes) - 1
    for number, (label, name) in enumerate(rows):
        inside = isinstance(name, str) and not PurePosixPath(name).is_absolute() and ".." not in name.split("/")
        if not inside or not is_whole(label, 0) or label > last:
            raise ValueError(
                f"{path}: test image {number} is {name!r} with label {label!r}; a path below {benchmark.pictures}/ and "
                f"a label from 0 to {last} are needed"
            )
    if not rows:
        raise ValueError(f"{path}: no test image in it; download it again")
    return rows


# -- corruptions -------------------------------------------------------------------------------------------------------


def _from_severities(folder: Path, benchmark: Benchmark, ignored: list[str]) -> tuple[Path, dict[str, Domain]]:
    """Folders corruption/severity/class, with or without a level of groups (noise, blur, weather, digital) above."""
    corruptions: dict[str, Path] = {}
    for path in (child for parent in _candidates(folder) for child in _subfolders(parent)):
        if path.name in CORRUPTIONS:
            corruptions.setdefault(path.name, path)
    domains: dict[str, Domain] = {}
    for name in benchmark.domains:
        corruption, severity = name.split(":")
        if corruption in corruptions and (root := corruptions[corruption] / severity).is_dir():
            labels = {path: benchmark.label(path.name) for path in _subfolders(root)}
            ignored += [f"{name}/{path.name}" for path, label in labels.items() if label is None]
            domain = _files(root, [(label, path) for path, label in labels.items() if label is not None], ignored)
            domains |= {name: domain} if len(domain) else {}
    return folder, domains


def _from_arrays(folder: Path, benchmark: Benchmark, _ignored: list[str]) -> tuple[Path, dict[str, Domain]]:
    """The folder with the arrays, best one of the benchmark's own name, and the domains in them."""
    others = {plain(other.title) for other in BENCHMARKS.values()} - {plain(benchmark.title)}
    roots = [
        path
        for path in _candidates(folder)
        if plain(path.name) not in others and any((path / f"{name}.npy").is_file() for name in CORRUPTIONS)
    ]
    if not roots:
        return folder, {}
    root = next((path for path in roots if plain(path.name) == plain(benchmark.title)), roots[0])
    if not (root / LABELS).is_file():
        raise FileNotFoundError(f"{root / LABELS}: no such file; it comes with {benchmark.title}, put it beside these")
    labels, domains = _array(root / LABELS), {}
    for name in benchmark.domains:
        corruption, severity = name.split(":")
        if (path := root / f"{corruption}.npy").is_file():
            domains[name] = _severity(path, int(severity), labels, benchmark.classes)
    return root, domains


def _severity(path: Path, severity: int, labels: np.ndarray, classes: list[str]) -> Domain:
    images = _array(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) % 5 or not len(images):
        raise ValueError(
            f"{path}: {images.dtype} of shape {images.shape}; 8-bit images (5 n, height, width, 3) are needed, n "
            "of each severity; download it again"
        )
    count = len(images) // 5
    fit = labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels) in (count, len(images))
    if not fit or not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError(
            f"{path.with_name(LABELS)}: {labels.dtype} of shape {labels.shape}; each of the {len(images)} images of "
            f"{path.name}, or of one severity, needs a label from 0 to {len(classes) - 1}; is it of another data set?"
        )
    pictures = []
    for row in range(count * (severity - 1), count * severity):
        label = int(labels[row % len(labels)])
        source = partial(_picture, path, row)  # which worker processes can open themselves
        pictures.append(Picture(f"{classes[label]}/{row}", mark(_ppm(images[row])), label, source))
    return Domain(pictures)


def _array(path: Path) -> np.ndarray[Any, Any]:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
        raise ValueError(f"{path}: not a complete .npy file ({one_line(error)}); download it again") from None


def _picture(path: Path, row: int) -> bytes:
    return _ppm(_array(path)[row])


def _ppm(pixels: np.ndarray[Any, Any]) -> bytes:
    """An image as a PPM file: a head, then the pixels as they are."""
    return b"P6 %d %d 255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()
