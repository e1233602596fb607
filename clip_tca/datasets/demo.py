"""The demo's images: seven classes in four styles similar to PACS, drawn on demand.

An image is a figure (:mod:`clip_tca.datasets.drawing`) with jittered proportions, pose, colours and place, rendered in
one style. Everything random comes from one generator seeded with (version, seed, style, class, index), so that the same
arguments always give the same pixels (other releases of NumPy or Pillow may round a few differently). Seed 0 is the
evaluation set; training must use other seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from clip_tca.datasets.drawing.figures import FIGURES
from clip_tca.datasets.drawing.looks import choose_look
from clip_tca.datasets.drawing.places import PLACES, choose
from clip_tca.datasets.drawing.raster import SIZE, place
from clip_tca.datasets.drawing.styles import RENDERERS
from clip_tca.datasets.image_set import Domain, ImageSet

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
STYLES = ("art_painting", "cartoon", "photo", "sketch")
IMAGES = 80  # of each class and style in the evaluation set
VERSION = 1  # increase when the drawing changes: the store then encodes all images again


@dataclass(frozen=True)
class Attributes:
    """Words for an image besides its class and style, such as red, small, on grass, left and walking.

    The colour is the main one (of a person: of the clothes). Size is ``small``, ``large`` or empty; ``facing`` is
    ``left``, ``right`` or empty for figures without a front.
    """

    colour: str
    size: str
    place: str
    facing: str
    pose: str


def _generator(style: str, name: str, index: int, seed: int) -> np.random.Generator:
    if style not in STYLES:
        raise ValueError(f"style: {style!r}; the demo has {', '.join(STYLES)}")
    if name not in CLASSES:
        raise ValueError(f"name: {name!r}; the demo has {', '.join(CLASSES)}")
    if index < 0 or seed < 0:
        raise ValueError(f"index {index}, seed {seed}: neither may be negative")
    return np.random.default_rng([VERSION, seed, STYLES.index(style), CLASSES.index(name), index])


def scene(style: str, name: str, index: int, seed: int = 0) -> tuple[Image.Image, Attributes]:
    """An image and its attributes; the arguments are those of :func:`draw`."""
    rng = _generator(style, name, index, seed)
    colour, look = choose_look(name, style, rng)
    figure, pose = FIGURES[name](rng, look)
    where, flip = choose(name, rng), bool(rng.random() < 0.5)
    placed = place(figure, rng, flip, tilt=float(rng.normal(0, 0.02 if name == "house" else 0.05)))
    image = RENDERERS[style](placed, where, rng)
    size = "small" if placed.extent < 0.7 else "large" if placed.extent > 0.86 else ""
    sideways = name not in ("guitar", "house", "person") and pose != "facing the camera"
    facing = "" if not sideways else "left" if flip else "right"
    return image, Attributes(colour, size, PLACES[where], facing, pose)


def draw(style: str, name: str, index: int, seed: int = 0) -> Image.Image:
    """Image number ``index``, from 0, of a class in a style, RGB, 96 × 96; the same arguments give the same pixels.

    Seed 0 is the evaluation set, with ``IMAGES`` of each; training must use another. ValueError for a style that is not
    one of ``STYLES``, a name that is not one of ``CLASSES``, or a negative number.
    """
    return scene(style, name, index, seed)[0]


def contact_sheet(columns: int = 8, seed: int = 0) -> Image.Image:
    """A contact sheet of all classes in all styles, ``columns`` images of each, labelled."""
    gap, label, head = 2, 64, 18
    block = columns * (SIZE + gap) + 8
    rows = len(CLASSES)
    sheet = Image.new("RGB", (label + 2 * block, 2 * (head + rows * (SIZE + gap) + 6)), (255, 255, 255))
    pen = ImageDraw.Draw(sheet)
    for s, style in enumerate(STYLES):
        x0, y0 = label + (s % 2) * block, (s // 2) * (head + rows * (SIZE + gap) + 6)
        pen.text((x0 + 2, y0 + 3), style.replace("_", " "), fill=(0, 0, 0))
        for row, name in enumerate(CLASSES):
            y = y0 + head + row * (SIZE + gap)
            if s % 2 == 0:
                pen.text((4, y + SIZE // 2 - 5), name, fill=(0, 0, 0))
            for column in range(columns):
                sheet.paste(draw(style, name, column, seed), (x0 + column * (SIZE + gap), y))
    return sheet


@dataclass(frozen=True)
class Drawn:
    """Images of one style, drawn on demand."""

    style: str
    numbers: tuple[tuple[str, int], ...]

    def __call__(self, index: int) -> Image.Image:
        """Image ``index``."""
        return draw(self.style, *self.numbers[index])


def demo_set() -> ImageSet:
    """The evaluation set: seven classes in four styles, ``IMAGES`` of each."""
    numbers = tuple((name, index) for name in CLASSES for index in range(IMAGES))
    names = [f"{name}/{index}" for name, index in numbers]
    labels = [CLASSES.index(name) for name, _ in numbers]
    domains = {
        style: Domain(names, [f"{style}, version {VERSION}"] * len(names), labels, Drawn(style, numbers), drawn=True)
        for style in STYLES
    }
    return ImageSet("demo", list(CLASSES), domains, {"kind": "drawn", "version": VERSION})
