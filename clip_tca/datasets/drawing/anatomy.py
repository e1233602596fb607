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


# Knee and ankle: offset of x, share of the swing, second offset of x, share of the height.
_FRONT = ((0.0, 0.3, 0.0, 0.7), (0.0, 0.62, 0.02, 0.4))
_HIND = ((0.05, 0.2, 0.0, 0.62), (-0.07, 0.7, 0.0, 0.33))  # bent at the hock


def legs(
    fig: Figure,
    rng: np.random.Generator,
    hips: tuple[float, float, float],
    widths: Sequence[float],
    colours: Sequence[Colour],
    near: bool,
    stride: float,
) -> None:
    """The two near or the two far legs; ``hips`` are x in front, x behind and y, ``colours`` those of leg and foot."""
    front, hind, top = hips
    phase, factor, relief = (0.0, 1.0, 0.75) if near else (np.pi, 0.72, 0.3)
    leg, foot = (shade(colour, factor) for colour in colours)
    for x, bends, offset, scale in ((hind, _HIND, 0.0, (1.25, 1.1, 1.0)), (front, _FRONT, 0.6 * np.pi, (1, 1, 1))):
        swing = stride * np.sin(phase + offset + rng.normal(0, 0.25)) + (0.0 if near else rng.uniform(0.04, 0.12))
        if not near:  # near legs grow out of the body without a line between them
            fig.layer()
        middle = [(x + dx + swing * share + shift, top * height) for dx, share, shift, height in bends]
        fx, fy = x + swing, 0.05 + max(0.0, -swing) * 0.25
        thigh, shin, w = (width * more for width, more in zip(widths, scale, strict=True))
        fig.tube([(x, top), *middle, (fx, fy)], [thigh, shin, w, w], leg, relief)
        sole = [(-w * 0.6, -0.06), (-w * 0.5, 0.04), (w * 0.55, 0.04), (w * 0.95, -0.06)]
        fig.polygon([(fx + dx, fy + dy) for dx, dy in sole], foot, relief)


def eye(fig: Figure, centre: tuple[float, float], radius: float, look: Look) -> None:
    """An eye; a large one (cartoons) gets a white."""
    r = radius * look.eye
    if look.eye > 1.3:
        fig.ellipse(centre, (r * 1.25, r * 1.4), (255, 255, 255), 0.9)
        fig.ellipse((centre[0] + 0.3 * r, centre[1]), (r * 0.65, r * 0.75), DARK, 0.9, outlined=False)
    else:
        fig.ellipse(centre, (r, r), DARK, 0.9)
