"""Where a picture is taken: fields, streets, beaches, rooms … as sky, ground and clutter, for photos and paintings."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from clip_tca.datasets.drawing.raster import SIZE, Placed, X, Y, blend, ink, layers, lighting, noise, picture
from clip_tca.datasets.drawing.shapes import Array, Colour, shade

# Phrases for captions, and the places where a class is met.
PLACES = {
    "grass": "on grass",
    "city": "in the city",
    "beach": "on the beach",
    "snow": "in the snow",
    "forest": "in the forest",
    "desert": "in the desert",
    "room": "in a room",
    "stage": "on a stage",
}
_GROUND: dict[str, tuple[Colour, Colour]] = {
    "grass": ((95, 135, 60), (140, 160, 85)),
    "city": ((105, 105, 108), (145, 142, 138)),
    "beach": ((218, 196, 150), (238, 222, 185)),
    "snow": ((228, 233, 240), (246, 248, 250)),
    "forest": ((82, 85, 48), (115, 95, 62)),
    "desert": ((196, 150, 98), (222, 182, 128)),
    "room": ((130, 88, 58), (165, 120, 82)),
    "stage": ((62, 44, 42), (95, 65, 55)),
}
_SKIES: tuple[tuple[Colour, Colour], ...] = (
    ((95, 150, 215), (195, 220, 240)),
    ((120, 170, 220), (225, 232, 235)),
    ((165, 175, 185), (215, 218, 220)),
    ((110, 120, 170), (245, 190, 140)),
)
_FACADES: tuple[Colour, ...] = ((165, 150, 138), (140, 110, 98), (130, 138, 150), (188, 178, 162))
_OUTSIDE = ("grass", "city", "beach", "snow", "forest", "desert")
_ANYWHERE = (0.22, 0.17, 0.14, 0.12, 0.11, 0.06, 0.12, 0.06)
_CHANCES = {
    "guitar": (("room", "stage", "grass", "city", "beach", "forest"), (0.3, 0.2, 0.15, 0.1, 0.1, 0.15)),
    "house": (_OUTSIDE, (0.3, 0.2, 0.12, 0.13, 0.15, 0.1)),
    **dict.fromkeys(("dog", "person"), ((*_OUTSIDE, "room", "stage"), _ANYWHERE)),
}
_FINE = 2


def choose(name: str, rng: np.random.Generator) -> str:
    """A place for a picture of the class ``name``."""
    places, chances = _CHANCES.get(name, (_OUTSIDE, (0.28, 0.12, 0.12, 0.12, 0.16, 0.2)))
    return str(rng.choice(places, p=chances))


def background(place: str, ground: float, rng: np.random.Generator) -> Array:
    """The place without its figure, ``(SIZE, SIZE, 3)`` in 0 to 255; ``ground`` is the row where the figure stands."""
    horizon = min(max(ground - rng.uniform(6, 34), 22.0), 84.0)
    rows = np.arange(SIZE, dtype=np.float32)[:, None, None]
    top, low = _wall(place, rng)
    t = np.clip(rows / horizon, 0, 1)
    sky = np.array(top, np.float32) * (1 - t) + np.array(low, np.float32) * t + np.zeros((SIZE, SIZE, 1), np.float32)
    if place not in ("room", "stage"):
        cloud = np.clip(noise(rng, 5, 9) + 0.5 * noise(rng, 11, 16), 0, 1)[..., None]
        sky += cloud * (245 - sky) * rng.uniform(0.2, 0.8)
    near, far = _GROUND[place]
    depth = np.clip((rows - horizon) / (SIZE - horizon + 1), 0, 1)
    floor = np.array(far, np.float32) * (1 - depth) + np.array(near, np.float32) * depth
    rough = noise(rng, 10, 24) * 0.10 + noise(rng, 40, 60) * 0.12
    floor = floor * (1 + rough[..., None] * (0.5 + depth) * (0.4 if place == "snow" else 1.0))
    base = np.where(rows < horizon, sky, floor)
    image = picture(base).resize((SIZE * _FINE,) * 2, Image.Resampling.NEAREST)
    _clutter(ImageDraw.Draw(image), place, horizon, rng)
    soft = image.reduce(_FINE).filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 1.4)))
    pixels = np.asarray(soft, np.float32)
    return pixels * (1 + (0.03 * noise(rng, 30) + 0.08 * noise(rng, 6))[..., None])


def lit_scene(placed: Placed, place: str, rng: np.random.Generator, contrast: float) -> tuple[Array, Array]:
    """The figure, lit, in its place, with its shadow: pixels ``(SIZE, SIZE, 3)`` and the figure's coverage."""
    pixels = background(place, placed.ground, rng)
    colour, cover, relief = layers(placed)
    left, top, right, bottom = placed.box
    middle, wide = (left + right) / 2 + rng.uniform(-6, 6), (right - left) * rng.uniform(0.4, 0.55)
    shadow = np.exp(-((((X - middle) / wide) ** 2 + ((Y - bottom) / (2 + 0.045 * (bottom - top))) ** 2) ** 2))
    pixels = pixels * (1 - rng.uniform(0.35, 0.6) * shadow[..., None])
    light = contrast * lighting(relief, rng)
    light -= 0.22 * contrast * np.clip((Y - (top + bottom) / 2) / (bottom - top + 1), 0, 1)
    lit = colour * (1 + light[..., None]) + 30 * np.clip(light, 0, 1)[..., None]
    return blend(pixels, lit, cover[..., None]), cover


