"""Figures as smooth shapes: the geometry of a picture before any style touches it.

A figure is a list of parts in painter's order, in a frame of its own with x to the right and y upwards. Parts are tubes
(a spline with a width at each joint: legs, necks, trunks), blobs (closed splines), polygons, ellipses and open strokes.
Consecutive parts of one group share one outline, so that a neck grows out of a body without a line between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Colour = tuple[float, float, float]
Points = Sequence[Sequence[float]] | Array

_CAP = np.linspace(0, np.pi, 7)[1:-1]
_CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 25)[:-1]), np.sin(np.linspace(0, 2 * np.pi, 25)[:-1])], 1)


@dataclass(frozen=True)
class Part:
    """One shape of a figure.

    Attributes:
        points: ``(n, 2)`` corners of a closed polygon, or of an open line if ``width`` is positive.
        colour: RGB, 0 to 255.
        group: Parts of the same group share an outline.
        relief: How far the part stands towards the viewer, 0 to 1; shading is made from it.
        width: Width of an open stroke in the figure's frame; 0 for a filled shape.
        outlined: Whether line styles draw its contour.
    """

    points: Array
    colour: Colour
    group: int
    relief: float
    width: float = 0.0
    outlined: bool = True


@lru_cache(maxsize=64)
def _spline(count: int, closed: bool, samples: int = 6) -> Array:
    """The matrix that turns ``count`` control points into a Catmull–Rom curve through them."""
    t = np.linspace(0, 1, samples, endpoint=False)[:, None]
    weights = 0.5 * np.concatenate(
        [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3], 1
    )
    segments = count if closed else count - 1
    matrix = np.zeros((segments * samples + (not closed), count))
    for segment in range(segments):
        for j in range(4):
            k = segment + j - 1
            k = k % count if closed else min(max(k, 0), count - 1)
            matrix[segment * samples : (segment + 1) * samples, k] += weights[:, j]
    if not closed:
        matrix[-1, -1] = 1
    return matrix


def smooth(points: Points, closed: bool = True) -> Array:
    """A smooth curve through the points."""
    points = np.asarray(points, float)
    curve: Array = _spline(len(points), closed) @ points
    return curve


def turned(points: Points, angle: float, centre: Sequence[float] = (0.0, 0.0)) -> Array:
    """The points turned anticlockwise by ``angle`` (radians) around ``centre``."""
    c, s = np.cos(angle), np.sin(angle)
    moved: Array = (np.asarray(points, float) - centre) @ np.array([[c, s], [-s, c]]) + centre
    return moved


def along(start: Sequence[float], angle: float, length: float) -> tuple[float, float]:
    """The point ``length`` away from ``start`` in direction ``angle`` (radians)."""
    return float(start[0] + length * np.cos(angle)), float(start[1] + length * np.sin(angle))


def shade(colour: Colour, factor: float) -> Colour:
    """The colour made darker (below 1) or lighter (above 1)."""
    if factor <= 1:
        return colour[0] * factor, colour[1] * factor, colour[2] * factor
    mix = min(factor - 1, 1)
    return tuple(c + (255 - c) * mix for c in colour)  # type: ignore[return-value]


class Figure:
    """Collects the parts of one figure; ``layer`` starts a new group.

    ``half_length`` says that the picture's lower edge must cut the figure, because it has no feet; ``focus`` is the
    point that a close-up looks at.
    """

    def __init__(self) -> None:
        """Start without parts."""
        self.parts: list[Part] = []
        self.group = 0
        self.half_length = False
        self.focus: tuple[float, float] | None = None

    def layer(self) -> None:
        """Let the parts that follow have an outline of their own."""
        self.group += 1

    def polygon(self, points: Points, colour: Colour, relief: float = 0.6, outlined: bool = True) -> None:
        """Add a polygon with straight sides."""
        self.parts.append(Part(np.asarray(points, float), colour, self.group, relief, 0.0, outlined))

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, relief: float = 0.6) -> None:
        """Add an upright rectangle."""
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour, relief)

    def blob(self, points: Points, colour: Colour, relief: float = 0.6, outlined: bool = True) -> None:
        """Add a closed smooth shape."""
        self.polygon(smooth(points), colour, relief, outlined)

    def ellipse(
        self,
        centre: Sequence[float],
        radii: Sequence[float],
        colour: Colour,
        relief: float = 0.6,
        angle: float = 0.0,
        outlined: bool = True,
    ) -> None:
        """Add an ellipse, turned by ``angle``."""
        self.polygon(turned(_CIRCLE * radii, angle) + centre, colour, relief, outlined)

    def tube(
        self, points: Points, widths: Sequence[float], colour: Colour, relief: float = 0.6, outlined: bool = True
    ) -> None:
        """Add a smooth limb through ``points`` with the full ``widths`` there and round ends."""
        curve = smooth(np.column_stack([np.asarray(points, float), np.asarray(widths, float) / 2]), closed=False)
        centre, radius = curve[:, :2], curve[:, 2:]
        direction = np.empty_like(centre)
        direction[1:-1] = centre[2:] - centre[:-2]
        direction[0], direction[-1] = centre[1] - centre[0], centre[-1] - centre[-2]
        direction /= np.maximum(np.hypot(direction[:, :1], direction[:, 1:]), 1e-9)
        side = np.stack([-direction[:, 1], direction[:, 0]], 1)
        across, forward = np.cos(_CAP)[:, None], np.sin(_CAP)[:, None]
        ends = [
            centre[i] + radius[i] * (sign * side[i] * across + sign * direction[i] * forward)
            for i, sign in ((-1, 1), (0, -1))
        ]
        outline = [centre + radius * side, ends[0], (centre - radius * side)[::-1], ends[1]]
        self.polygon(np.concatenate(outline), colour, relief, outlined)

    def stroke(self, points: Points, width: float, colour: Colour, relief: float = 0.6, curved: bool = False) -> None:
        """Add an open line."""
        line = smooth(points, closed=False) if curved else np.asarray(points, float)
        self.parts.append(Part(line, colour, self.group, relief, width, False))
