"""Pictures without labels, from folders, lists, patterns, archives, Parquet files, object stores or memory.

The name of a picture in the table of labels is its path below the given folder; its path as given for files, patterns
or several folders; or its row in a Parquet file or hub data set.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from clip_tca.core.files import PART
from clip_tca.core.folders import data_root
from clip_tca.core.remote import RemotePath, is_url, locate
from clip_tca.data.hub import SAVED, demo_set, load_hub
from clip_tca.data.image_source import local_path
from clip_tca.data.local_copy import unpack
from clip_tca.data.pictures import SUFFIXES, Domain, ImageSet, Picture, Source, mark

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TABLE = ".parquet"
DEMO = "demo"
ALL = "pictures"  # the name of the domain if folders are not domains


class File(NamedTuple):
    """A file by the name that the table has, its folder below what was given, if any, and None if it is no picture."""

    name: str
    folder: str
    source: Source


def load_pictures(
    pictures: Any,
    by_domain: bool = False,
    hub_id: str | None = None,
    revision: str | None = None,
    image_column: str | None = None,
    domain_column: str | None = None,
    progress: bool = False,
) -> ImageSet:
    """Pictures of any of these kinds as an image set without classes.

    Args:
        pictures: A folder, file, glob pattern, archive, Parquet file, text file with a path a line, or ``demo``, each
            as a path or an address in a store; a PIL image; an array ``(h, w)`` or ``(h, w, 3)`` of 8 bits; or
            several of paths, images and arrays. None with a ``hub_id``.
        by_domain: Every folder below what was given is a domain; rows of a table are, by their domain column.
        hub_id: A data set on the hub, or a saved one.
        revision: Its commit or tag.
        image_column: Its column of images; None takes the first usual name.
        domain_column: Its column of domains.
        progress: Show progress on stderr.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If there is no picture in it, or it is of no such kind.
    """
    columns = image_column, None, domain_column
    given = list(pictures) if _is_several(pictures) else [pictures]
    only = given[0] if len(given) == 1 and isinstance(given[0], (str, Path)) else None
    if only is not None and str(only) == DEMO and not Path(DEMO).exists():
        return _joined(_demo(), by_domain)
    if only is not None and hub_id is None and not has_magic(str(only)):
        hub_id = str(path) if _is_table(path := local_path(only, progress)) else None
    if hub_id is not None:
        return _joined(load_hub(hub_id, None, revision, columns, labelled=False), by_domain)
    files = list(_all(given, progress))
    ignored = [file.name for file in files if file.source is None]
    title = Path(str(only)).name if only is not None else ALL
    groups: dict[str, list[Picture]] = {}
    for name, folder, source in files:
        if source is not None:
            picture = Picture(name, mark(source), -1, source)
            groups.setdefault((folder or title) if by_domain else ALL, []).append(picture)
    if not groups:
        what = ", ".join(str(one) for one in given[:3]) if given else "nothing was given"
        others = f"; {len(ignored)} other files there, such as {ignored[0]}" if ignored else ""
        raise ValueError(f"pictures: {what}: no picture in it{others}; pictures end with {', '.join(SUFFIXES)}")
    domains = {name: Domain(groups[name]) for name in sorted(groups)}
    return ImageSet(title, [], domains, {"kind": "pictures", "path": title}, ignored=ignored)


def _is_several(pictures: Any) -> bool:
    if isinstance(pictures, np.ndarray):
        return pictures.ndim == 4
    return not isinstance(pictures, (str, Path, Image.Image)) and isinstance(pictures, Iterable)


def _is_table(path: Path) -> bool:
    """Whether the reader of hub data sets reads it: a Parquet file, a folder of such files, or a saved data set."""
    if path.is_dir():
        saved = any((path / name).is_file() for name in SAVED)
        return saved or (any(path.rglob("*.parquet")) and not any(map(_is_picture, _walk(path))))
    return path.suffix.lower() == TABLE and path.is_file()


def _demo() -> ImageSet:
    """The demo's pictures, named by style and number, because their own names say what they show."""
    data = demo_set()
    for style, domain in data.domains.items():
        for i, picture in enumerate(domain.pictures):
            domain.pictures[i] = picture._replace(name=f"{style}/{i}.png", label=-1)
    return replace(data, classes=[])


