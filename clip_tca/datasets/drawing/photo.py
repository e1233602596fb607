"""Photo: shading from the figure's relief, texture, a shadow, things in front, and a camera."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from clip_tca.datasets.drawing.places import lit_scene
from clip_tca.datasets.drawing.raster import SIZE, Placed, X, Y, blend, blurred, noise, picture, speckle
from clip_tca.datasets.drawing.shapes import Array, Colour, shade


def photo(placed: Placed, place: str, rng: np.random.Generator) -> Image.Image:
    """Shaded, textured, cluttered, partly hidden, taken with a camera that has its own exposure and tint."""
    u = rng.uniform
    pixels, cover = lit_scene(placed, place, rng, u(0.5, 0.9))
    grain = 0.4 * noise(rng, 60, 34) + 0.6 * noise(rng, 24, 14) + 0.5 * noise(rng, 7)
    pixels = pixels * (1 + u(0.07, 0.16) * (grain * cover)[..., None])
    if rng.random() < 0.4:
        pixels = _in_front(pixels, placed, place, rng)
    radius = ((X - SIZE / 2) ** 2 + (Y - SIZE / 2) ** 2) / (SIZE**2 / 2)
    slope = (X - SIZE / 2) / SIZE * u(-0.25, 0.25)
    exposure = u(0.9, 1.2) * (1 - u(0, 0.35) * radius + slope)
    pixels = pixels * exposure[..., None] * u(0.94, 1.06, 3).astype(np.float32)
    contrast = u(0.9, 1.15)
    return picture(pixels * contrast + 128 * (1 - contrast) + speckle(rng, u(1, 5), 3))


def _in_front(pixels: Array, placed: Placed, place: str, rng: np.random.Generator) -> Array:
    """Something between camera and figure: blades of grass, a post or rail, or leaves at the edge."""
    u = rng.uniform
    layer = Image.fromarray(np.zeros((SIZE * 2, SIZE * 2), np.uint8))
    draw = ImageDraw.Draw(layer)
    kind = int(rng.integers(3))
    colour: Colour
    if kind == 0:
        colour = shade((90, 120, 60) if place in ("grass", "forest") else (120, 105, 80), u(0.6, 1.2))
        for x in rng.uniform(0, SIZE * 2, int(rng.integers(15, 50))):
            draw.line((x, SIZE * 2, x + u(-14, 14), SIZE * 2 - u(8, 44)), fill=255, width=3)
    elif kind == 1:
        colour = shade((120, 95, 70), u(0.5, 1.4))
        x, y = u(0, SIZE * 2), min(placed.ground, SIZE) * 2 - u(4, 36)
        draw.rectangle((x, y - u(30, 90), x + u(8, 16), SIZE * 2), fill=255)
        if rng.random() < 0.6:
            draw.rectangle((0, y, SIZE * 2, y + u(4, 8)), fill=255)
    else:
        colour = shade((80, 110, 55), u(0.5, 1.2))
        cx, cy = rng.choice([0, SIZE * 2]), u(0, SIZE * 2)
        for _ in range(22):
            x, y, r = cx + rng.normal(0, 24), cy + rng.normal(0, 30), u(4, 11)
            draw.ellipse((x - r, y - r * 0.6, x + r, y + r * 0.6), fill=255)
    alpha = blurred(np.asarray(layer.reduce(2), np.float32) / 255, u(0.4, 1.2))[..., None]
    tone = np.array(colour, np.float32) * (1 + 0.25 * noise(rng, 16))[..., None]
    return blend(pixels, tone, alpha)
