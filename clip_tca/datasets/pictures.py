"""Image files: decoded to 8-bit RGB, checked without decoding, and identified by size and content.

A *picture* is a path, the bytes of an image file, or None: no image.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from clip_tca.core.errors import CorruptFileError

Picture = str | Path | bytes | None
"""An image as a data set holds it: path, bytes, or None for a missing one."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of image files in a folder."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit: beyond it a small file may decompress to gigabytes."""

MAX_RATIO = 300
"""Largest ratio of the longer to the shorter side."""

_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL = 1024


def decode(picture: Picture) -> Image.Image:
    """The image in 8-bit RGB: first frame of an animation, 16 bits scaled to 8, alpha dropped as in CLIP's loaders.

    ValueError gives the reason if it can't be read; the caller knows the file.
    """
    if picture is None:
        raise ValueError("no image")
    with _opened(picture) as image:
        image.load()
        if image.mode == "F":
            raise ValueError("floating-point pixels have no agreed range; save it as 8-bit")
        if image.mode.startswith("I"):  # 16 bits and more: convert() would clip everything above 255 to white
            values = np.array(image)
            shift = max(8, int(values.max(initial=0)).bit_length() - 8)
            values >>= shift  # in place: the largest images take hundreds of megabytes
            return Image.fromarray(values.clip(0, 255, out=values).astype(np.uint8)).convert("RGB")
        see_through = image.mode == "P" and "transparency" in image.info
        return (image.convert("RGBA") if see_through else image).convert("RGB")


def fault(picture: Picture) -> str | None:
    """The reason why :func:`decode` would fail, or None.

    Of JPEG and PNG it reads header and ending; it decodes files that seem truncated, and formats without an ending.
    """
    if picture is None:
        return "no image"
    size = len(picture) if isinstance(picture, bytes) else Path(picture).stat().st_size
    if size == 0:
        return "empty file"
    try:
        with _opened(picture) as image:
            ending = _ENDINGS.get(image.format or "")
        if image.mode != "F" and ending is not None and ending in _excerpts(picture, [max(0, size - _TAIL)])[0]:
            return None
        decode(picture)
    except ValueError as error:
        return str(error)
    return None


def content(picture: str | Path | bytes) -> str:
    """Size and hash of all bytes: what identifies a picture wherever it is kept."""
    try:
        whole = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
    except OSError as error:  # a broken link: reported when it is opened
        return f"unreadable: {error.strerror}"
    return f"{len(whole)}:{hashlib.sha256(whole).hexdigest()[:32]}"


def mark(picture: str | Path | bytes) -> str:
    """:func:`content` of bytes; of a file, size and a hash of the first, middle and last bytes, which is faster."""
    if isinstance(picture, bytes):
        return content(picture)
    try:
        size = os.stat(picture).st_size
        parts = _excerpts(picture, [0, max(0, size // 2 - _TAIL // 2), max(0, size - _TAIL)])
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"{size}:{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"


@contextmanager
def _opened(picture: str | Path | bytes) -> Iterator[Image.Image]:
    """The image, with its size checked; what Pillow raises becomes a ValueError with the reason."""
    alone = threading.current_thread() is threading.main_thread()  # filters belong to the process, not to a thread
    with warnings.catch_warnings() if alone else nullcontext():
        if alone:
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and sizes; real errors are raised
        try:
            with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise ValueError(f"{width} × {height} pixels, more than {MAX_PIXELS:,} (a decompression bomb?)")
                if max(width, height) > MAX_RATIO * min(width, height):  # resizing it would need gigabytes
                    raise ValueError(f"{width} × {height} pixels: one side is over {MAX_RATIO} times the other")
                yield image
        except UnidentifiedImageError:
            raise CorruptFileError("not an image that Pillow can read") from None
        except FileNotFoundError:
            raise ValueError("the file is gone") from None
        except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise CorruptFileError(str(error) or type(error).__name__) from None


def _excerpts(picture: str | Path | bytes, places: list[int]) -> list[bytes]:
    with io.BytesIO(picture) if isinstance(picture, bytes) else open(picture, "rb", buffering=0) as file:
        return [file.read(_TAIL) for place in places if file.seek(place) >= 0]
