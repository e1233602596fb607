"""Colours of the figures, with words for them, and how far a style exaggerates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clip_tca.datasets.drawing.shapes import Colour, shade

DARK: Colour = (38, 32, 32)
IVORY: Colour = (242, 235, 214)
_SHIRTS: tuple[tuple[str, Colour], ...] = (
    ("red", (190, 45, 48)),
    ("blue", (50, 85, 170)),
    ("green", (60, 130, 75)),
    ("yellow", (228, 190, 70)),
    ("white", (232, 230, 226)),
    ("black", (48, 46, 50)),
    ("orange", (222, 120, 50)),
    ("purple", (120, 70, 145)),
)
_TROUSERS: tuple[Colour, ...] = ((45, 60, 100), (60, 58, 60), (120, 95, 70), (150, 145, 140), (40, 75, 80))
_ROOFS: tuple[Colour, ...] = ((165, 70, 50), (95, 90, 95), (120, 80, 55), (70, 90, 120), (60, 95, 75))
# For each class: a word for the colour, the main and the second colour.
_COATS: dict[str, tuple[tuple[str, Colour, Colour], ...]] = {
    "dog": (
        ("brown", (140, 92, 58), (85, 55, 38)),
        ("black", (58, 54, 56), (40, 36, 38)),
        ("white", (232, 224, 212), (120, 85, 60)),
        ("yellow", (216, 170, 104), (180, 125, 70)),
        ("grey", (140, 138, 138), (85, 84, 88)),
        ("white", (235, 230, 225), (55, 50, 50)),
    ),
    "elephant": (
        ("grey", (138, 138, 145), (188, 160, 160)),
        ("grey", (112, 112, 122), (160, 138, 140)),
        ("brown", (146, 122, 104), (190, 155, 140)),
    ),
    "giraffe": (
        ("yellow", (232, 196, 124), (150, 88, 44)),
        ("orange", (226, 165, 95), (125, 65, 35)),
        ("yellow", (238, 214, 160), (172, 108, 58)),
    ),
    "guitar": (
        ("brown", (182, 122, 68), (90, 55, 35)),
        ("orange", (222, 150, 72), (110, 60, 30)),
        ("red", (185, 45, 42), (238, 230, 215)),
        ("black", (48, 46, 50), (228, 225, 218)),
        ("blue", (48, 90, 165), (235, 232, 225)),
        ("yellow", (232, 196, 120), (140, 85, 45)),
    ),
    "horse": (
        ("brown", (128, 76, 44), (50, 36, 32)),
        ("black", (56, 50, 52), (34, 30, 32)),
        ("white", (230, 226, 220), (178, 172, 168)),
        ("orange", (176, 98, 52), (218, 180, 120)),
        ("grey", (148, 146, 148), (92, 90, 94)),
        ("yellow", (214, 172, 108), (240, 226, 192)),
    ),
    "house": (
        ("white", (234, 230, 222), (165, 70, 50)),
        ("red", (172, 76, 62), (85, 80, 85)),
        ("yellow", (232, 206, 140), (150, 75, 50)),
        ("blue", (130, 160, 190), (90, 85, 95)),
        ("grey", (165, 165, 165), (110, 70, 60)),
        ("brown", (158, 116, 82), (85, 60, 50)),
    ),
}


@dataclass(frozen=True)
class Look:
    """What a figure looks like beyond its geometry.

    Attributes:
        main: Main colour (coat, shirt, wall, soundboard).
        second: Second colour (mane, patches, trousers, roof).
        head: Factor on the size of heads; cartoons exaggerate.
        eye: Factor on the size of eyes.
    """

    main: Colour
    second: Colour
    head: float = 1.0
    eye: float = 1.0


def choose_look(name: str, style: str, rng: np.random.Generator) -> tuple[str, Look]:
    """Colours for a figure of the class; cartoons also get large heads and eyes."""
    if name == "person":
        word, main = _SHIRTS[rng.integers(len(_SHIRTS))]
        second = _TROUSERS[rng.integers(len(_TROUSERS))]
    else:
        word, main, second = _COATS[name][rng.integers(len(_COATS[name]))]
        if name == "house" and rng.random() < 0.6:
            second = _ROOFS[rng.integers(len(_ROOFS))]
        if style == "cartoon" and rng.random() < 0.15:
            word, main = _SHIRTS[rng.integers(len(_SHIRTS))]  # a purple elephant
    main, second = shade(main, rng.uniform(0.88, 1.1)), shade(second, rng.uniform(0.88, 1.1))
    if style == "cartoon":
        return word, Look(main, second, head=rng.uniform(1.15, 1.45), eye=rng.uniform(1.5, 2.0))
    return word, Look(main, second, head=rng.uniform(0.94, 1.08))
