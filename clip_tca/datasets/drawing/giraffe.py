"""Giraffe: side on, its coat laid out in patches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clip_tca.datasets.drawing.anatomy import eye, frame, legs
from clip_tca.datasets.drawing.looks import DARK, Look
from clip_tca.datasets.drawing.shapes import Colour, Figure, along, shade


def giraffe(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """A very long neck, patches all over, stilts for legs, two small horns."""
    fig, u = Figure(), rng.uniform
    coat, patch = look.main, look.second
    length, depth, top = u(0.7, 0.85), u(0.36, 0.42), u(0.85, 1.05)
    half, y, stride = length / 2, top + depth * 0.3, u(0.02, 0.2)
    widths = (0.16, 0.09, 0.065)
    legs(fig, rng, (half - 0.1, -half + 0.1, y - 0.05), widths, (coat, (95, 75, 60)), False, stride)
    fig.layer()
    rump = (-half - 0.1, y + 0.02)
    tip = (rump[0] - u(0.02, 0.16), rump[1] - 0.5)
    fig.tube([rump, (rump[0] - 0.07, rump[1] - 0.2), tip], [0.05, 0.035, 0.03], coat, 0.5)
    fig.tube([tip, (tip[0] - 0.01, tip[1] - 0.14)], [0.06, 0.05], DARK, 0.5)
    neck, reach = u(0.85, 1.4), u(1.0, 1.3)
    base, poll = (half - 0.04, y + 0.12), along((half - 0.04, y + 0.12), neck, reach)
    mid = along(base, neck + u(0.02, 0.16), reach * 0.5)
    fig.layer()
    back = np.array([along(p, neck + np.pi / 2, w) for p, w in ((base, 0.14), (mid, 0.085), (poll, 0.07))])
    fig.tube(back, [0.09, 0.09, 0.06], shade(patch, 0.8), 0.5)
    fig.layer()
    torso = [(-half, y - 0.05), (-half * 0.3, y), (half * 0.4, y + 0.05), (half - 0.04, y + 0.06)]
    fig.tube(torso, [depth * 0.9, depth * 1.0, depth * 1.08, depth * 0.95], coat, 0.6)
    fig.tube([(base[0] - 0.08, base[1] - 0.1), mid, poll], [0.36, 0.18, 0.13], coat, 0.7)
    face = u(-0.7, -0.1)
    at = frame(poll, face, look.head * 1.1)
    for k in (0.0, 0.06):
        fig.tube([at(0.02 + k, 0.05), at(-0.02 + k, 0.2)], [0.03, 0.03], coat, 0.8)
        fig.ellipse(at(-0.02 + k, 0.2), (0.03, 0.03), DARK, 0.8)
    fig.polygon([at(-0.02, 0.03), at(-0.17, 0.1), at(-0.1, -0.02)], shade(coat, 0.85), 0.8)
    fig.tube([at(0, 0), at(0.12, 0), at(0.27, -0.02)], [w * look.head for w in (0.15, 0.15, 0.1)], coat, 0.85)
    fig.ellipse(at(0.28, -0.02), (0.055 * look.head, 0.045 * look.head), shade(coat, 1.45), 0.85, face, outlined=False)
    legs(fig, rng, (half - 0.06, -half + 0.05, y - 0.02), widths, (coat, (95, 75, 60)), True, stride)
    for t in np.arange(0.12, 0.97, 0.115):
        for side in (-0.5, 0.5):
            bend = np.array(along(mid, neck, 0.02))
            p = np.array(base) * (1 - t) ** 2 + 2 * bend * t * (1 - t) + np.array(poll) * t**2
            w = 0.12 * (1 - t) + 0.055 * t
            _patch(fig, rng, along(tuple(p), neck + np.pi / 2, side * w + u(-0.01, 0.01)), w * 0.5, patch)
    for x in np.arange(-half - 0.08, half + 0.06, 0.14):
        for v in (-0.11, 0.02, 0.14):
            _patch(fig, rng, (x + u(-0.02, 0.02) + v * 0.2, y + v + 0.06 * x + u(-0.01, 0.01)), 0.062, patch)
    for x, hind in ((half - 0.06, False), (-half + 0.05, True)):
        _patch(fig, rng, (x + 0.02 * hind, y - 0.27), 0.045, patch)
    fig.layer()
    fig.ellipse(at(0.3, 0.01), (0.012, 0.012), DARK, 0.85, outlined=False)
    eye(fig, at(0.1, 0.035), 0.024, look)
    fig.focus = along(poll, neck, -0.2)
    return fig, "walking" if stride > 0.1 else "standing"


def _patch(fig: Figure, rng: np.random.Generator, centre: Sequence[float], radius: float, colour: Colour) -> None:
    """An irregular patch of a giraffe's coat."""
    angles = np.arange(5) * (2 * np.pi / 5) + rng.uniform(0, 6)
    r = radius * rng.uniform(0.85, 1.2, 5)
    corners = np.stack([centre[0] + r * np.cos(angles), centre[1] + r * np.sin(angles)], 1)
    fig.polygon(corners, colour, 0.65, outlined=False)