def _wall(place: str, rng: np.random.Generator) -> tuple[Colour, Colour]:
    """Colours at the top and at the horizon of what stands behind: sky, or a wall."""
    if place == "room":
        wall: Colour = tuple(rng.uniform(130, 232, 3))
        return shade(wall, 0.9), wall
    if place == "stage":
        cloth = [(90, 25, 35), (35, 30, 70), (50, 35, 60), (30, 30, 34)][rng.integers(4)]
        return shade(cloth, 0.6), shade(cloth, 1.15)
    if place == "forest":
        return (70, 95, 60), (125, 145, 95)
    return _SKIES[rng.integers(len(_SKIES))]


def _box(draw: ImageDraw.ImageDraw, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
    draw.rectangle((x0 * _FINE, y0 * _FINE, max(x0, x1) * _FINE, max(y0, y1) * _FINE), fill=ink(colour))


def _disc(draw: ImageDraw.ImageDraw, x: float, y: float, rx: float, ry: float, colour: Colour) -> None:
    draw.ellipse(((x - rx) * _FINE, (y - ry) * _FINE, (x + rx) * _FINE, (y + ry) * _FINE), fill=ink(colour))


def _tree(
    draw: ImageDraw.ImageDraw, x: float, foot: float, height: float, leaf: Colour, rng: np.random.Generator
) -> None:
    """A trunk and a few balls of leaves, or a conifer."""
    bark = shade((92, 70, 50), rng.uniform(0.7, 1.2))
    _box(draw, x - height * 0.05, foot - height * 0.5, x + height * 0.05, foot, bark)
    if rng.random() < 0.35:
        for k in range(3):
            y, w = foot - height * (0.2 + 0.25 * k), height * (0.3 - 0.07 * k)
            corners = [(x - w, y), (x + w, y), (x, y - height * 0.4)]
            draw.polygon([(a * _FINE, b * _FINE) for a, b in corners], fill=ink(shade(leaf, 0.75 + 0.1 * k)))
        return
    for tone in (0.7, 0.85, 1.0, 1.1):
        r = height * rng.uniform(0.16, 0.26)
        cx, cy = x + rng.normal(0, 0.14) * height, foot - height * rng.uniform(0.55, 0.9)
        _disc(draw, cx, cy, r, r * 0.85, shade(leaf, tone))


def _clutter(draw: ImageDraw.ImageDraw, place: str, horizon: float, rng: np.random.Generator) -> None:
    """The things that stand around: hills, trees, buildings, waves, rocks, furniture."""
    u = rng.uniform
    if place == "room":
        _room(draw, horizon, rng)
        return
    if place == "stage":
        for _ in range(6):
            x = u(0, SIZE)
            _box(draw, x, 0, x + u(1, 4), horizon, shade((110, 40, 50), u(0.4, 1.1)))
        for _ in range(3):
            _disc(draw, u(0, SIZE), u(0, 14), u(2, 5), u(2, 5), (250, 235, 190))
        x = u(0, 80)
        _box(draw, x, horizon - 16, x + 14, horizon + 3, (28, 27, 30))
        return
    leaf = shade((75, 115, 55), u(0.6, 1.25)) if place != "snow" else shade((85, 110, 95), u(0.7, 1.2))
    if place in ("grass", "snow", "desert") and rng.random() < 0.7:
        hill: Colour = {"grass": (105, 135, 95), "snow": (195, 205, 218), "desert": (190, 145, 110)}[place]
        for _ in range(2):
            _disc(draw, u(0, SIZE), horizon + 4, u(25, 60), u(6, 22), shade(hill, u(0.85, 1.15)))
        _box(draw, 0, horizon, SIZE, horizon + 5, _GROUND[place][1])
    if place == "city":
        x = -u(0, 8)
        while x < SIZE:
            w, h = u(10, 24), u(14, 55)
            tone = shade(_FACADES[rng.integers(4)], u(0.75, 1.1))
            _box(draw, x, horizon - h, x + w, horizon + 1, tone)
            for wy in np.arange(horizon - h + 3, horizon - 4, 6):
                for wx in np.arange(x + 2, x + w - 3, 5):
                    _box(draw, wx, wy, wx + 2.2, wy + 3, shade(tone, 0.55 if rng.random() < 0.8 else 1.6))
            x += w + u(0, 5)
        if rng.random() < 0.5:
            _box(draw, 0, u(horizon + 4, 94), SIZE, u(horizon + 4, 94) + 1, (215, 212, 195))
    if place == "beach":
        _box(draw, 0, horizon - u(3, 14), SIZE, horizon + 2, shade((70, 135, 165), u(0.8, 1.2)))
        for _ in range(3):
            y = horizon - u(-2, 8)
            _box(draw, u(0, 50), y, u(50, SIZE), y + 0.8, (225, 238, 240))
    count = {"grass": 3, "city": 1, "beach": 0, "snow": 3, "forest": 11, "desert": 1}[place]
    for _ in range(int(rng.integers(0, count + 1)) if place != "forest" else count):
        depth = u(0, 1)
        x, height = u(0, SIZE), u(16, 30) + 30 * depth * (place == "forest")
        _tree(draw, x, horizon + 1 + depth * 5, height, shade(leaf, u(0.8, 1.2)), rng)
    for _ in range(int(rng.integers(1, 6))):
        x, y = u(0, SIZE), u(horizon, SIZE)
        rock = leaf if place in ("grass", "forest") else shade(_GROUND[place][0], u(0.6, 0.9))
        _disc(draw, x, y, u(2, 7), u(1, 4), shade(rock, u(0.8, 1.1)))


def _room(draw: ImageDraw.ImageDraw, horizon: float, rng: np.random.Generator) -> None:
    """A skirting board, and some of: a picture, a window, a shelf, a sofa, a lamp, a rug."""
    u = rng.uniform
    _box(draw, 0, horizon - 2, SIZE, horizon, (228, 222, 212))
    if rng.random() < 0.6:
        x, y, w, h = u(0, 70), u(2, 20), u(14, 28), u(12, 26)
        _box(draw, x - 1.5, y - 1.5, x + w + 1.5, y + h + 1.5, shade((150, 115, 75), u(0.5, 1.3)))
        _box(draw, x, y, x + w, y + h, tuple(rng.uniform(80, 220, 3)))
        _box(draw, x, y + h * u(0.4, 0.7), x + w, y + h, tuple(rng.uniform(80, 200, 3)))
    if rng.random() < 0.5:
        x, tone = u(-15, 75), shade((150, 100, 70), u(0.6, 1.3))
        _box(draw, x, horizon - u(14, 40), x + u(18, 34), horizon + 3, tone)
        for k in range(5):
            _box(draw, x + 2 + 4 * k, horizon - 12, x + 5 + 4 * k, horizon - 4, tuple(rng.uniform(60, 210, 3)))
    if rng.random() < 0.5:
        x, tone = u(-20, 60), tuple(rng.uniform(60, 190, 3))
        _box(draw, x, horizon - 13, x + 40, horizon + 4, tone)
        _box(draw, x + 2, horizon - 6, x + 38, horizon + 7, shade(tone, 0.85))
    if rng.random() < 0.5:
        _disc(draw, u(20, 76), u(horizon + 6, SIZE), u(20, 44), u(4, 10), tuple(rng.uniform(80, 210, 3)))
