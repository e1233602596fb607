"""A data set of images: its classes, and for each domain a list of images with their labels.

Images are decoded when they are needed. An image is identified by its name, its size and a hash of some of its bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from clip_tca.datasets.corrupting import Corruption
from clip_tca.datasets.pictures import Picture, decode


@dataclass
class Domain:
    """The images of one domain: names (``class/file`` for files), marks, and labels for scoring only.

    A mark is size and content hash, see :func:`clip_tca.datasets.pictures.mark`. ``picture`` returns image i as a path
    or bytes, and is picklable, for worker processes. ``corruption`` is applied when an image is decoded.
    """

    names: list[str]
    marks: list[str]
    labels: list[int]
    picture: Callable[[int], Picture]
    corruption: Corruption | None = None

    def __len__(self) -> int:
        return len(self.names)

    def image(self, index: int) -> Image.Image:
        """Image ``index``, decoded to 8-bit RGB and corrupted; ValueError gives the reason if it can't be read."""
        image = decode(self.picture(index))
        return self.corruption(image, f"{self.marks[index]} {self.names[index]}") if self.corruption else image

    def fingerprint(self) -> str:
        """Hash of names, marks and the corruption."""
        lines = "\n".join(f"{mark} {name}" for name, mark in zip(self.names, self.marks, strict=True))
        if self.corruption:
            lines += f"\n{self.corruption.key}"
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def subset(self, keep: Sequence[int]) -> Domain:
        """The images ``keep``, in that order."""
        return replace(
            self,
            names=[self.names[i] for i in keep],
            marks=[self.marks[i] for i in keep],
            labels=[self.labels[i] for i in keep],
            picture=Subset(self.picture, tuple(keep)),
        )

    @classmethod
    def chained(cls, domains: Sequence[Domain]) -> Domain:
        """The images of several domains of a data set, one domain after the other."""
        names, marks, labels = (
            [value for domain in domains for value in getattr(domain, part)] for part in ("names", "marks", "labels")
        )
        pictures = tuple((domain.picture, len(domain)) for domain in domains)
        return cls(names, marks, labels, Chain(pictures), domains[0].corruption)


@dataclass(frozen=True)
class Subset:
    """Some of the images that another callable returns."""

    picture: Callable[[int], Picture]
    indices: tuple[int, ...]

    def __call__(self, index: int) -> Picture:
        """Image ``index`` of the subset."""
        return self.picture(self.indices[index])


@dataclass(frozen=True)
class Chain:
    """The images of several callables, each with its number of images, one after the other."""

    pictures: tuple[tuple[Callable[[int], Picture], int], ...]

    def __call__(self, index: int) -> Picture:
        """Image ``index`` of all."""
        for picture, images in self.pictures:
            if index < images:
                return picture(index)
            index -= images
        raise IndexError(index)


@dataclass
class ImageSet:
    """A data set: raw class names in the order of the labels, images by domain, and where it came from, for the record.

    ``expected`` holds the published numbers of images by domain, ``expected_classes`` those of each class, both empty
    if there are none; ``ignored`` names folders and files that were not used. ``other_split`` says so if these are not
    the images of published results, though all are there.
    """

    name: str
    classes: list[str]
    domains: dict[str, Domain]
    origin: dict[str, Any]
    expected: dict[str, int] = field(default_factory=dict)
    expected_classes: dict[str, list[int]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    other_split: str = ""

    def corrupted(self, corruption: Corruption) -> ImageSet:
        """The same images, corrupted."""
        domains = {name: replace(domain, corruption=corruption) for name, domain in self.domains.items()}
        return replace(self, domains=domains, origin={**self.origin, "corrupt": str(corruption)})

    def counts(self) -> dict[str, list[int]]:
        """Images of each class, by domain."""
        counted = {name: Counter(domain.labels) for name, domain in self.domains.items()}
        return {name: [counter[label] for label in range(len(self.classes))] for name, counter in counted.items()}

    def differences(self) -> list[str]:
        """Differences from the published counts, one line for each domain (and class, if published)."""
        lines = []
        for domain, expected in self.expected.items():
            count = len(self.domains.get(domain, ()))
            if count != expected:
                lines.append(f"{domain} {count} images of {expected}")
        counts = self.counts()
        for domain, per_class in self.expected_classes.items():
            for name, count, expected in zip(self.classes, counts.get(domain, []), per_class, strict=False):
                if count != expected and len(self.domains[domain]) == self.expected[domain]:
                    lines.append(f"{domain}/{name} {count} images of {expected}")
        return lines
