"""Benchmarks of corruptions in folders: CIFAR's arrays, and ImageNet-C's corruption/severity/class/image.

CIFAR-10-C and CIFAR-100-C have a file for each corruption, ``(5 n, 32, 32, 3)`` of 8 bits: the n test images at
severity 1, then at severity 2, and so on. ``labels.npy`` holds 5 n labels, or n, as they repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clip_tca.datasets.corruptions import CORRUPTIONS, SEVERITIES
from clip_tca.datasets.folder import DEPTH, files_domain, require_folder, subfolders
from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import mark
from clip_tca.datasets.registry import BENCHMARKS, Benchmark, plain

LABELS = "labels.npy"


@dataclass(frozen=True)
class ArrayRows:
    """Images as rows of a ``.npy`` file, from row ``first`` on."""

    path: str
    first: int

    def __call__(self, index: int) -> bytes:
        """Image ``index`` as a PPM file: a head, then the pixels as they are."""
        return _ppm(np.load(self.path, mmap_mode="r")[self.first + index])


def load_corrupted(folder: Path, benchmark: Benchmark) -> ImageSet:
    """The domains of a benchmark of corruptions that are in ``folder`` or up to three levels below."""
    require_folder(folder)
    ignored: list[str] = []
    if benchmark.form == "arrays":
        root, domains = _from_arrays(folder, benchmark)
    else:
        root, domains = folder, _from_severities(folder, benchmark, ignored)
    if not domains:
        raise FileNotFoundError(
            f"{folder}: no {benchmark.title} found with {', '.join(list(benchmark.domains)[:3])}"
            f"{', …' if len(benchmark.domains) > 3 else ''}; a folder is expected that looks like {benchmark.layout()}"
        )
    ordered = {name: domains[name] for name in benchmark.domains if name in domains}
    origin = {"kind": "folder", "path": str(root)}
    return ImageSet(benchmark.name, benchmark.classes, ordered, origin, benchmark.images, ignored=ignored)


def _from_severities(folder: Path, benchmark: Benchmark, ignored: list[str]) -> dict[str, Domain]:
    """Domains in folders, with or without a level of groups (noise, blur, weather, digital) above."""
    found: dict[str, Path] = {}
    for path in _below(folder):
        if path.name in CORRUPTIONS:
            found.setdefault(path.name, path)
    domains: dict[str, Domain] = {}
    for name in benchmark.domains:
        corruption, severity = name.split(":")
        place = found.get(corruption, folder) / severity
        if corruption not in found or not place.is_dir():
            continue
        classes = [(benchmark.label(path.name), path) for path in subfolders(place)]
        ignored += [f"{name}/{path.name}" for label, path in classes if label is None]
        domain = files_domain(place, [pair for pair in classes if pair[0] is not None], ignored)
        if len(domain):
            domains[name] = domain
    return domains


def _from_arrays(folder: Path, benchmark: Benchmark) -> tuple[Path, dict[str, Domain]]:
    """The folder with the arrays, and the domains in them."""
    others = {plain(other.title) for other in BENCHMARKS.values()} - {plain(benchmark.title)}
    roots = [path for path in (folder, *_below(folder)) if plain(path.name) not in others and _arrays(path)]
    if not roots:
        return folder, {}
    root = next((path for path in roots if plain(path.name) == plain(benchmark.title)), roots[0])
    labels = _labels(root, benchmark)
    domains: dict[str, Domain] = {}
    for name in benchmark.domains:
        corruption, severity = name.split(":")
        path = root / f"{corruption}.npy"
        if path.is_file():
            domains[name] = _severity(path, int(severity), labels, benchmark.classes)
    return root, domains


def _severity(path: Path, severity: int, labels: np.ndarray, classes: list[str]) -> Domain:
    """One severity of an array of images."""
    images = _array(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"{path}: {images.dtype} of shape {images.shape}; allowed are 8-bit images (n, height, width, 3); "
            "download it again"
        )
    count = len(images) // len(SEVERITIES)
    if not count or len(images) % len(SEVERITIES) or len(labels) not in (count, len(images)):
        raise ValueError(
            f"{path}: {len(images)} images, but {LABELS} has {len(labels)} labels; allowed is a label for each image, "
            f"or for each of one severity (a fifth); download both again"
        )
    first = count * (severity - 1)
    own = labels[first : first + count] if len(labels) > count else labels
    rows = images[first : first + count]
    names = [f"{classes[label]}/{first + i}" for i, label in enumerate(own)]
    return Domain(names, [mark(_ppm(row)) for row in rows], own.tolist(), ArrayRows(str(path), first))


def _labels(root: Path, benchmark: Benchmark) -> np.ndarray:
    path = root / LABELS
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; {LABELS} comes with {benchmark.title}, put it beside the images"
        )
    labels = _array(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(f"{path}: {labels.dtype} of shape {labels.shape}; whole numbers (n,) are needed")
    last = len(benchmark.classes) - 1
    if wrong := [label for label in (int(labels.min()), int(labels.max())) if not 0 <= label <= last]:
        raise ValueError(f"{path}: label {wrong[0]}; {benchmark.title} has 0 to {last}; is it another data set?")
    return labels.astype(np.int64)


def _array(path: Path) -> np.ndarray[Any, Any]:
    """A ``.npy`` file, read when it is needed."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # NumPy parses the header as Python and says whatever its parser says
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: not a complete .npy file ({reason}); download it again") from None
    return array


def _arrays(folder: Path) -> bool:
    return any((folder / f"{corruption}.npy").is_file() for corruption in CORRUPTIONS)


def _below(folder: Path) -> Iterator[Path]:
    """Folders up to three levels below, higher ones first; nothing inside those of corruptions."""
    level = [folder]
    for _ in range(DEPTH):
        level = [path for root in level if root.name not in CORRUPTIONS for path in subfolders(root)]
        yield from level


def _ppm(pixels: np.ndarray[Any, Any]) -> bytes:
    height, width, _ = pixels.shape
    return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()
