"""Cartoon: flat strong colours in thick outlines before a simple background."""

from __future__ import annotations

import colorsys
from itertools import groupby

import numpy as np
from PIL import Image, ImageDraw

from clip_tca.datasets.drawing.raster import FINE, SIZE, Placed, fill, flat, ink
from clip_tca.datasets.drawing.shapes import Array, Colour, shade


def cartoon(placed: Placed, place: str, rng: np.random.Generator) -> Image.Image:
    """Flat strong colours in thick outlines before a simple background."""
    u = rng.uniform
    image = _backdrop(place, placed.ground, rng)
    draw = ImageDraw.Draw(image)
    turn = u(-0.02, 0.02)
    vivid, thick = u(0.7, 1.3), u(1.3, 2.1) * min(1.2, 0.5 + 0.55 * placed.extent)
    black = ink(rng.uniform(5, 40, 3))
    for _, group in groupby(placed.parts, key=lambda part: part.group):
        parts = list(group)
        for part in parts:
            if part.outlined:
                _outline(draw, part.points, thick * 2 if np.ptp(part.points, 0).max() > 9 else thick, black)
        for part in parts:
            fill(draw, part, _saturated(part.colour, turn, vivid), FINE)
    return image.reduce(FINE)


def _outline(draw: ImageDraw.ImageDraw, points: Array, width: float, colour: tuple[int, int, int]) -> None:
    """A closed contour with round joints, which are slow: a smooth curve does with every other point."""
    coarse = points[::2] if len(points) > 20 else points
    closed = flat(np.concatenate([coarse, coarse[:2]]), FINE)
    draw.line(closed, fill=colour, width=max(1, round(width * FINE)), joint="curve")


def _saturated(colour: Colour, turn: float, vivid: float) -> tuple[int, int, int]:
    """A cartoon's version of a colour: stronger and lighter, its hue turned by ``turn``."""
    h, s, v = colorsys.rgb_to_hsv(*(min(max(c, 0), 255) / 255 for c in colour))
    if v < 0.25:
        return ink((colour[0], colour[1], colour[2] + 8))
    r, g, b = colorsys.hsv_to_rgb((h + turn) % 1, min(1, s + (1 - s) * s * vivid), min(1, v * 1.12 + 0.08))
    return int(r * 255), int(g * 255), int(b * 255)


def _backdrop(place: str, ground: float, rng: np.random.Generator) -> Image.Image:
    """A cartoon's background: one colour, rays, dots, or sky and ground with a sun, a cloud, a hill."""
    u, side = rng.uniform, SIZE * FINE
    sky = ink(np.array(colorsys.hsv_to_rgb(u(0, 1), u(0.15, 0.6), u(0.85, 1.0))) * 255)
    image = Image.new("RGB", (side, side), sky)
    draw = ImageDraw.Draw(image)
    kind = int(rng.integers(5))
    pale = ink(np.array(sky) * 0.6 + 255 * 0.4)
    if kind == 0:
        draw.ellipse((side * u(-0.1, 0.1), side * u(-0.1, 0.15), side * u(0.9, 1.1), side * u(0.9, 1.15)), fill=pale)
    elif kind == 1:
        centre, start = side / 2, u(0, 1)
        for k in range(8):
            a, b = start + k * np.pi / 4, start + (k + 0.5) * np.pi / 4
            ends = [(centre + side * np.cos(angle), centre + side * np.sin(angle)) for angle in (a, b)]
            draw.polygon([(centre, centre), *ends], fill=pale)
    else:
        grounds = {
            "grass": (120, 200, 80),
            "city": (170, 170, 180),
            "beach": (250, 225, 150),
            "snow": (245, 250, 255),
            "forest": (70, 160, 80),
            "desert": (240, 190, 110),
        }
        horizon = min((ground - u(4, 24)) * FINE, side - 12)
        skies = [(120, 200, 250), (180, 225, 255), (255, 215, 170), (250, 240, 200)]
        draw.rectangle((0, 0, side, side), fill=ink(rng.choice(skies)))
        if rng.random() < 0.5:
            x, y, r = u(0, side), u(0, side * 0.3), u(18, 34)
            draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 225, 80))
        if rng.random() < 0.6:
            x, y = u(0, side), u(10, side * 0.3)
            for dx, r in ((-26, 15), (0, 22), (26, 15)):
                draw.ellipse((x + dx - r, y - r * 0.7, x + dx + r, y + r * 0.7), fill=(255, 255, 255))
        tone = grounds.get(place, (205, 150, 105))
        if rng.random() < 0.5:
            x, r = u(0, side), u(90, 190)
            draw.ellipse((x - r, horizon - r * 0.45, x + r, horizon + r), fill=ink(shade(tone, 0.85)))
        draw.rectangle((0, horizon, side, side), fill=tone)
    return image
