"""Sketch: nothing but wobbly dark lines on white paper."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from PIL import Image, ImageDraw

from clip_tca.datasets.drawing.raster import FINE, SIZE, Placed, flat, noise, picture, speckle
from clip_tca.datasets.drawing.shapes import Array


def sketch(placed: Placed, place: str, rng: np.random.Generator) -> Image.Image:
    """Dark wobbly pencil lines on white paper, gone over more than once, without fill."""
    u, side = rng.uniform, SIZE * FINE
    paper = int(u(246, 256))
    image = Image.new("L", (side, side), paper)
    draw = ImageDraw.Draw(image)
    dark, thick, wobble = u(15, 75), u(0.7, 1.3), u(0.25, 0.7)
    if place not in ("room", "stage") or rng.random() < 0.5:
        for _ in range(int(rng.integers(1, 4))):
            x, w, y = u(-10, 60), u(30, 70), placed.ground + u(-1, 3)
            line = np.stack([np.linspace(x, x + w, 9), y + rng.normal(0, 0.5, 9)], 1)
            draw.line(flat(line, FINE), fill=int(dark + u(40, 90)), width=2)
    for _, group in groupby(placed.parts, key=lambda part: part.group):
        parts = list(group)
        for part in parts:
            if part.outlined and not part.width:
                for again in range(1 + (rng.random() < 0.6)):
                    width = thick * (0.6 if again else 1) * 2
                    _pencil(draw, part.points, width, wobble * (1 + again), int(dark + 35 * again), rng)
        for part in parts:
            if part.outlined and not part.width:
                draw.polygon(flat(part.points, FINE), fill=paper)
        for part in parts:
            if part.width:
                width = max(1, round(min(part.width, 0.8) * FINE))
                draw.line(flat(part.points, FINE), fill=int(dark + 20), width=width)
            elif not part.outlined:
                _pencil(draw, part.points, thick * 0.7, wobble * 0.6, int(dark + 30), rng)
    _hatch(image, placed, dark, rng)
    pixels = np.asarray(image.reduce(FINE), np.float32) + noise(rng, 40) * 2 + speckle(rng, 2)[..., 0]
    return picture(np.repeat(pixels[..., None], 3, 2))


def _pencil(
    draw: ImageDraw.ImageDraw, points: Array, width: float, wobble: float, tone: int, rng: np.random.Generator
) -> None:
    """One stroke around a contour by an unsteady hand."""
    drift = np.cumsum(rng.normal(0, 0.5, points.shape), 0)
    drift -= np.arange(1, len(points) + 1)[:, None] / len(points) * drift[-1]
    line = points + wobble * drift.clip(-1.6, 1.6)
    draw.line(flat(np.concatenate([line, line[:1]]), FINE), fill=tone, width=max(1, round(width * FINE)))


def _hatch(image: Image.Image, placed: Placed, dark: float, rng: np.random.Generator) -> None:
    """Parallel strokes on the far and on the dark parts, as much as a pencil drawing has of shading."""
    side = SIZE * FINE
    mask = Image.new("L", (side, side))
    pen = ImageDraw.Draw(mask)
    for part in placed.parts:
        if not part.width:
            hatched = part.relief < 0.4 or sum(part.colour) < 240
            pen.polygon(flat(part.points, FINE), fill=255 if hatched else 0)
    lines = Image.new("L", (side, side))
    pen = ImageDraw.Draw(lines)
    lean, gap = rng.uniform(-0.9, 0.9), rng.uniform(5, 9)
    for x in np.arange(-side, 2 * side, gap):
        pen.line((x, 0, x + lean * side, side), fill=255, width=2)
    mask.paste(0, (0, 0, side, side), Image.eval(lines, lambda v: 255 - v))
    image.paste(int(dark + 45), (0, 0, side, side), mask)
