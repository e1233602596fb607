"""Corrupts pictures as they are read, as in ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

Their parameters are for 224 × 224 pixels, so a picture is first brought to that size (shorter side resized, centre
cropped) and then corrupted. The kinds are implemented from their formulas with NumPy, torch and Pillow. Pixels differ
from the published sets in random numbers and at borders, and ``motion_blur`` is a mean along a line of whole
pixels. ``glass_blur``, ``snow``, ``elastic_transform`` and ``spatter`` are missing, and so is ``frost``, which
needs photographs of frost.

The noise depends only on the content and name of a picture. It is the same in every run, on every machine.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from clip_tca.data.registry import SEVERITIES

SIZE = 224  # pixels of each side of a corrupted picture
VERSION = 1  # part of the key of stored embeddings. Raise it when a corruption changes

Pixels = NDArray[np.float64]
"""A picture ``(height, width, 3)`` from 0 to 1."""


@dataclass(frozen=True)
class Corruption:
    """One of :data:`CORRUPTION_KINDS` at a severity from 1 to 5."""

    name: str
    severity: int

    @classmethod
    def parse(cls, text: str) -> Corruption:
        """``gaussian_noise:3``."""
        name, _, severity = text.partition(":")
        if name not in CORRUPTION_KINDS or severity not in map(str, SEVERITIES):
            allowed = ", ".join(CORRUPTION_KINDS)
            raise ValueError(f"corrupt: {text!r}; allowed are {allowed}, each with a severity from 1 to 5: fog:3")
        return cls(name, int(severity))

    def __str__(self) -> str:
        return f"{self.name}:{self.severity}"

    @property
    def key(self) -> str:
        """What the pixels depend on, apart from the picture."""
        return f"{self} {SIZE} v{VERSION}"

    def __call__(self, image: Image.Image, about: str) -> Image.Image:
        """The corrupted picture, 224 × 224; ``about`` seeds its random numbers."""
        digest = hashlib.sha256(f"{self.name} {about}".encode("utf-8", "surrogateescape")).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        change, parameters = CORRUPTION_KINDS[self.name]
        pixels = np.asarray(ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.BICUBIC), dtype=np.float64) / 255
        return _image(change(pixels, parameters[self.severity - 1], rng))


def gaussian_noise(x: Pixels, scale: float, rng: np.random.Generator) -> Pixels:
    """Noise of a sensor in low light."""
    return x + rng.normal(0, scale, x.shape)


def shot_noise(x: Pixels, photons: float, rng: np.random.Generator) -> Pixels:
    """Poisson noise, with this number of photons at full brightness."""
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Pixels, share: float, rng: np.random.Generator) -> Pixels:
    """A share of all values is 0 or 1."""
    return np.where(rng.random(x.shape) < share, rng.random(x.shape) < 0.5, x)


def speckle_noise(x: Pixels, scale: float, rng: np.random.Generator) -> Pixels:
    """Noise in proportion to the value."""
    return x + x * rng.normal(0, scale, x.shape)


def gaussian_blur(x: Pixels, sigma: float, _rng: np.random.Generator) -> Pixels:
    """A Gaussian filter, cut off at four standard deviations."""
    weights = _bell(round(4 * sigma), sigma)
    return _filtered(_filtered(x, weights[:, None]), weights[None])


def defocus_blur(x: Pixels, form: tuple[int, float], _rng: np.random.Generator) -> Pixels:
    """A disk-shaped filter with a smoothed edge."""
    radius, smoothing = form
    reach = max(8, radius)
    places = np.arange(-reach, reach + 1)
    disk = (places[:, None] ** 2 + places[None] ** 2 <= radius**2).astype(float)
    edge = _bell(1 if radius <= 8 else 2, smoothing)
    smooth = _filtered(disk[:, :, None] / disk.sum(), edge[:, None] * edge[None])
    return _filtered(x, smooth[:, :, 0])


def motion_blur(x: Pixels, form: tuple[int, float], rng: np.random.Generator) -> Pixels:
    """A mean along a line at a random angle of up to 45 degrees, with weights that fall off to one side."""
    radius, sigma = form
    angle = np.deg2rad(rng.uniform(-45, 45))
    weights = _bell(2 * radius, sigma)[2 * radius :]
    far = 2 * radius
    padded = np.pad(x, ((far, far), (far, far), (0, 0)), mode="edge")
    total = np.zeros_like(x)
    for step, weight in enumerate(weights / weights.sum()):
        down, right = far + round(step * np.sin(angle)), far + round(step * np.cos(angle))
        total += weight * padded[down : down + x.shape[0], right : right + x.shape[1]]
    return total


def zoom_blur(x: Pixels, form: tuple[float, float], _rng: np.random.Generator) -> Pixels:
    """The mean of the picture and of its middle, zoomed in up to a factor, step by step."""
    last, step = form
    factors = np.arange(1, last, step)
    image, side = _image(x), np.array([0.0, 0.0, SIZE, SIZE])
    boxes = [tuple((side - SIZE / 2) / factor + SIZE / 2) for factor in factors]
    zoomed = [np.asarray(image.resize(image.size, Image.Resampling.BILINEAR, box)) / 255 for box in boxes]
    return (x + sum(zoomed)) / (len(factors) + 1)


def fog(x: Pixels, form: tuple[float, float], rng: np.random.Generator) -> Pixels:
    """Clouds of a diamond-square fractal on top, then less contrast."""
    strength, decay = form
    brightest = float(x.max())
    clouds = _clouds(256, decay, rng)[: x.shape[0], : x.shape[1], None]
    return (x + strength * clouds) * brightest / (brightest + strength)


def brightness(x: Pixels, more: float, _rng: np.random.Generator) -> Pixels:
    """More value, with hue and saturation as they are (HSV)."""
    value: Pixels = x.max(axis=2, keepdims=True)
    target = np.minimum(value + more, 1)
    return np.where(value > 0, x * target / np.maximum(value, 1e-9), target)


def saturate(x: Pixels, form: tuple[float, float], _rng: np.random.Generator) -> Pixels:
    """Saturation times a factor plus a constant, with hue and value as they are (HSV); grey stays grey."""
    factor, more = form
    value: Pixels = x.max(axis=2, keepdims=True)
    saturation = (value - x.min(axis=2, keepdims=True)) / np.maximum(value, 1e-9)
    target = np.clip(saturation * factor + more, 0, 1)
    return value - (value - x) * np.where(saturation > 0, target / np.maximum(saturation, 1e-9), 1)


def contrast(x: Pixels, factor: float, _rng: np.random.Generator) -> Pixels:
    """Move values towards the mean of each channel."""
    mean: Pixels = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * factor + mean


def pixelate(x: Pixels, factor: float, _rng: np.random.Generator) -> Pixels:
    """Fewer pixels, each a box of the picture."""
    small = _image(x).resize((int(SIZE * factor),) * 2, Image.Resampling.BOX)
    return np.asarray(small.resize((SIZE, SIZE), Image.Resampling.BOX)) / 255


def jpeg_compression(x: Pixels, quality: int, _rng: np.random.Generator) -> Pixels:
    """A JPEG file of low quality."""
    file = io.BytesIO()
    _image(x).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


Change = Callable[[Pixels, Any, np.random.Generator], Pixels]

CORRUPTION_KINDS: dict[str, tuple[Change, Sequence[Any]]] = {
    "gaussian_noise": (gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": (shot_noise, (60, 25, 12, 5, 3)),
    "impulse_noise": (impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": (defocus_blur, ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    "motion_blur": (motion_blur, ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    "zoom_blur": (zoom_blur, ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))),
    "fog": (fog, ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (contrast, (0.4, 0.3, 0.2, 0.1, 0.05)),
    "pixelate": (pixelate, (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": (jpeg_compression, (25, 18, 15, 10, 7)),
    "speckle_noise": (speckle_noise, (0.15, 0.2, 0.35, 0.45, 0.6)),
    "gaussian_blur": (gaussian_blur, (1, 2, 3, 4, 6)),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))),
}
"""The corruptions, with their parameter at each severity, as published for ImageNet-C."""


def _image(x: Pixels) -> Image.Image:
    return Image.fromarray(np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8))


def _bell(reach: int, sigma: float) -> Pixels:
    """A Gaussian at the places from −reach to reach, with sum 1."""
    weights: Pixels = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return weights / float(weights.sum())


def _filtered(x: Pixels, kernel: Pixels) -> Pixels:
    """Every channel filtered, with the picture mirrored at its borders."""
    down, right = (side // 2 for side in kernel.shape)
    padded = np.pad(x, ((down, down), (right, right), (0, 0)), mode="reflect")
    channels = torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1), np.float32))[:, None]
    weights = torch.from_numpy(np.ascontiguousarray(kernel, np.float32))[None, None]
    return np.asarray(torch.nn.functional.conv2d(channels, weights)[:, 0].permute(1, 2, 0), dtype=np.float64)


def _clouds(side: int, decay: float, rng: np.random.Generator) -> Pixels:
    """A diamond-square fractal ``(side, side)`` from 0 to 1, without borders; ``side`` is a power of 2."""
    field, step, reach = np.zeros((side, side)), side, 100.0

    def between(*neighbours: Pixels) -> Pixels:
        mean: Pixels = np.mean(neighbours, axis=0)
        return mean + reach * rng.uniform(-reach, reach, mean.shape)

    while step > 1:
        half = step // 2
        corners = field[::step, ::step]
        below = np.roll(corners, -1, axis=0)
        middle = between(corners, below, np.roll(corners, -1, axis=1), np.roll(below, -1, axis=1))
        field[half::step, half::step] = middle
        field[::step, half::step] = between(corners, np.roll(corners, -1, axis=1), middle, np.roll(middle, 1, axis=0))
        field[half::step, ::step] = between(corners, below, middle, np.roll(middle, 1, axis=1))
        step, reach = half, reach / decay
    field -= field.min()
    return field / float(field.max())
