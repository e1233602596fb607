"""A data set of images: its classes, and for each domain a list of images with their labels.

Images are decoded when they are needed. An image is identified by its name, its size and a hash of some of its bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from PIL import Image

from clip_tca.datasets.corruptions import Corruption
from clip_tca.datasets.pictures import Picture, decode


@dataclass
class Domain:
    """The images of one domain.

    Attributes:
        names: The name of each image, ``class/file`` for files.
        marks: Size and hash of each: of all bytes, or of some if it is a path (:mod:`clip_tca.datasets.pictures`).
        labels: The true classes, for scoring only; −1 where nobody knows.
        pictures: Each as a path or as bytes, or a function that returns it; picklable, for worker processes.
        corruption: Applied when an image is decoded.
    """

    names: list[str]
    marks: list[str]
    labels: list[int]
    pictures: Sequence[Picture | Callable[[], Picture]]
    corruption: Corruption | None = None

    def __len__(self) -> int:
        return len(self.names)

    def picture(self, index: int) -> Picture:
        """Path or bytes of image ``index``."""
        picture = self.pictures[index]
        return picture() if callable(picture) else picture

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
        names, marks = [self.names[i] for i in keep], [self.marks[i] for i in keep]
        labels, pictures = [self.labels[i] for i in keep], [self.pictures[i] for i in keep]
        return Domain(names, marks, labels, pictures, self.corruption)

    @classmethod
    def chained(cls, domains: Sequence[Domain]) -> Domain:
        """The images of several domains of a data set, one domain after the other."""
        names, marks = list(chain(*(d.names for d in domains))), list(chain(*(d.marks for d in domains)))
        labels, pictures = list(chain(*(d.labels for d in domains))), list(chain(*(d.pictures for d in domains)))
        return cls(names, marks, labels, pictures, domains[0].corruption)


@dataclass
class ImageSet:
    """A data set of images.

    Attributes:
        name: As ``--dataset`` takes it, or the name of the folder.
        classes: Raw class names, in the order of the labels.
        domains: The images by domain.
        origin: Where it came from, for the record.
        expected: The published number of images by domain; empty if there is none.
        expected_classes: The same for each class.
        ignored: Folders and files that were not used.
        other_split: Says so if these are not the images of published results, though all are there.
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
