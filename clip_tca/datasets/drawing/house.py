"""House: a gabled front, mostly with a side wall in perspective, of one or two floors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clip_tca.datasets.drawing.looks import IVORY, Look
from clip_tca.datasets.drawing.shapes import Colour, Figure, shade


def _window(
    fig: Figure, corner: Sequence[float], size: Sequence[float], slope: float, glass: Colour, frame: Colour
) -> None:
    """A window with bars; ``slope`` follows the wall's perspective."""
    (x, y), (w, h) = corner, size

    def at(a: float, b: float) -> tuple[float, float]:
        return x + a * w, y + b * h + slope * a * w

    fig.polygon([at(-0.12, -0.1), at(1.12, -0.1), at(1.12, 1.1), at(-0.12, 1.1)], frame, 0.7)
    fig.polygon([at(0, 0), at(1, 0), at(1, 1), at(0, 1)], glass, 0.5)
    fig.stroke([at(0.5, 0), at(0.5, 1)], 0.018, frame)
    fig.stroke([at(0, 0.5), at(1, 0.5)], 0.018, frame)


def house(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """A gabled front, often with a side wall in perspective; roof, door, windows, chimney."""
    fig, u = Figure(), rng.uniform
    wall, roof = look.main, look.second
    floors = 1 + (rng.random() < 0.4)
    w, h, peak = u(0.75, 1.05), u(0.5, 0.62) * (1 + 0.75 * (floors - 1)), u(0.32, 0.6)
    side = u(0.35, 0.95) if rng.random() < 0.75 else 0.0
    rise, over = side * u(0.06, 0.16), 0.07
    glass: Colour = [(150, 190, 215), (70, 85, 105), (250, 220, 130)][rng.integers(3)]
    frame = IVORY if sum(wall) < 620 else shade(wall, 0.55)
    ridge = (w / 2, h + peak)
    far = (ridge[0] + side, ridge[1] + rise * 0.6)
    if rng.random() < 0.85:
        x = ridge[0] + (u(0.25, 0.75) * side if side else u(-0.25, 0.2) * w)
        base = ridge[1] - (0.1 if side else abs(x - ridge[0]) / w * 2 * peak + 0.08)
        brick = shade((165, 85, 65), u(0.8, 1.2))
        fig.box(x, base, x + 0.13, ridge[1] + 0.2, brick, 0.5)
        fig.box(x - 0.02, ridge[1] + 0.17, x + 0.15, ridge[1] + 0.23, shade(brick, 0.7), 0.5)
        if rng.random() < 0.35:
            fig.layer()
            for k in range(3):
                puff, radii = (x + 0.07 + 0.06 * k, ridge[1] + 0.33 + 0.11 * k), (0.05 + 0.025 * k, 0.04 + 0.02 * k)
                fig.ellipse(puff, radii, (222, 222, 225), 0.3)
    fig.layer()
    if side:
        fig.polygon([(w, 0), (w + side, rise), (w + side, h + rise * 0.7), (w, h)], shade(wall, 0.72), 0.4)
        fig.layer()
        eave = [(w + over, h - 0.09), (w + side + over, h + rise * 0.7 - 0.07), (far[0] + over, far[1]), ridge]
        fig.polygon(eave, roof, 0.6)
        for t in np.linspace(0.18, 0.85, 4):
            p, q = [np.array(eave[a]) * (1 - t) + np.array(eave[b]) * t for a, b in ((0, 3), (1, 2))]
            fig.stroke([p, q], 0.014, shade(roof, 0.78))
        fig.layer()
        count = 1 + (side > 0.6)
        for floor in range(floors):
            for k in range(count):
                ww = side / (count + 1) * 0.55
                x = side * (k + 0.75) / (count + 0.5) - ww / 2
                corner = (w + x, 0.2 + rise * x / side + floor * 0.45)
                _window(fig, corner, (ww, 0.2), rise / side, shade(glass, 0.85), shade(frame, 0.85))
    fig.layer()
    fig.polygon([(0, 0), (w, 0), (w, h), ridge, (0, h)], wall, 0.6)
    if rng.random() < 0.5:
        for y in np.arange(0.08, h, 0.085):
            fig.stroke([(0.01, y), (w - 0.01, y)], 0.01, shade(wall, 0.86))
    fig.layer()
    slope = peak / (w / 2)
    for s in (-1, 1):
        foot = (w / 2 + s * (w / 2 + over), h - slope * over)
        board = [ridge, foot, (foot[0], foot[1] + 0.09), (ridge[0], ridge[1] + 0.1)]
        fig.polygon(board, shade(roof, 0.9 if s < 0 else 1.0), 0.8)
    fig.layer()
    if rng.random() < 0.6:
        fig.ellipse((w / 2, h + peak * 0.3), (0.08, 0.08), glass, 0.5)
    middle = rng.random() < 0.5
    dx = (w - 0.2) / 2 if middle else rng.choice([0.1, w - 0.32])
    door: Colour = [(120, 65, 40), (160, 40, 40), (40, 85, 110), (60, 100, 60)][rng.integers(4)]
    fig.box(dx - 0.03, 0, dx + 0.25, 0.4, frame, 0.7)
    fig.box(dx, 0, dx + 0.22, 0.37, door, 0.65)
    fig.ellipse((dx + 0.18, 0.18), (0.018, 0.018), (235, 205, 90), 0.8, outlined=False)
    spots = [0.1, w - 0.28] if middle else [w - 0.46 if dx < w / 2 else 0.14]
    for floor in range(floors):
        for x in spots if floor == 0 or not middle else [0.12, w / 2 - 0.1, w - 0.3]:
            wide = 0.28 if not middle else 0.17 if floor else 0.18
            _window(fig, (x, 0.2 + 0.45 * floor), (wide, 0.2), 0.0, glass, frame)
        if floor and not middle:
            _window(fig, (dx, 0.65), (0.2, 0.2), 0.0, glass, frame)
    return fig, "standing"
