"""From a figure to pixels: placing it in the picture, noise fields, and the layers that the styles build on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from clip_tca.datasets.drawing.shapes import Array, Colour, Figure, Part

SIZE = 96
FINE = 3  # supersampling of everything that has an edge
Y, X = np.mgrid[:SIZE, :SIZE].astype(np.float32)


@dataclass(frozen=True)
class Placed:
    """A figure in pixels of the final picture, y downwards.

    Attributes:
        parts: Its parts, in painter's order.
        box: Left, top, right and bottom.
        unit: Pixels for one unit of the figure's frame.
        extent: Longer side of the box as a share of the picture.
    """

    parts: list[Part]
    box: tuple[float, float, float, float]
    unit: float
    extent: float

    @property
    def ground(self) -> float:
        """Row where the figure meets the ground."""
        return self.box[3]


def place(figure: Figure, rng: np.random.Generator, flip: bool, tilt: float) -> Placed:
    """Scale, turn, mirror and move a figure so that most of it lies in the picture."""
    c, s = np.cos(tilt), np.sin(tilt)
    turn = np.array([[-c, -s], [s, -c]]) if flip else np.array([[c, -s], [-s, -c]])
    squeeze = np.array([rng.uniform(0.86, 1.04), 1.0])
    points = (np.concatenate([part.points for part in figure.parts]) * squeeze) @ turn
    low, high = points.min(0), points.max(0)
    extent = rng.uniform(0.6, 0.98)
    if figure.half_length:
        extent = rng.uniform(0.85, 1.05)
    close = figure.focus is not None and not figure.half_length and rng.random() < 0.12
    if close:
        extent = rng.uniform(1.3, 1.75)
    unit = extent * SIZE / float((high - low).max())
    w, h = (float(v) for v in (high - low) * unit)
    free_x, free_y = SIZE - w, SIZE - h
    left = free_x / 2 + rng.uniform(-0.5, 0.5) * (max(free_x, 0) + 4)
    top = free_y * 0.6 + rng.uniform(-0.4, 0.4) * (max(free_y, 0) + 4)
    if figure.half_length:
        top = SIZE - h + rng.uniform(2, 8)
    if close:
        fx, fy = ((np.array(figure.focus) * squeeze) @ turn - low) * unit
        left, top = SIZE * rng.uniform(0.38, 0.62) - float(fx), SIZE * rng.uniform(0.3, 0.5) - float(fy)
    points = points * unit + (np.array([left, top]) - low * unit)
    ends = np.cumsum([len(part.points) for part in figure.parts])
    moved = [
        Part(points[end - len(p.points) : end], p.colour, p.group, p.relief, p.width * unit, p.outlined)
        for p, end in zip(figure.parts, ends, strict=True)
    ]
    return Placed(moved, (left, top, left + w, top + h), unit, extent)


def noise(rng: np.random.Generator, cells: int, rows: int | None = None) -> Array:
    """Smooth noise in about -1 to 1, ``cells`` bumps wide and ``rows`` high, as ``(SIZE, SIZE)``."""
    smooth = Image.Resampling.BICUBIC if cells < 20 else Image.Resampling.BILINEAR
    grid = rng.random((rows or cells, cells), np.float32) * 2 - 1
    return np.asarray(Image.fromarray(grid).resize((SIZE, SIZE), smooth))


def speckle(rng: np.random.Generator, strength: float, channels: int = 1) -> Array:
    """Independent noise for each pixel, ``(SIZE, SIZE, channels)``."""
    field: Array = rng.standard_normal((SIZE, SIZE, channels), np.float32) * np.float32(strength)
    return field


def flat(points: Array, scale: float) -> list[float]:
    """Points as Pillow wants them, enlarged by ``scale``."""
    return (points * scale).ravel().tolist()  # type: ignore[no-any-return]


def ink(colour: Colour | Array) -> tuple[int, int, int]:
    """A colour as Pillow wants it."""
    r, g, b = (min(255, max(0, int(c))) for c in colour)
    return r, g, b


def fill(draw: ImageDraw.ImageDraw, part: Part, colour: tuple[int, int, int] | int, scale: float) -> None:
    """Fill a part, or draw it if it is a stroke."""
    points = flat(part.points, scale)
    if part.width:
        draw.line(points, fill=colour, width=max(1, round(part.width * scale)), joint="curve")
    else:
        draw.polygon(points, fill=colour)


def layers(placed: Placed) -> tuple[Array, Array, Array]:
    """Colour ``(SIZE, SIZE, 3)``, coverage and relief ``(SIZE, SIZE)`` of a figure, antialiased."""
    side = SIZE * FINE
    colour, cover, relief = (Image.new(mode, (side, side)) for mode in ("RGB", "L", "L"))
    colour.paste(ink(placed.parts[-1].colour), (0, 0, side, side))
    pens = [ImageDraw.Draw(image) for image in (colour, cover, relief)]
    for part in placed.parts:
        fill(pens[0], part, ink(part.colour), FINE)
        fill(pens[1], part, 255, FINE)
        if not part.width:
            fill(pens[2], part, int(255 * part.relief), FINE)
    small = [np.asarray(image.reduce(FINE), np.float32) for image in (colour, cover, relief)]
    return small[0], small[1] / 255, small[2] / 255


def blend(under: Array, over: Array, alpha: Array) -> Array:
    """``over`` on ``under`` with the opacity ``alpha``."""
    mixed: Array = under + (over - under) * alpha
    return mixed


def grey_of(pixels: Array) -> Array:
    """The mean of the three channels, ``(SIZE, SIZE)``."""
    grey: Array = (pixels[..., 0] + pixels[..., 1] + pixels[..., 2]) / 3
    return grey


def blurred(field: Array, radius: float) -> Array:
    """A field ``(SIZE, SIZE)`` in 0 to 1, blurred."""
    image = Image.fromarray((np.clip(field, 0, 1) * 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), np.float32) / 255


def lighting(relief: Array, rng: np.random.Generator) -> Array:
    """Light on a relief from one side above: about -1 to 1, round at two scales."""
    angle = rng.uniform(0.2, np.pi - 0.2)
    light = np.zeros_like(relief)
    for radius, weight in ((1.2, 1.2), (4.0, 5.0)):
        down, right = np.gradient(blurred(relief, radius))
        light += weight * (down * float(np.sin(angle)) - right * float(np.cos(angle)))
    return np.clip(light, -1, 1)


def picture(pixels: Array) -> Image.Image:
    """Values 0 to 255 as an RGB picture."""
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
