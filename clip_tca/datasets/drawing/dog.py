"""Dog: side on, standing, walking or sitting, or sitting and looking at us."""

from __future__ import annotations

import numpy as np

from clip_tca.datasets.drawing.anatomy import eye, frame, legs
from clip_tca.datasets.drawing.looks import DARK, Look
from clip_tca.datasets.drawing.shapes import Colour, Figure, along, shade

_COLLARS: tuple[Colour, ...] = ((200, 40, 45), (40, 80, 190), (40, 140, 70))


def dog(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """Short legs, a muzzle with a black nose, floppy or pointed ears, a wagging tail, often a collar."""
    if rng.random() < 0.2:
        return _front(rng, look), "facing the camera"
    fig, u = Figure(), rng.uniform
    coat, spot = look.main, look.second
    sitting = rng.random() < 0.3
    length, depth, top = u(0.7, 0.95), u(0.3, 0.36), u(0.34, 0.46)
    half, y, stride = length / 2, top + depth * 0.35, u(0.02, 0.2)
    widths, paw = (0.15, 0.1, 0.085), shade(coat, 1.12)
    if sitting:
        half, chest = 0.3, (0.22, u(0.58, 0.68))
        fig.tube([(-half, 0.12), (-half - 0.25, 0.1), (-half - 0.4, u(0.15, 0.4))], [0.09, 0.08, 0.05], coat, 0.5)
        fig.layer()
        fig.tube([(0.24, 0.5), (0.27, 0.25), (0.29, 0.06)], [0.16, 0.1, 0.09], shade(coat, 0.72), 0.3)
        fig.ellipse((0.34, 0.045), (0.08, 0.045), shade(coat, 0.72), 0.3)
        fig.layer()
        fig.tube([(-0.24, 0.2), (-0.08, 0.36), chest], [0.4, 0.42, 0.34], coat, 0.6)
        fig.layer()
        fig.ellipse((-0.14, 0.19), (0.2, 0.18), coat, 0.75, 0.5)
        fig.ellipse((0.04, 0.045), (0.13, 0.05), paw, 0.75)
        fig.layer()
        fig.tube([(0.18, 0.5), (0.2, 0.25), (0.2, 0.06)], [0.18, 0.11, 0.1], coat, 0.85)
        fig.ellipse((0.25, 0.045), (0.09, 0.05), paw, 0.85)
        base = (chest[0] - 0.02, chest[1] + 0.06)
    else:
        legs(fig, rng, (half - 0.08, -half + 0.08, y - 0.03), widths, (coat, coat), False, stride)
        fig.layer()
        rump, wag = (-half - 0.08, y + 0.08), u(0.5, 1.5)
        end = along(rump, np.pi - wag, 0.34)
        tail = [rump, along(rump, np.pi - wag * 0.5, 0.17), (end[0] + 0.03, end[1] + 0.03)]
        fig.tube(tail, [0.1, 0.08, 0.04], coat, 0.5)
        fig.layer()
        torso = [(-half, y + 0.01), (-half * 0.2, y + 0.02), (half - 0.02, y + 0.02)]
        fig.tube(torso, [depth * w for w in (0.85, 0.82, 1.05)], coat, 0.6)
        legs(fig, rng, (half - 0.03, -half + 0.03, y - 0.02), widths, (coat, paw), True, stride)
        base = (half + 0.02, y + 0.1)
    if rng.random() < 0.45:
        for _ in range(3):
            x = u(-half, half * 0.6)
            centre = (x, (0.3 + 0.4 * (x + half)) if sitting else y + u(-0.02, 0.1))
            fig.ellipse(centre, (u(0.06, 0.13), u(0.05, 0.09)), spot, 0.65, u(0, 3), outlined=False)
    fig.layer()
    neck = u(0.75, 1.25)
    skull = along(base, neck, 0.3)
    at = frame(skull, u(-0.3, 0.2), look.head * u(1.0, 1.15))
    size = look.head * 1.05
    pointed = rng.random() < 0.4
    if pointed:
        fig.polygon([at(0.02, 0.1), at(0.03, 0.33), at(0.13, 0.12)], shade(spot, 0.75), 0.5)
        fig.layer()
    fig.tube([(base[0] - 0.06, base[1] - 0.08), base, skull], [0.28, 0.23 * size, 0.2 * size], coat, 0.7)
    face = [at(0.0, 0.01), at(0.1, 0.0), at(0.22, -0.05), at(0.31, -0.06)]
    fig.tube(face, [w * size for w in (0.3, 0.28, 0.16, 0.14)], coat, 0.85)
    if rng.random() < 0.4:
        fig.tube([at(0.2, -0.07), at(0.31, -0.07)], [0.12 * size, 0.11 * size], shade(coat, 1.4), 0.85, outlined=False)
    if rng.random() < 0.4:
        fig.layer()
        fig.blob([at(0.19, -0.12), at(0.27, -0.13), at(0.27, -0.24), at(0.21, -0.24)], (222, 105, 115), 0.85)
    fig.layer()
    fig.stroke([at(0.37, -0.1), at(0.27, -0.115), at(0.17, -0.1)], 0.016, DARK, 0.85, curved=True)
    fig.ellipse(at(0.37, -0.02), (0.05 * size, 0.042 * size), DARK, 0.95)
    eye(fig, at(0.13, 0.055), 0.028, look)
    fig.layer()
    if pointed:
        fig.polygon([at(-0.13, 0.08), at(-0.07, 0.34), at(0.05, 0.13)], spot, 0.95)
    else:
        ear = ((-0.1, 0.14), (0.02, 0.13), (0.03, -0.05), (-0.02, -0.2), (-0.12, -0.2), (-0.16, -0.02))
        fig.blob([at(*point) for point in ear], spot, 0.95)
    if rng.random() < 0.6:
        fig.layer()
        p, collar = along(base, neck, 0.1), _COLLARS[rng.integers(3)]
        q = [along(p, neck + np.pi / 2, s * 0.13) for s in (1, -1)]
        fig.tube([q[0], along(p, neck, -0.02), q[1]], [0.06, 0.06, 0.06], collar, 0.9)
    fig.focus = skull
    return fig, "sitting" if sitting else "walking" if stride > 0.1 else "standing"


def _front(rng: np.random.Generator, look: Look) -> Figure:
    """The dog sitting and looking at us."""
    fig, u = Figure(), rng.uniform
    coat, spot, size = look.main, look.second, look.head * u(1.0, 1.15)
    fig.tube([(0.2, 0.12), (0.45, 0.14), (0.55, u(0.2, 0.4))], [0.1, 0.09, 0.05], coat, 0.3)
    for s in (-1, 1):
        fig.layer()
        fig.ellipse((s * 0.24, 0.17), (0.14, 0.17), shade(coat, 0.9), 0.4)
        fig.ellipse((s * 0.28, 0.045), (0.12, 0.05), shade(coat, 1.12), 0.45)
    fig.layer()
    fig.tube([(0, 0.2), (0, 0.4), (0, 0.62)], [0.42, 0.4, 0.3], coat, 0.6)
    if rng.random() < 0.5:
        bib = [(-0.09, 0.6), (0.09, 0.6), (0.07, 0.38), (0, 0.3), (-0.07, 0.38)]
        fig.blob(bib, shade(coat, 1.4), 0.6, outlined=False)
    for s in (-1, 1):
        fig.layer()
        fig.tube([(s * 0.1, 0.42), (s * 0.1, 0.2), (s * 0.1, 0.06)], [0.15, 0.11, 0.1], coat, 0.8)
        fig.ellipse((s * 0.11, 0.045), (0.08, 0.05), shade(coat, 1.12), 0.85)
    fig.layer()
    if rng.random() < 0.6:
        fig.tube([(-0.14, 0.6), (0, 0.55), (0.14, 0.6)], [0.06, 0.06, 0.06], _COLLARS[rng.integers(3)], 0.7)
        fig.layer()
    at = frame((u(-0.03, 0.03), 0.6 + 0.17 * size), u(-0.2, 0.2), size)
    fig.blob([at(-0.2, 0.08), at(0, 0.19), at(0.2, 0.08), at(0.17, -0.1), at(0, -0.18), at(-0.17, -0.1)], coat, 0.8)
    fig.ellipse(at(0, -0.08), (0.11 * size, 0.09 * size), shade(coat, 1.35), 0.9)
    fig.layer()
    if rng.random() < 0.5:
        fig.blob([at(-0.04, -0.13), at(0.04, -0.13), at(0.035, -0.25), at(-0.035, -0.25)], (222, 105, 115), 0.9)
    fig.stroke([at(-0.07, -0.11), at(0, -0.14), at(0.07, -0.11)], 0.016, DARK, 0.9, curved=True)
    fig.ellipse(at(0, -0.04), (0.055 * size, 0.042 * size), DARK, 0.95)
    for s in (-1, 1):
        eye(fig, at(s * 0.09, 0.05), 0.03, look)
    flap = [(0.13, 0.16), (0.22, 0.11), (0.29, -0.1), (0.22, -0.2), (0.17, -0.02)]
    for s in (-1, 1):
        fig.layer()
        fig.blob([at(s * x, y) for x, y in flap], spot, 0.95)
    fig.focus = at(0, -0.05)
    return fig
