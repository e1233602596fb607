"""Photographs in other styles: grey, as edges, in few colours, as silhouettes, in black and white, inverted, blurred.

Everything works on batches ``(n, 3, s, s)`` of values from 0 to 1, and takes its random numbers from one generator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

SHARE = 0.6
"""Of the training pictures, how many are shown in another style."""


def plain(pixels: Tensor, size: int) -> Tensor:
    """Bytes ``(n, h, w, 3)`` as normalised input of the model, resized."""
    x = pixels.permute(0, 3, 1, 2).float() / 255
    x = functional.interpolate(x, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)
    return _normalised(x)


def augmented(pixels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A training batch: random squares, mirrored or not, recoloured, a share in another style."""
    x = pixels.permute(0, 3, 1, 2).float() / 255
    draw = partial(_uniform, x, generator=generator)
    theta = torch.zeros(len(x), 2, 3)
    scale, stretch = draw(0.5, 1.0)[:, 0, 0, 0].sqrt(), draw(0.85, 1.18)[:, 0, 0, 0]
    mirrored = 1 - 2 * (draw(0, 1)[:, 0, 0, 0] < 0.5).float()
    theta[:, 0, 0], theta[:, 1, 1] = (scale * stretch).clamp(max=1) * mirrored, (scale / stretch).clamp(max=1)
    theta[:, 0, 2] = draw(-1, 1)[:, 0, 0, 0] * (1 - theta[:, 0, 0].abs())
    theta[:, 1, 2] = draw(-1, 1)[:, 0, 0, 0] * (1 - theta[:, 1, 1])
    grid = functional.affine_grid(theta, [len(x), 3, size, size], align_corners=False)
    x = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return stylised(_normalised(_recoloured(x, generator)), generator, SHARE)


