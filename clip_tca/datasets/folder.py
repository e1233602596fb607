"""Images in folders: the public layouts of the benchmarks, and your own ``domain/class/image``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.pictures import SUFFIXES, mark
from clip_tca.datasets.registry import Benchmark, plain

SPLITS = ("train", "crossval", "val", "test")
WHOLE = ("full", "images")
"""Folders between domain and class in some releases, where those of ``WHOLE`` hold everything."""

DEPTH = 3
"""Levels below ``--data-dir`` that are searched for domain folders."""

ClassFolder = tuple[str, Path]
"""A class folder: its name and path."""


@dataclass(frozen=True)
class Files:
    """Images as files of one folder."""

    root: str
    names: tuple[str, ...]

    def __call__(self, index: int) -> str:
        """Path of image ``index``."""
        return os.path.join(self.root, self.names[index])


def load_benchmark(folder: Path, benchmark: Benchmark) -> ImageSet:
    """A benchmark in any of its public layouts, in ``folder`` or up to three levels below; else FileNotFoundError."""
    require_folder(folder)
    root = _best(folder, benchmark)
    if root is None:
        raise FileNotFoundError(
            f"{folder}: no {benchmark.title} found; a folder is expected that looks like {benchmark.layout()}"
        )
    ignored: list[str] = []
    domains: dict[str, Domain] = {}
    for path in sorted(subfolders(root), key=lambda path: -_count(_release(path, benchmark))):
        name = benchmark.domain(path.name)
        if name is None or name in domains:  # of two folders for a domain the one with more images is used
            ignored.append(path.name)
            continue
        ignored += [f"{path.name}/{c}" for c, _ in _classes(path, benchmark, wanted=False)]
        folders = [(benchmark.label(c), p) for c, p in _release(path, benchmark)]
        domains[name] = files_domain(path, folders, ignored, _listed(root, name, benchmark.split))
    ordered = {name: domains[name] for name in benchmark.domains if name in domains}
    origin = {"kind": "folder", "path": str(root)}
    published = benchmark.images, benchmark.class_images
    return ImageSet(benchmark.name, benchmark.classes, ordered, origin, *published, ignored)


def load_folder(folder: Path) -> ImageSet:
    """Your own images: ``DIR/domain/class/image``, or ``DIR/class/image`` for a single domain."""
    require_folder(folder)
    inner = subfolders(folder)
    with_images = [path for path in inner if _images(path)]
    deep = [path for path in inner if any(_images(child) for child in subfolders(path))]
    if with_images and deep:
        raise ValueError(
            f"{folder}: {with_images[0].name} holds images, {deep[0].name} holds folders of images; "
            "use one layout throughout: DIR/domain/class/image or DIR/class/image"
        )
    roots = {_text(folder.resolve()): folder} if with_images else {_text(path): path for path in inner}
    by_domain = {name: [(_text(p), p) for p in subfolders(root) if _images(p)] for name, root in roots.items()}
    classes = sorted({name for folders in by_domain.values() for name, _ in folders})
    spelled: dict[str, str] = {}
    for name in classes:
        if (other := spelled.setdefault(plain(name), name)) != name:
            raise ValueError(
                f"{folder}: class folders {other!r} and {name!r} differ in spelling only; rename one of them"
            )
    if len(classes) < 2:
        raise ValueError(
            f"{folder}: {len(classes)} class folders with images; at least 2 are needed, "
            "as DIR/domain/class/image or DIR/class/image"
        )
    ignored: list[str] = []
    domains = {
        name: files_domain(roots[name], [(classes.index(c), p) for c, p in folders], ignored)
        for name, folders in by_domain.items()
        if folders
    }
    ignored += [name for name, folders in by_domain.items() if not folders]
    return ImageSet(_text(folder.resolve()), classes, domains, {"kind": "folder", "path": str(folder)}, ignored=ignored)


def _text(path: Path) -> str:
    """The last part of a path as UTF-8 in any locale; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


def require_folder(folder: Path) -> None:
    """Raise FileNotFoundError if there is no such folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; --data-dir names the folder that holds the images")


def _best(folder: Path, benchmark: Benchmark) -> Path | None:
    """The folder with the most class folders of the benchmark's domains; of equals the one higher up."""
    best, most, level = None, 0, [folder]
    for _ in range(DEPTH):
        for root in level:
            count = sum(len(_release(path, benchmark)) for path in subfolders(root))
            if count > most:
                best, most = root, count
        level = [path for root in level for path in subfolders(root)] if len(level) < 200 else []
    return best


def _release(path: Path, benchmark: Benchmark) -> list[ClassFolder]:
    """Class folders of a domain inside ``full``, ``train``, ``test``, … if the release has such a level."""
    domain = benchmark.domain(path.name)
    if domain is None:
        return []
    inner = {plain(child.name): child for child in subfolders(path)}
    layouts = [
        [folder for level in levels if level in inner for folder in _classes(inner[level], benchmark)]
        for levels in (*((level,) for level in WHOLE), SPLITS, ("train", "test"))
    ]
    layouts = [folders for folders in [*layouts, _classes(path, benchmark)] if folders]
    if len(layouts) < 2:
        return next(iter(layouts), [])
    complete = [folders for folders in layouts if _count(folders) == benchmark.images.get(domain)]
    return next(iter(complete or [folders for folders in layouts if _count(folders)] or layouts))


def _count(folders: list[ClassFolder]) -> int:
    return sum(len(_images(path)) for _, path in folders)


def _classes(path: Path, benchmark: Benchmark, wanted: bool = True) -> list[ClassFolder]:
    levels = {*WHOLE, *SPLITS}
    return [
        (child.name, child)
        for child in subfolders(path)
        if (benchmark.label(child.name) is not None) == wanted and (wanted or plain(child.name) not in levels)
    ]


def _listed(root: Path, domain: str, split: str | None) -> set[str] | None:
    """Images of a domain in the official list of a split, ``DOMAIN/class/image label`` a line; None without a list."""
    name = f"{domain}_{split}.txt"
    path = next((folder / name for folder in (root, root / "splits") if (folder / name).is_file()), None)
    if split is None or path is None:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.rsplit(maxsplit=1)[0].split("/", 1)[-1] for line in lines if line.strip()}


def files_domain(
    root: Path, folders: list[tuple[int | None, Path]], ignored: list[str], listed: set[str] | None = None
) -> Domain:
    """All images of the class folders, or those ``listed``, by class and name: the same order on every machine."""
    rows = []
    for label, folder in folders:
        for path in _images(folder):
            name = path.relative_to(root).as_posix()
            if listed is None or name in listed:
                rows.append((label or 0, name, mark(path)))
        ignored += [f"{root.name}/{folder.relative_to(root).as_posix()}/{name}" for name in _others(folder)]
    rows.sort()
    names, marks, labels = [name for _, name, _ in rows], [row[2] for row in rows], [row[0] for row in rows]
    return Domain(names, marks, labels, Files(str(root), tuple(names)))


def subfolders(path: Path) -> list[Path]:
    """Folders in a folder, in the order of their names, without hidden ones."""
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _images(path: Path) -> list[Path]:
    """Images of a folder, with broken links, so that they are reported and not skipped."""
    return [Path(e.path) for e in os.scandir(path) if _is_image(e.name) and (e.is_file() or e.is_symlink())]


def _others(path: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(path) if not e.name.startswith(".") and not _is_image(e.name))


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
