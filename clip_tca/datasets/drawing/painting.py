"""Art painting: a scene brushed stroke by stroke along its contours, in a painter's palette, on canvas."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from clip_tca.datasets.drawing.places import lit_scene
from clip_tca.datasets.drawing.raster import SIZE, Placed, X, Y, blend, blurred, grey_of, ink, noise, picture, speckle
from clip_tca.datasets.drawing.shapes import Array

_LIGHTS = np.array([(255, 214, 140), (255, 190, 130), (250, 235, 190)], np.float32)
_SHADOWS = np.array([(35, 40, 95), (70, 35, 60), (30, 60, 70), (55, 35, 25)], np.float32)


def art_painting(placed: Placed, place: str, rng: np.random.Generator) -> Image.Image:
    """Brush strokes that follow the contours, coarse ones first, in a painter's palette, on canvas."""
    u = rng.uniform
    pixels, cover = lit_scene(placed, place, rng, u(0.6, 1.0))
    rim = np.clip(blurred(cover, 1.3) * (1 - cover) * 3 + cover * (1 - blurred(cover, 1.0)), 0, 1)
    pixels = _palette(pixels * (1 - u(0.25, 0.55) * rim[..., None]), rng)
    grey = blurred(grey_of(pixels) / 255, 2.0)
    down, right = np.gradient(grey)
    swirl = noise(rng, 4) * 1.6 + u(-0.6, 0.6)
    strength = np.hypot(down, right)
    angle = np.where(strength > 0.012, np.arctan2(right, -down), swirl)
    angle += 0.25 * noise(rng, 12)
    image = picture(pixels * 0.85 + 20).resize((SIZE * 2, SIZE * 2), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(image)
    coarse, small = u(7, 12), min(1.0, placed.extent)
    edge = np.clip(blurred(cover, 1.0) + 0.15, 0, 1)
    for count, length, width, inside in (
        (330, coarse, coarse * 0.42, False),
        (750, coarse * 0.5 * small, 2.1 * small, True),
    ):
        x, y = rng.uniform(0, SIZE, (2, count))
        column, row = x.astype(int), y.astype(int)
        keep = rng.random(count) < edge[row, column] if inside else cover[row, column] < 0.5
        x, y, column, row = x[keep], y[keep], column[keep], row[keep]
        way, n = angle[row, column], len(x)
        reach = length * rng.uniform(0.6, 1.3, n)
        tone = pixels[row, column] * rng.uniform(0.86, 1.16, (n, 1)) + rng.normal(0, 8, (n, 3))
        dx, dy = np.cos(way) * reach / 2, np.sin(way) * reach / 2
        ends = np.stack([x - dx, y - dy, x + dx, y + dy], 1)
        thick = np.maximum(2, width * 2 * rng.uniform(0.6, 1.3, n)).astype(int).tolist()
        for line, t, w in zip((ends * 2).tolist(), tone, thick, strict=True):
            draw.line(line, fill=ink(t), width=w)
    painted = np.asarray(image.reduce(2), np.float32)
    ridge = grey_of(painted)
    impasto = np.zeros_like(ridge)
    impasto[1:, 1:] = ridge[1:, 1:] - ridge[:-1, :-1]
    weave = np.sin(X * 2.6) * np.sin(Y * 2.6) * u(2, 6) + speckle(rng, 2.5)[..., 0]
    return picture(painted + (np.clip(impasto, -30, 30) * 0.25 + weave)[..., None])


def _palette(pixels: Array, rng: np.random.Generator) -> Array:
    """The colours of a school: vivid, warm old varnish, cool, or with a tint between light and shadow."""
    u = rng.uniform
    grey = grey_of(pixels)[..., None]
    light = np.clip(grey / 255, 0, 1)
    toned = blend(_SHADOWS[rng.integers(len(_SHADOWS))], _LIGHTS[rng.integers(len(_LIGHTS))], light)
    vivid = grey + (pixels - grey) * u(1.1, 2.0)
    return blend(vivid, toned, np.float32(u(0.15, 0.5))).clip(0, 255)
