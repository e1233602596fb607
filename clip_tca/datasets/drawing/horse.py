"""Horse: side on, standing, walking, running or grazing."""

from __future__ import annotations

import numpy as np

from clip_tca.datasets.drawing.anatomy import eye, frame, legs
from clip_tca.datasets.drawing.looks import DARK, IVORY, Look
from clip_tca.datasets.drawing.shapes import Figure, along, shade


def horse(rng: np.random.Generator, look: Look) -> tuple[Figure, str]:
    """Long legs, arched neck with a mane, long face, flowing tail."""
    fig, u = Figure(), rng.uniform
    coat, mane = look.main, look.second
    length, depth, top = u(0.95, 1.15), u(0.36, 0.44), u(0.8, 0.95)
    running, grazing = rng.random() < 0.3, rng.random() < 0.2
    stride = u(0.25, 0.4) if running else u(0.02, 0.2)
    half, y = length / 2, top + depth * 0.3
    hoof = DARK if rng.random() < 0.7 else (120, 105, 90)
    widths = (0.19, 0.11, 0.075)
    legs(fig, rng, (half - 0.14, -half + 0.08, y - 0.05), widths, (coat, hoof), False, stride)
    fig.layer()
    lift, flow = u(-0.1, 0.25) + 0.25 * running, u(0.9, 1.3)
    x0, y0 = -half - 0.06, y + 0.1
    tail = [(x0, y0), (x0 - 0.16 * flow, y0 + lift * 0.5)]
    tail += [(x0 - 0.27 * flow, y0 - 0.3 + lift), (x0 - 0.24 * flow, y0 - 0.62 + lift)]
    fig.tube(tail, [0.07, 0.12, 0.17, 0.04], mane, 0.5)
    strand = shade(mane, 0.7) if sum(mane) > 250 else shade(mane, 1.2)
    for dx in (-0.035, 0.03):
        line = [(px + dx * k, py) for k, (px, py) in zip((0.3, 1, 1.2, 0.4), tail, strict=True)]
        fig.stroke(line, 0.012, strand, curved=True)
    fig.layer()
    neck = u(-0.5, -0.2) if grazing else u(0.7, 1.15)
    base = (half - 0.06, y + 0.08)
    poll = along(base, neck, u(0.58, 0.72))
    bend = along(base, neck + 0.25, 0.34)
    torso = [(-half + 0.04, y + 0.03), (-half * 0.4, y), (half * 0.3, y - 0.01), (half - 0.1, y + 0.01)]
    fig.tube(torso, [depth * w for w in (0.9, 0.98, 1.04, 0.95)], coat, 0.6)
    fig.ellipse((-half + 0.08, y - 0.04), (0.2, 0.22), coat, 0.62)
    fig.tube([(half - 0.22, y - 0.02), (base[0], base[1] + 0.02), bend, poll], [0.34, 0.38, 0.25, 0.17], coat, 0.7)
    face = neck - u(1.45, 1.8) if not grazing else u(-1.35, -1.0)
    at = frame(poll, face, look.head)
    muzzle = [at(-0.03, 0), at(0.13, -0.02), at(0.3, 0.0), at(0.43, -0.01)]
    fig.tube(muzzle, [w * look.head for w in (0.18, 0.23, 0.15, 0.15)], coat, 0.8)
    for shift, tone in ((0.05, 0.75), (0.0, 1.0)):
        fig.polygon([at(-0.01 + shift, 0.05), at(-0.14 + shift, 0.17), at(0.07 + shift, 0.09)], shade(coat, tone), 0.8)
    if rng.random() < 0.45:
        fig.tube([at(0.1, 0.08), at(0.3, 0.045)], [0.035, 0.03], IVORY, 0.8, outlined=False)
    if rng.random() < 0.25:
        for _ in range(4):
            centre, radii = (u(-half, half * 0.8), y + u(-0.1, 0.12)), (u(0.06, 0.15), u(0.05, 0.1))
            fig.ellipse(centre, radii, IVORY, 0.6, u(0, 3), outlined=False)
    fig.ellipse(at(0.4, 0.02), (0.014, 0.014), DARK, 0.8, outlined=False)
    fig.stroke([at(0.43, -0.035), at(0.34, -0.035)], 0.012, DARK)
    eye(fig, at(0.13, 0.035), 0.022, look)
    legs(fig, rng, (half - 0.1, -half + 0.04, y - 0.02), widths, (coat, hoof), True, stride)
    fig.layer()
    up = neck + np.pi / 2
    crest = [along(p, up, w) for p, w in ((poll, 0.09), (bend, 0.14), (along(base, neck + 0.5, 0.13), 0.17))]
    locks = [along(p, up + u(0.2, 0.7), -u(0.1, 0.2)) for p in (crest[2], bend)]
    hair = [at(0.06, 0.1), at(-0.06, 0.1), *crest, along(crest[2], neck + 3.0, 0.08), *locks, along(poll, up, -0.02)]
    fig.blob(hair, mane, 0.85)
    for p, lock in zip(crest, (along(poll, up, 0.0), locks[1], locks[0]), strict=True):
        for t in (-0.04, 0.02, 0.08):
            fig.stroke([along(p, neck, t), along(lock, neck, t)], 0.012, strand)
    fig.focus = along(poll, neck, -0.1)
    return fig, "running" if running else "grazing" if grazing else "walking" if stride > 0.1 else "standing"
