"""The demo's pictures: the same objects as icons, as clip art and as sketches, one Parquet file beside its licences.

It is read by the loader of every Parquet data set. ``eval/demo/LICENCES.md`` names source and author of every picture.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from PIL import Image, ImageDraw, ImageFont

from clip_tca.core.resources import resource
from clip_tca.datasets.hub import load_hub
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.pictures import decode

FILE = "eval/demo/pictures.parquet"

_SIDE, _GAP, _HEAD = 96, 2, 26
"""Pixels of the contact sheet: a picture's side, between pictures, above the first of each style."""


def demo_set() -> ImageSet:
    """All pictures by style, with their classes."""
    path = resource(FILE)
    origin = {"kind": "demo", "file": FILE, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return replace(load_hub(str(path), None), name="demo", origin=origin)


def contact_sheet(columns: int = 6, every: bool = False) -> Image.Image:
    """Classes from top to bottom, styles side by side: ``columns`` pictures of each, or every one in as many rows."""
    data = demo_set()
    font = ImageFont.load_default(16)
    cells = {
        (label, style): [i for i, own in enumerate(domain.labels) if own == label]
        for label in range(len(data.classes))
        for style, domain in data.domains.items()
    }
    rows = -(-max(map(len, cells.values())) // columns) if every else 1
    step, margin = _SIDE + _GAP, 16 + int(max(font.getlength(name) for name in data.classes))
    width, height = columns * step + 12, rows * step + (12 if every else 0)
    sheet = Image.new("RGB", (margin + len(data.domains) * width, _HEAD + len(data.classes) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (style, domain) in enumerate(data.domains.items()):
        left = margin + number * width
        pen.text((left, 4), style, "black", font)
        for label, name in enumerate(data.classes):
            top = _HEAD + label * height
            pen.text((8, top + _SIDE // 2 - 10), name, "black", font)
            for place, index in enumerate(cells[label, style][: rows * columns]):
                picture = decode(domain.picture(index)).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
                sheet.paste(picture, (left + place % columns * step, top + place // columns * step))
    return sheet
