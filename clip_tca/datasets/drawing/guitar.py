"""Guitar: acoustic or electric, upright, leaning or lying."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clip_tca.datasets.drawing.looks import DARK, Look
from clip_tca.datasets.drawing.shapes import Figure, shade, turned


def guitar(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """A waisted body with sound hole, bridge and strings; a fretted neck; a head with pegs. Acoustic or electric."""
    fig, u = Figure(), rng.uniform
    electric = rng.random() < 0.35
    wood, trim = look.main, look.second
    upper, waist, lower, tall = u(0.25, 0.3), u(0.19, 0.23), u(0.34, 0.4), u(0.84, 0.95)
    board, pegs = shade((88, 58, 40), u(0.6, 1.3)), (205, 200, 190)
    if electric:
        a, b = u(0.0, 0.12), u(-0.06, 0.08)
        half = [(0.09, 0.72), (0.24, 0.86 + b), (0.3, 0.72), (0.22, 0.5), (0.33, 0.22), (0.2, 0.0), (0.0, -0.02)]
        left = [(-0.2, 0.0), (-0.34, 0.24), (-0.23, 0.5), (-0.31, 0.78), (-0.24, 0.94 + a), (-0.09, 0.72)]
        outline = np.array(half + left)
    else:
        side = [(0.12, tall), (upper, tall * 0.85), (upper * 0.95, tall * 0.7), (waist, tall * 0.56)]
        side += [(lower * 0.94, tall * 0.36), (lower, tall * 0.2), (lower * 0.6, 0.02)]
        outline = np.array([*side, (0.0, 0.0), *[(-x, y) for x, y in side[::-1]]])
        if rng.random() < 0.3:
            outline[[1, 2]] = [(upper * 0.55, tall * 0.8), (upper * 0.9, tall * 0.72)]
    fig.blob(outline * [1.04, 1] + [0.025, -0.02], shade(trim, 0.7), 0.5)
    fig.layer()
    fig.blob(outline, wood, 0.6)
    centre = outline.mean(0)
    fig.blob((outline - centre) * 0.84 + centre, shade(wood, u(1.05, 1.3)), 0.6, outlined=False)
    fig.layer()
    if electric:
        guard = [(0.05, 0.62), (0.2, 0.7), (0.18, 0.45), (0.22, 0.2), (0.06, 0.18), (-0.12, 0.3), (-0.1, 0.6)]
        fig.blob(guard, trim, 0.65)
        for y in (0.34, 0.5):
            fig.box(-0.1, y - 0.03, 0.1, y + 0.03, DARK, 0.8)
        for k in range(2):
            fig.ellipse((0.17 + 0.03 * k, 0.25 - 0.09 * k), (0.028, 0.028), pegs, 0.8)
    else:
        hole = (0.0, tall * 0.6)
        fig.ellipse(hole, (0.155, 0.155), shade(trim, 0.8), 0.6)
        fig.ellipse(hole, (0.125, 0.125), (30, 22, 18), 0.3)
        if rng.random() < 0.5:
            guard = [(0.14, tall * 0.62), (0.2, tall * 0.5), (0.17, tall * 0.36), (0.1, tall * 0.46)]
            fig.blob(guard, shade(trim, 0.55), 0.6)
    bridge = 0.17 if electric else tall * 0.26
    fig.box(-0.14, bridge - 0.03, 0.14, bridge + 0.03, pegs if electric else board, 0.85)
    fig.layer()
    long, nut = u(1.0, 1.2), 0.055
    start, end = (0.62, 0.72 + long) if electric else (tall * 0.76, tall + long * 0.75)
    fig.polygon([(-0.075, start), (0.075, start), (nut, end), (-nut, end)], board, 0.85)
    for y in end - (end - start) * (1 - 0.5 ** (np.arange(1, 11) / 6)) * 1.35:
        fig.stroke([(-0.058, y), (0.058, y)], 0.012, pegs, 0.85)
    fig.layer()
    crown = ((-nut, 0), (-0.1, 0.07), (-0.09, 0.3), (0.0, 0.27), (0.09, 0.3), (0.1, 0.07), (nut, 0))
    for k in range(3):
        for s in (-1, 1):
            fig.ellipse((s * 0.13, end + 0.08 + 0.085 * k), (0.04, 0.028), pegs, 0.6)
    fig.polygon([(x, end + y) for x, y in crown], wood if electric else shade(board, 1.15), 0.85)
    for s in np.linspace(-1, 1, 6 if rng.random() < 0.5 else 4):
        fig.stroke([(s * 0.065, bridge), (s * 0.042, end), (s * 0.06, end + 0.14)], 0.009, (232, 226, 212), 0.85)
    angle = rng.choice([u(-0.25, 0.25), u(0.5, 1.1), u(-1.1, -0.5), u(1.2, 1.6)])
    fig.parts = [replace(part, points=turned(part.points, -angle)) for part in fig.parts]
    return fig, "lying" if angle > 1.15 else "leaning" if abs(angle) > 0.4 else "standing"
