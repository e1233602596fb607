"""Opening pictures: every common kind becomes 8-bit RGB, and what can't be opened is named before the work begins.

A *source* is a path, the bytes of an image file, a picture that is ready (the demo draws its own), or None: no image.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

Picture = str | Path | bytes | Image.Image | None
"""As a data set gives it: a file, the content of one, or ready; None where there is none."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Files that count as images in a folder."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit, beyond which a small file may unpack to gigabytes."""

MAX_RATIO = 300
"""The longest picture, in multiples of its shorter side."""

_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL = 1024


def decode(source: Picture) -> Image.Image:
    """The picture in 8-bit RGB: first frame of an animation, 16 bits scaled to 8, alpha dropped as CLIP's loaders do.

    Raises:
        ValueError: If it can't be read; the message says why, not which.
    """
    if source is None:
        raise ValueError("no image")
    if isinstance(source, Image.Image):
        return source if source.mode == "RGB" else source.convert("RGB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata and sizes; what matters is raised
        try:
            with _open(source) as image:
                _check_size(image)
                image.load()
                return _rgb(image)
        except UnidentifiedImageError:
            raise ValueError("not an image that Pillow can read") from None
        except FileNotFoundError:
            raise ValueError("the file is gone") from None
        except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise ValueError(str(error) or type(error).__name__) from None


def fault(source: Picture) -> str | None:
    """Why :func:`decode` would fail, or None.

    Reads the header of JPEG and PNG, and decodes what seems to be cut off, or has no ending by which that can be seen.
    """
    if source is None:
        return "no image"
    if isinstance(source, Image.Image):
        return None
    size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    if size == 0:
        return "empty file"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _open(source) as image:
                _check_size(image)
                ending = _ENDINGS.get(image.format or "")
                if image.mode != "F" and ending is not None and ending in _tail(source, size):
                    return None
        except UnidentifiedImageError:
            return "not an image that Pillow can read"
        except (ValueError, OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            return str(error)
    try:
        decode(source)
    except ValueError as error:
        return str(error)
    return None


def mark(source: str | Path | bytes) -> str:
    """Size and a hash of the first, middle and last bytes: tells files apart without reading them whole."""
    try:
        size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
        places = (0, max(0, size // 2 - _TAIL // 2), max(0, size - _TAIL))
        if isinstance(source, bytes):
            parts = [source[place : place + _TAIL] for place in places]
        else:
            with Path(source).open("rb") as file:
                parts = [file.read(_TAIL) for place in places if file.seek(place) >= 0]
    except OSError as error:  # a link to nowhere: reported when it is opened
        return f"unreadable: {error.strerror}"
    return f"{size}:{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"


def _open(source: str | Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def _tail(source: str | Path | bytes, size: int) -> bytes:
    if isinstance(source, bytes):
        return source[-_TAIL:]
    with Path(source).open("rb") as file:
        file.seek(max(0, size - _TAIL))
        return file.read()


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} × {height} pixels, more than {MAX_PIXELS:,} (a decompression bomb?)")
    if max(width, height) > MAX_RATIO * min(width, height):  # resized to the model's input, it would need gigabytes
        raise ValueError(f"{width} × {height} pixels: one side is over {MAX_RATIO} times the other")


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; save it as 8-bit")
    if image.mode.startswith("I"):  # 16 bits and more: convert() would clip everything above 255 to white
        values = np.array(image)
        shift = max(0, int(values.max(initial=0)).bit_length() - 8)
        values >>= 8 if shift <= 8 else shift  # in place: the largest pictures take hundreds of megabytes
        return Image.fromarray(values.clip(0, 255, out=values).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
