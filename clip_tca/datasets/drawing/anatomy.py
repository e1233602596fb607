"""What the animals share: legs with a gait, eyes, and local frames for heads.

Animals stand on y = 0 and face right; units are arbitrary, since a figure is fitted to its picture later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from clip_tca.datasets.drawing.looks import DARK, Look
from clip_tca.datasets.drawing.shapes import Colour, Figure, shade


def frame(origin: Sequence[float], angle: float, size: float = 1.0) -> Callable[[float, float], tuple[float, float]]:
    """A local frame: (forward, up) of a head or a neck to the figure's frame."""
    c, s = np.cos(angle) * size, np.sin(angle) * size
    return lambda u, v: (float(origin[0] + u * c - v * s), float(origin[1] + u * s + v * c))


def _leg(
    fig: Figure,
    x: float,
    top: float,
    widths: Sequence[float],
    colour: Colour,
    foot: Colour,
    hind: bool,
    swing: float,
    relief: float,
) -> None:
    """One leg from (x, top) to a foot moved forward by ``swing``; hind legs bend at the hock."""
    lift = max(0.0, -swing) * 0.25
    if hind:
        joints = [
            (x, top),
            (x + 0.05 + swing * 0.2, top * 0.62),
            (x - 0.07 + swing * 0.7, top * 0.33),
            (x + swing, 0.05 + lift),
        ]
    else:
        joints = [
            (x, top),
            (x + swing * 0.3, top * 0.7),
            (x + swing * 0.62 + 0.02, top * 0.4),
            (x + swing, 0.05 + lift),
        ]
    fig.tube(joints, [widths[0], widths[1], widths[2], widths[2]], colour, relief)
    w, (fx, fy) = widths[2], joints[-1]
    fig.polygon(
        [(fx - w * 0.6, fy - 0.06), (fx - w * 0.5, fy + 0.04), (fx + w * 0.55, fy + 0.04), (fx + w * 0.95, fy - 0.06)],
        foot,
        relief,
    )


def legs(
    fig: Figure,
    rng: np.random.Generator,
    front: float,
    hind: float,
    top: float,
    widths: Sequence[float],
    colours: Sequence[Colour],
    near: bool,
    stride: float,
) -> None:
    """The two near or the two far legs; ``colours`` are those of leg and foot."""
    phase = 0.0 if near else np.pi
    for x, back, offset in ((hind, True, 0.0), (front, False, 0.6 * np.pi)):
        swing = stride * np.sin(phase + offset + rng.normal(0, 0.25)) + (0.0 if near else rng.uniform(0.04, 0.12))
        factor = 1.0 if near else 0.72
        if not near:  # near legs grow out of the body without a line between them
            fig.layer()
        scale = np.array([1.25, 1.1, 1.0]) if back else np.ones(3)
        _leg(
            fig,
            x,
            top,
            (np.asarray(widths) * scale).tolist(),
            shade(colours[0], factor),
            shade(colours[1], factor),
            back,
            swing,
            0.75 if near else 0.3,
        )


def eye(fig: Figure, centre: tuple[float, float], radius: float, look: Look) -> None:
    """An eye; a large one (cartoons) gets a white."""
    r = radius * look.eye
    if look.eye > 1.3:
        fig.ellipse(centre, (r * 1.25, r * 1.4), (255, 255, 255), 0.9)
        fig.ellipse((centre[0] + 0.3 * r, centre[1]), (r * 0.65, r * 0.75), DARK, 0.9, outlined=False)
    else:
        fig.ellipse(centre, (r, r), DARK, 0.9)