def on_paper(pixels: Tensor, masks: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Things alone on white paper, each in one of :data:`DRAWINGS`: as they are, in flat colours, filled, as lines.

    Else the model takes white paper for a sign of what is photographed in shops: lamps, cameras, cups.
    """
    x = torch.cat([pixels.permute(0, 3, 1, 2), masks[:, None]], dim=1).float() / 255
    grid = functional.affine_grid(_around(masks, generator), [len(x), 4, size, size], align_corners=False)
    bent = functional.interpolate(torch.rand(len(x), 2, 5, 5, generator=generator) - 0.5, size=size, mode="bicubic")
    grid = grid + (bent * _uniform(x, 0, 0.3, generator)).permute(0, 2, 3, 1)
    x = functional.grid_sample(x, grid, align_corners=False)
    shape, x = ((x[:, 3:] - 0.5) * 6 + 0.5).clamp(0, 1), _recoloured(x[:, :3], generator)
    style = torch.randint(len(DRAWINGS), (len(x),), generator=generator)
    for number, draw in enumerate(DRAWINGS):
        rows = (style == number).nonzero()[:, 0]
        if len(rows):
            x[rows] = draw(x[rows].contiguous(), shape[rows].contiguous(), generator).clamp(0, 1)
    return _normalised(x)


def _around(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Affine maps ``(n, 2, 3)`` that show what a mask covers, mirrored or not, with some paper around it."""
    theta, inside = torch.zeros(len(masks), 2, 3), masks > 127
    longest = torch.zeros(len(masks))
    for axis, line in enumerate((inside.any(1), inside.any(2))):  # columns, then rows
        place = torch.linspace(-1, 1, line.shape[1])
        first = torch.where(line, place, torch.ones(())).amin(1)
        last = torch.where(line, place, -torch.ones(())).amax(1)
        theta[:, axis, 2] = (first + last) / 2
        longest = torch.maximum(longest, (last - first) / 2)
    half = longest.clamp(min=0.1) * (1.02 + 0.5 * torch.rand(len(masks), generator=generator))
    stretch = 0.85 + 0.33 * torch.rand(len(masks), generator=generator)
    mirrored = 1 - 2 * (torch.rand(len(masks), generator=generator) < 0.5).float()
    theta[:, 0, 0], theta[:, 1, 1] = half * stretch * mirrored, half / stretch
    theta[:, :, 2] += 0.15 * half[:, None] * (2 * torch.rand(len(masks), 2, generator=generator) - 1)
    return theta


def stylised(x: Tensor, generator: torch.Generator, share: float) -> Tensor:
    """Normalised pictures, of which a share is shown in one of :data:`STYLES` each."""
    style = torch.randint(len(STYLES), (len(x),), generator=generator)
    style[torch.rand(len(x), generator=generator) >= share] = -1
    x = (x + 1) / 2
    for number, change in enumerate(STYLES):
        rows = (style == number).nonzero()[:, 0]
        if len(rows):
            x[rows] = change(x[rows].contiguous(), generator).clamp(0, 1)
    return _normalised(x)


def _normalised(x: Tensor) -> Tensor:
    return (2 * x - 1).contiguous(memory_format=torch.channels_last)


def _uniform(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """A number for each picture, ``(n, 1, 1, 1)``."""
    return low + (high - low) * torch.rand(len(x), 1, 1, 1, generator=generator)


def _recoloured(x: Tensor, generator: torch.Generator) -> Tensor:
    light, tint = _uniform(x, 0.7, 1.3, generator), 0.9 + 0.2 * torch.rand(len(x), 3, 1, 1, generator=generator)
    return (x * light * tint + _uniform(x, -0.1, 0.1, generator)).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    return (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)


def _blurred(x: Tensor, passes: int = 1) -> Tensor:
    for _ in range(passes):
        x = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return x


def _lines(x: Tensor, generator: torch.Generator) -> Tensor:
    """How dark a pen would draw each place, from 0 to 1: where the grey picture is steep."""
    passes = 1 + int(torch.randint(3, (1,), generator=generator))
    y = functional.pad(_blurred(_grey(x), passes), (1, 1, 1, 1), mode="replicate")
    across = y[..., 1:-1, 2:] - y[..., 1:-1, :-2]
    down = y[..., 2:, 1:-1] - y[..., :-2, 1:-1]
    steep = (across.square() + down.square()).sqrt()
    top = steep.flatten(1).quantile(0.97, dim=1)[:, None, None, None] + 1e-3
    low = _uniform(x, 0.25, 0.6, generator)
    lines = ((steep / top - low) / 0.25).clamp(0, 1)
    return functional.max_pool2d(lines, 3, 1, 1) if torch.rand(1, generator=generator) < 0.5 else lines


def _edges(x: Tensor, generator: torch.Generator) -> Tensor:
    return (1 - _lines(x, generator) * _uniform(x, 0.6, 1, generator)).expand_as(x)


def _doodle(x: Tensor, generator: torch.Generator) -> Tensor:
    """Edges in a few thick strokes: drawn small, then enlarged."""
    lines = _lines(_blurred(x, 3), generator)
    size = int(torch.randint(24, 49, (1,), generator=generator))
    small = functional.interpolate(lines, size=(size, size), mode="area")
    small = small / (small.flatten(1).amax(1)[:, None, None, None] + 1e-3)
    large = functional.interpolate(small, size=x.shape[-2:], mode="bicubic")
    return (1 - ((large - 0.3) * 4).clamp(0, 1)).expand_as(x)


def _few_colours(x: Tensor, generator: torch.Generator) -> Tensor:
    levels = torch.randint(1, 4, (len(x), 1, 1, 1), generator=generator).float()
    return (_blurred(x, 2) * levels).round() / levels


def _cartoon(x: Tensor, generator: torch.Generator) -> Tensor:
    return _few_colours(x, generator) * (1 - _lines(x, generator))


def _silhouette(x: Tensor, generator: torch.Generator) -> Tensor:
    """What differs from the border in one dark colour, on white."""
    y = _blurred(_grey(x), 2)
    border = torch.cat([y[..., 0, :], y[..., -1, :], y[..., :, 0], y[..., :, -1]], dim=-1).median(-1).values
    away = (y - border[..., None, None]).abs()
    limit = away.flatten(1).quantile(0.6, dim=1)[:, None, None, None].clamp(0.08, 0.4)
    shape = ((away - limit) * 12 + 0.5).clamp(0, 1)
    colour = torch.rand(len(x), 3, 1, 1, generator=generator) * _uniform(x, 0, 0.8, generator)
    return 1 - shape * (1 - colour)


def _black_and_white(x: Tensor, generator: torch.Generator) -> Tensor:
    y = _blurred(_grey(x))
    limit = y.flatten(1).mean(1)[:, None, None, None] + _uniform(x, -0.1, 0.1, generator)
    return ((y - limit) * 10 + 0.5).clamp(0, 1).expand_as(x)


STYLES: tuple[Callable[[Tensor, torch.Generator], Tensor], ...] = (
    lambda x, _: _grey(x).expand_as(x),
    _edges,
    _edges,
    _doodle,
    _few_colours,
    _cartoon,
    _silhouette,
    _black_and_white,
    lambda x, _: 1 - x,
    lambda x, _: _blurred(x, 4),
)


def _ink(x: Tensor, generator: torch.Generator) -> Tensor:
    """One colour for each picture, ``(n, 3, 1, 1)``: mostly dark, at times grey or bright."""
    bright = (torch.rand(len(x), 1, 1, 1, generator=generator) < 0.3).float()
    colour = torch.rand(len(x), 3, 1, 1, generator=generator)
    return colour * (0.25 + 0.75 * bright)


def _contour(shape: Tensor, width: int) -> Tensor:
    """The border of a shape, ``2 width`` pixels wide."""
    window = 2 * width + 1
    wider = functional.max_pool2d(shape, window, 1, width)
    return wider + functional.max_pool2d(-functional.pad(shape, [width] * 4), window, 1)


def _drawn(x: Tensor, shape: Tensor, generator: torch.Generator) -> Tensor:
    """How dark a pen draws each place: the contour, and the steepest places inside."""
    width = 1 + int(torch.randint(2, (1,), generator=generator))
    on_white = x * shape + 1 - shape
    inner = _lines(_blurred(on_white, int(torch.randint(4, (1,), generator=generator))), generator) * shape
    some = (torch.rand(len(x), 1, 1, 1, generator=generator) < 0.7).float()
    return torch.maximum(_contour(shape, width), inner * some)


def _as_it_is(x: Tensor, shape: Tensor, _: torch.Generator) -> Tensor:
    return x * shape + 1 - shape


def _flat(x: Tensor, shape: Tensor, generator: torch.Generator) -> Tensor:
    """In a few strong colours, some with a dark contour."""
    grey = _grey(x)
    x = _few_colours((grey + (x - grey) * _uniform(x, 1, 3, generator)).clamp(0, 1), generator)
    outlined = (torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5).float()
    return (x * shape + 1 - shape) * (1 - _drawn(x, shape, generator) * outlined)


def _filled(x: Tensor, shape: Tensor, generator: torch.Generator) -> Tensor:
    """A shape in one colour, some with lines left white inside."""
    open_lines = (torch.rand(len(x), 1, 1, 1, generator=generator) < 0.6).float()
    inner = functional.max_pool2d(_lines(_blurred(x, 2), generator), 3, 1, 1)
    return 1 - shape * (1 - inner * open_lines) * (1 - _ink(x, generator))


def _penned(x: Tensor, shape: Tensor, generator: torch.Generator) -> Tensor:
    return 1 - _drawn(x, shape, generator) * (1 - _ink(x, generator))


def _scrawled(x: Tensor, shape: Tensor, generator: torch.Generator) -> Tensor:
    """Lines drawn small, then enlarged."""
    side = int(torch.randint(26, 57, (1,), generator=generator))
    small = functional.interpolate(_drawn(x, shape, generator), size=(side, side), mode="area")
    small = (small / (small.flatten(1).amax(1)[:, None, None, None] + 1e-3) * _uniform(x, 1, 2, generator)).clamp(max=1)
    large = functional.interpolate(small, size=x.shape[-2:], mode="bicubic").clamp(0, 1)
    return (1 - large).expand_as(x)


DRAWINGS = (_as_it_is, _flat, _flat, _filled, _filled, _penned, _scrawled)