def _joined(data: ImageSet, by_domain: bool) -> ImageSet:
    return data if by_domain else replace(data, domains={ALL: Domain.chained(list(data.domains.values()))})


def _all(given: list[Any], progress: bool) -> Iterator[File]:
    """Every file once, in the order of what was given."""
    seen: set[str] = set()
    for number, one in enumerate(given):
        if isinstance(one, (str, Path)):
            for file in _at(one, len(given) == 1, progress):
                if str(file.source or file.name) not in seen:
                    seen.add(str(file.source or file.name))
                    yield file
        else:
            name = Path(getattr(one, "filename", "") or "").name or str(number)
            yield File(name if name not in seen else f"{number} {name}", "", _bytes(one, number))
            seen.add(name)


def _at(address: str | Path, alone: bool, progress: bool) -> Iterator[File]:
    text = str(address)
    if has_magic(text) and not Path(text).exists():
        place = locate(text)
        if isinstance(place, RemotePath):
            matches = list(map(str, place.matches()))
        else:
            matches = sorted(glob(os.path.expanduser(text), recursive=True))
        if not matches:
            raise FileNotFoundError(f"pictures: nothing matches {text}; check the pattern, and put it in quotes")
        for match in matches:
            yield from _at(match, False, progress)
        return
    path = local_path(address, progress)
    if path.is_dir() or path.name.lower().endswith(ARCHIVES):
        root = path if path.is_dir() else _unpacked(path)
        for file in _walk(root):
            below = file.relative_to(root)
            name = below.as_posix() if alone else f"{text.rstrip('/')}/{below.as_posix()}"
            folder = below.parts[0] if len(below.parts) > 1 else ""
            yield File(name, folder, str(file) if _is_picture(file) else None)
    elif path.suffix.lower() == ".txt" and path.is_file():
        for line in filter(None, map(str.strip, path.read_text(encoding="utf-8-sig").splitlines())):
            yield from _at(line if is_url(line) or Path(line).is_absolute() else path.parent / line, False, progress)
    elif path.is_file() or path.is_symlink():
        if path.suffix.lower() == TABLE:
            raise ValueError(f"pictures: {text} is a table; give it alone")
        yield File(path.name if alone else text, path.parent.name, str(path) if _is_picture(path) else None)
    else:
        raise FileNotFoundError(f"pictures: {text} is not a file or folder; check its name")


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder in the order of their names, without hidden ones."""
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name != "__MACOSX")
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _is_picture(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def _unpacked(archive: Path) -> Path:
    """The folder that holds what is in an archive; it is kept, so that the next run finds it."""
    if not archive.is_file():
        raise FileNotFoundError(f"pictures: {archive} is not a file or folder; check its name")
    folder = data_root() / "archives" / f"{archive.name}-{mark(archive).replace(':', '-')}"
    if not folder.is_dir():
        stage = folder.with_name(f".{folder.name}.{os.getpid()}{PART}")
        stage.mkdir(parents=True)
        unpack(archive, stage)
        os.replace(stage, folder)
    return folder


def _bytes(image: Any, number: int) -> bytes:
    """A PIL image or an array as an image file in memory, without loss."""
    if not isinstance(image, Image.Image):
        values = np.asarray(image)
        if values.dtype != np.uint8 or values.ndim not in (2, 3) or values.shape[2:] not in ((), (3,), (4,)):
            raise ValueError(
                f"pictures: number {number} is a {type(image).__name__}, {values.dtype} of shape {values.shape}; "
                "allowed are paths, PIL images, and arrays of uint8, (height, width) or (height, width, 3)"
            )
        image = Image.fromarray(values)
    file = io.BytesIO()
    (image if image.mode in ("1", "L", "P", "RGB", "RGBA", "I;16") else image.convert("RGB")).save(
        file, "PNG", compress_level=1
    )
    return file.getvalue()
