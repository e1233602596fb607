"""Person: from the front in a pose, clothed, full or half-length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clip_tca.datasets.drawing.looks import DARK, Look
from clip_tca.datasets.drawing.shapes import Colour, Figure, along, shade

SKIN: tuple[Colour, ...] = ((244, 208, 177), (224, 172, 135), (190, 130, 90), (141, 88, 57), (92, 58, 40))
HAIR: tuple[Colour, ...] = ((40, 30, 28), (90, 58, 36), (150, 100, 50), (218, 180, 105), (150, 60, 35), (170, 168, 165))


def _arm(
    fig: Figure,
    shoulder: Sequence[float],
    upper: float,
    lower: float,
    sleeve: Colour,
    skin: Colour,
    long: bool,
    relief: float,
) -> None:
    """An arm with the directions of upper and lower arm; a long or a short sleeve."""
    elbow = along(shoulder, upper, 0.27)
    hand = along(elbow, lower, 0.26)
    fig.tube([shoulder, elbow, hand], [0.12, 0.095, 0.07], sleeve if long else skin, relief)
    fig.ellipse(hand, (0.055, 0.055), skin, relief)
    if not long:
        fig.tube([shoulder, along(shoulder, upper, 0.15)], [0.145, 0.14], sleeve, relief)


def person(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """Head with hair and face, arms and legs in a pose, clothes; sometimes half-length."""
    fig, u = Figure(), rng.uniform
    shirt, lower = look.main, look.second
    skin, hair = SKIN[rng.integers(len(SKIN))], HAIR[rng.integers(len(HAIR))]
    shoe = [(45, 40, 42), (120, 75, 45), (225, 225, 225)][rng.integers(3)]
    pose = str(rng.choice(["standing", "walking", "waving", "cheering", "half"], p=[0.3, 0.25, 0.2, 0.1, 0.15]))
    half, long, dress = pose == "half", rng.random() < 0.5, rng.random() < 0.3
    wide, hip, neck = u(0.34, 0.44), u(0.8, 0.88), u(1.36, 1.42)
    stride = u(0.12, 0.24) if pose == "walking" else u(0.02, 0.09)
    down, bend = -np.pi / 2, u(0.1, 0.5)
    swing = stride * 2 if pose == "walking" else 0.0
    arms = {
        -1: (down - 0.15 - u(0, 0.25) + swing, down + bend * 0.6 + swing),
        1: (down + 0.15 + u(0, 0.25) - swing, down + bend - swing),
    }
    if pose in ("waving", "cheering"):
        arms[1] = (u(0.1, 0.7), u(1.1, 1.7))
    if pose == "cheering":
        arms[-1] = (np.pi - u(0.1, 0.7), np.pi - u(1.1, 1.7))
    if pose in ("standing", "half") and rng.random() < 0.3:
        arms = {-1: (down - 0.75, down + 0.75), 1: (down + 0.75, down - 0.75)}
    shoulders = {s: (s * wide / 2, neck - 0.1) for s in (-1, 1)}
    hairdo = int(rng.integers(5))
    size = look.head
    x, y = head = (u(-0.02, 0.02), neck + 0.02 + 0.17 * size)
    rx, ry = 0.135 * size, 0.17 * size
    if hairdo in (0, 1):
        fall = u(0.28, 0.5)
        hang = ((-rx * 1.3, -fall), (-rx * 1.35, 0), (0, ry * 1.2), (rx * 1.35, 0), (rx * 1.3, -fall))
        fig.blob([(x + dx, y + dy) for dx, dy in hang], hair, 0.3)
        fig.layer()
    if hairdo == 2:
        fig.ellipse((head[0], head[1] + ry * 1.2), (rx * 0.6, ry * 0.45), hair, 0.4)
        fig.layer()
    if pose == "walking":
        _arm(fig, shoulders[-1], *arms[-1], shade(shirt, 0.75), shade(skin, 0.8), long, 0.3)
        fig.layer()
    if not half:
        for s, tone in ((-1, 0.8), (1, 1.0)):
            thigh, foot = (s * wide * 0.24, hip), (s * (wide * 0.22 + stride), 0.06)
            knee = ((thigh[0] + foot[0]) / 2 + 0.03, 0.45)
            fig.tube([thigh, knee, foot], [0.2, 0.145, 0.11], shade(skin if dress else lower, tone), 0.45 + 0.1 * s)
            fig.ellipse((foot[0] + 0.04, 0.035), (0.1, 0.045), shade(shoe, tone), 0.5)
            fig.layer()
    fig.tube([(0, neck - 0.12), (head[0], head[1] - ry * 0.5)], [0.13, 0.11], shade(skin, 0.88), 0.45)
    fig.layer()
    waist, hem = wide * 0.4, hip - 0.06
    side = [(0.07, neck - 0.01), (wide / 2, neck - 0.06), (wide * 0.47, neck - 0.25)]
    side += [(waist, hip + 0.1), (wide * 0.44, hem)]
    fig.blob([*[(-a, b) for a, b in side], (0, hem - 0.02), *side[::-1], (0, neck - 0.05)], shirt, 0.6)
    if dress and not half:
        top, right, left = hip + 0.12, wide * u(0.6, 0.8), -wide * u(0.6, 0.8)
        skirt = [(-waist * 0.95, top), (waist * 0.95, top), (right, 0.42), (left, 0.42)]
        fig.polygon(skirt, shirt if rng.random() < 0.5 else lower, 0.62)
    extra = rng.integers(4)
    if extra == 0:
        for row in np.arange(hip + 0.06, neck - 0.1, 0.13):
            fig.tube(
                [(-waist * 0.95, row), (waist * 0.95, row)], [0.045, 0.045], shade(shirt, 1.55), 0.6, outlined=False
            )
    elif extra == 1 and not dress:
        fig.tube([(-wide * 0.42, hem + 0.01), (wide * 0.42, hem + 0.01)], [0.05, 0.05], DARK, 0.65)
    for s in (1,) if pose == "walking" else (-1, 1):
        fig.layer()
        _arm(fig, shoulders[s], *arms[s], shirt, skin, long, 0.75)
    fig.layer()
    fig.ellipse(head, (rx, ry), skin, 0.8)
    for s in (-1, 1):
        fig.ellipse((x + s * rx, y - 0.01), (0.03 * size, 0.04 * size), skin, 0.7)
    fig.layer()
    nose = x + u(-0.03, 0.03) * size
    for s in (-1, 1):
        eye = nose + s * 0.055 * size
        if look.eye > 1.3:
            fig.ellipse((eye, y + 0.01), (0.03 * size, 0.036 * size), (255, 255, 255), 0.8)
        fig.ellipse((eye, y + 0.01), (0.016 * size, 0.019 * size), DARK, 0.8, outlined=False)
        brow = [(eye - 0.03 * size, y + 0.05 * size), (eye + 0.03 * size, y + 0.055 * size)]
        fig.stroke(brow, 0.013, shade(hair, 0.8))
    corner, mouth = 0.05 * size, y - 0.08 * size
    lips = [(nose - corner, mouth), (nose, y - 0.095 * size), (nose + corner, mouth)]
    fig.stroke(lips, 0.016, (150, 55, 55), 0.8, curved=True)
    fig.stroke([(nose, y - 0.005), (nose + 0.012, y - 0.045 * size)], 0.012, shade(skin, 0.7))
    fig.layer()
    if hairdo == 3:
        hat = [(200, 50, 50), (50, 80, 150), (90, 70, 50), (225, 195, 110)][rng.integers(4)]
        crown = ((-0.95, 0.45), (-0.8, 1.3), (0.8, 1.3), (0.95, 0.45))
        fig.blob([(x + rx * a, y + ry * b) for a, b in crown], hat, 0.85)
        fig.tube([(x - rx * 1.5, y + ry * 0.5), (x + rx * 1.5, y + ry * 0.5)], [0.05, 0.05], shade(hat, 0.8), 0.9)
    else:
        parting = u(-0.5, 0.5) * rx
        cap = ((-1.08, -0.05), (-1.02, 0.7), (0.0, 1.2), (1.02, 0.7), (1.08, -0.05), (0.8, 0.45))
        around = [(x + rx * a, y + ry * b) for a, b in cap]
        fig.blob([*around, (x + parting, y + ry * 0.68), (x - rx * 0.8, y + ry * 0.45)], hair, 0.85)
    fig.half_length = half
    return fig, "standing" if half else pose
