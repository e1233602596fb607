"""Elephant: side on with the trunk down or up, or from the front."""

from __future__ import annotations

import numpy as np

from clip_tca.datasets.drawing.anatomy import eye, frame, legs
from clip_tca.datasets.drawing.looks import DARK, IVORY, Look
from clip_tca.datasets.drawing.shapes import Figure, shade


def elephant(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """A massive body on columns, a large ear, a trunk, tusks."""
    if rng.random() < 0.2:
        return _front(rng, look), "facing the camera"
    fig, u = Figure(), rng.uniform
    skin = look.main
    length, depth, top = u(0.95, 1.15), u(0.68, 0.78), u(0.42, 0.52)
    half, y, stride = length / 2, top + depth * 0.42, u(0.0, 0.14)
    widths, nail = (0.3, 0.25, 0.23), shade(skin, 1.35)
    legs(fig, rng, (half - 0.2, -half + 0.1, y - 0.1), widths, (skin, shade(skin, 0.9)), False, stride)
    fig.layer()
    rump = (-half - 0.26, y + 0.12)
    tail = [rump, (rump[0] - 0.1, rump[1] - 0.25), (rump[0] - u(0.02, 0.16), rump[1] - 0.5)]
    fig.tube(tail, [0.06, 0.045, 0.04], skin, 0.5)
    fig.ellipse((rump[0] - 0.09, rump[1] - 0.5), (0.04, 0.06), DARK, 0.5)
    fig.layer()
    torso = [(-half + 0.06, y - 0.02), (-half * 0.2, y + 0.06), (half * 0.55, y + 0.02)]
    fig.tube(torso, [depth * w for w in (0.95, 1.06, 0.92)], skin, 0.6)
    legs(fig, rng, (half - 0.12, -half + 0.06, y - 0.1), widths, (skin, shade(skin, 0.95)), True, stride)
    for part in [p for p in fig.parts if p.relief == 0.75 and len(p.points) == 4]:
        (x0, y0), (x1, _) = part.points[0], part.points[3]
        for k in (0.35, 0.65, 0.95):
            fig.ellipse((x0 + (x1 - x0) * k, y0 + 0.025), (0.026, 0.03), nail, 0.75, outlined=False)
    fig.layer()
    size = look.head**0.7
    head = (half + 0.16, y + u(0.1, 0.24))
    at = frame(head, u(-0.15, 0.15), size)
    raised = rng.random() < 0.3
    swing = u(-0.1, 0.2)
    far_tusk = [at(0.02, -0.12), at(0.2, -0.26), at(0.27, -0.32)]
    fig.tube(far_tusk, [w * size for w in (0.075, 0.06, 0.03)], shade(IVORY, 0.85), 0.5)
    fig.layer()
    if raised:
        curve = [(0.33, -0.14), (0.52, 0.02), (0.58, 0.28), (0.5 + swing, 0.46)]
    else:
        curve = [(0.29, -0.2), (0.31 + swing * 0.3, -0.5), (0.34 + swing, -0.72), (0.46 + swing, -0.78)]
    trunk = [at(0.1, -0.02), *[at(*point) for point in curve]]
    fig.tube(trunk, [w * size for w in (0.36, 0.22, 0.16, 0.12, 0.1)], skin, 0.75)
    fig.tube([at(-0.12, 0.0), at(0.0, 0.07), at(0.1, 0.03)], [0.5 * size, 0.52 * size, 0.42 * size], skin, 0.75)
    for k in range(1, 6):
        p, q = np.array(trunk[1]), np.array(trunk[3])
        c = p + (q - p) * k / 6
        n = np.array([-(q - p)[1], (q - p)[0]]) / np.hypot(*(q - p)) * 0.05 * size
        fig.stroke([c - n, c + n], 0.012, shade(skin, 0.7), 0.75)
    fig.layer()
    tusk = [at(0.1, -0.16), at(0.24, -0.3), at(0.26 + u(0.2, 0.34), -0.26)]
    fig.tube(tusk, [w * size for w in (0.09, 0.075, 0.03)], IVORY, 0.9)
    fig.layer()
    flap = u(0.85, 1.15)
    wide = ((-0.2, 0.31), (-0.45, 0.22), (-0.5, -0.05), (-0.36, -0.34))
    narrow = [at(-0.2, -0.4), at(-0.06, -0.16), at(0.0, 0.05)]
    ear = [at(-0.04, 0.22), *[at(a * flap, b) for a, b in wide], *narrow]
    fig.blob(ear, shade(skin, 0.9), 0.95)
    fig.blob(np.array(ear) * 0.72 + np.mean(ear, 0) * 0.28, look.second, 0.92, outlined=False)
    eye(fig, at(0.11, 0.09), 0.03, look)
    fig.focus = head
    return fig, "walking" if stride > 0.08 else "standing"


def _front(rng: np.random.Generator, look: Look) -> Figure:
    """The elephant seen from the front: both ears, both tusks, the trunk between them."""
    fig, u = Figure(), rng.uniform
    skin, size = look.main, look.head**0.7
    for x in (-0.3, 0.3):
        fig.layer()
        fig.tube([(x, 0.6), (x, 0.3), (x, 0.12)], [0.26, 0.22, 0.22], shade(skin, 0.72), 0.3)
    fig.layer()
    fig.ellipse((0, 0.78), (0.48, 0.5), shade(skin, 0.9), 0.5)
    for x in (-0.23, 0.23):
        fig.tube([(x, 0.7), (x * 1.02, 0.3), (x * 1.02, 0.08)], [0.3, 0.26, 0.25], skin, 0.65)
        for k in (-0.08, 0.0, 0.08):
            fig.ellipse((x + k, 0.0), (0.032, 0.036), shade(skin, 1.35), 0.65, outlined=False)
    head, flap, droop = (u(-0.05, 0.05), u(0.98, 1.1)), u(0.85, 1.15), u(-0.08, 0.08)
    for s in (-1, 1):
        at = frame(head, 0.0, size)
        shape = [(0.16, 0.2), (0.4, 0.36 + droop), (0.62, 0.2 + droop), (0.6, -0.1), (0.42, -0.34), (0.2, -0.16)]
        ear = [at(s * x * (flap if x > 0.2 else 1.0), y) for x, y in shape]
        fig.layer()
        fig.blob(ear, shade(skin, 0.88), 0.55)
        fig.blob(np.array(ear) * 0.72 + np.mean(ear, 0) * 0.28, look.second, 0.52, outlined=False)
    fig.layer()
    swing = u(-0.25, 0.25)
    trunk = [at(0, 0.0), at(0.02, -0.25), at(swing * 0.4, -0.55), at(swing, -0.75), at(swing * 1.6, -0.74)]
    for s in (-1, 1):
        fig.tube([at(s * 0.13, -0.2), at(s * 0.2, -0.38), at(s * 0.2, -0.52)], [0.085, 0.07, 0.03], IVORY, 0.8)
    fig.layer()
    fig.ellipse(at(0, 0.06), (0.27 * size, 0.31 * size), skin, 0.75)
    fig.tube(trunk, [w * size for w in (0.3, 0.23, 0.17, 0.13, 0.11)], skin, 0.95)
    for k in range(1, 6):
        y = -0.12 - 0.08 * k
        fig.stroke([at(-0.07, y), at(0.07, y)], 0.012, shade(skin, 0.7), 0.9)
    for s in (-1, 1):
        eye(fig, at(s * 0.17, 0.08), 0.03, look)
    fig.focus = head
    return fig
