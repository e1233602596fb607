"""Pictures and data sets of them: image files are decoded to 8-bit RGB, checked without decoding, and identified.

The *source* of a picture is a path, the bytes of an image file, or None: no image. It is identified by its name, its
size and a hash of its bytes, or of some of them.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from clip_tca.core.errors import CorruptFileError
from clip_tca.data.corruptions import Corruption

Source = str | Path | bytes | None

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of image files in a folder."""

MAX_PIXELS = 89_478_485  # Pillow's own limit: beyond it a small file may decompress to gigabytes
MAX_RATIO = 300  # largest ratio of the longer to the shorter side

_TAIL = 1024  # bytes of an excerpt for mark


def decode(source: Source) -> Image.Image:
    """The image in 8-bit RGB: first frame of an animation, 16 bits scaled to 8, alpha dropped as in CLIP's loaders.

    ValueError gives the reason if it can't be read; the caller knows the file.
    """
    if source is None:
        raise ValueError("no image")
    with _opened(source) as image:
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


def content(source: str | Path | bytes) -> str:
    """Size and hash of all bytes: what identifies a picture wherever it is kept."""
    try:
        whole = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:  # a broken link: reported when it is opened
        return f"unreadable: {error.strerror}"
    return f"{len(whole)}:{hashlib.sha256(whole).hexdigest()[:32]}"


def mark(source: str | Path | bytes) -> str:
    """:func:`content` of bytes; of a file, size and a hash of the first, middle and last bytes, which is faster."""
    if isinstance(source, bytes):
        return content(source)
    try:
        size = os.stat(source).st_size
        parts = _excerpts(source, [0, max(0, size // 2 - _TAIL // 2), max(0, size - _TAIL)])
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"{size}:{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"


class Picture(NamedTuple):
    """A picture of a data set."""

    name: str  # class/file for files
    mark: str  # size and hash: of all bytes, or of some if it is a path
    label: int  # the true class, for scoring only; −1 where nobody knows
    source: Source | Callable[[], Source]  # picklable, for worker processes


@dataclass
class Domain:
    """The pictures of one domain; the ``corruption`` is applied when one is decoded."""

    pictures: list[Picture]
    corruption: Corruption | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    @cached_property
    def names(self) -> list[str]:
        return [picture.name for picture in self.pictures]

    @cached_property
    def marks(self) -> list[str]:
        return [picture.mark for picture in self.pictures]

    @cached_property
    def labels(self) -> list[int]:
        return [picture.label for picture in self.pictures]

    def picture(self, index: int) -> Source:
        """Path or bytes of image ``index``."""
        source = self.pictures[index].source
        return source() if callable(source) else source

    def image(self, index: int) -> Image.Image:
        """Image ``index``, decoded to 8-bit RGB and corrupted; ValueError gives the reason if it can't be read."""
        image, picture = decode(self.picture(index)), self.pictures[index]
        return self.corruption(image, f"{picture.mark} {picture.name}") if self.corruption else image

    def fingerprint(self) -> str:
        lines = "\n".join(f"{picture.mark} {picture.name}" for picture in self.pictures)
        if self.corruption:
            lines += f"\n{self.corruption.key}"
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def subset(self, keep: Sequence[int]) -> Domain:
        """The images ``keep``, in that order."""
        return Domain([self.pictures[i] for i in keep], self.corruption)

    @classmethod
    def chained(cls, domains: Sequence[Domain]) -> Domain:
        """The images of several domains of a data set, one domain after the other."""
        return cls([picture for domain in domains for picture in domain.pictures], domains[0].corruption)


@dataclass
class ImageSet:
    """A data set of images."""

    name: str  # as --dataset takes it, or that of the folder
    classes: list[str]  # raw names, in the order of the labels
    domains: dict[str, Domain]
    origin: dict[str, Any]  # where it came from, for the record
    expected: dict[str, int] = field(default_factory=dict)  # published number of images by domain, if there is one
    expected_classes: dict[str, list[int]] = field(default_factory=dict)  # the same for each class
    ignored: list[str] = field(default_factory=list)  # folders and files that were not used
    other_split: str = ""  # set when this copy is complete, but is not the test split of published results

    def corrupted(self, corruption: Corruption) -> ImageSet:
        domains = {name: replace(domain, corruption=corruption) for name, domain in self.domains.items()}
        return replace(self, domains=domains, origin={**self.origin, "corrupt": str(corruption)})

    def counts(self) -> dict[str, list[int]]:
        counters = {name: Counter(domain.labels) for name, domain in self.domains.items()}
        return {name: [counter[label] for label in range(len(self.classes))] for name, counter in counters.items()}

    def differences(self) -> list[str]:
        """Differences from the published counts, one line for each domain, or for each class of a domain."""
        lines, counts = [], self.counts()
        for domain, expected in self.expected.items():
            images = len(self.domains.get(domain, ()))
            if images != expected:
                lines.append(f"{domain} {images} images of {expected}")
            elif domain in self.expected_classes:
                classes = zip(self.classes, counts[domain], self.expected_classes[domain], strict=True)
                lines += [
                    f"{domain}/{name} {count} images of {wanted}" for name, count, wanted in classes if count != wanted
                ]
        return lines


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[Image.Image]:
    """The image, with its size checked; what Pillow raises becomes a ValueError with the reason."""
    alone = threading.current_thread() is threading.main_thread()  # filters belong to the process, not to a thread
    with warnings.catch_warnings() if alone else nullcontext():
        if alone:
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and sizes; real errors are raised
        try:
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
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


def _excerpts(source: str | Path | bytes, places: list[int]) -> list[bytes]:
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb", buffering=0) as file:
        return [file.read(_TAIL) for place in places if file.seek(place) >= 0]
