"""A data set of pictures: classes, and for each domain a list of pictures with their labels.

Nothing is decoded before it is needed; what identifies a picture is its name, its size and a sample of its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clip_tca.datasets.pictures import Picture


@dataclass
class Domain:
    """The pictures of one domain.

    Attributes:
        names: What a picture is called, ``class/file`` for files.
        marks: What else tells a file from another: its size and a sample of its content.
        labels: Index of each picture's class. For scoring only.
        source: Gives picture i: a path, bytes or a ready picture. Can be sent to worker processes.
        drawn: Whether pictures are made when they are asked for, so that there is nothing to check beforehand.
    """

    names: list[str]
    marks: list[str]
    labels: list[int]
    source: Callable[[int], Picture]
    drawn: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def fingerprint(self) -> str:
        """Hash of names and marks."""
        lines = "\n".join(f"{mark} {name}" for name, mark in zip(self.names, self.marks, strict=True))
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def subset(self, keep: Sequence[int]) -> Domain:
        """The pictures ``keep``, in that order."""
        return replace(
            self,
            names=[self.names[i] for i in keep],
            marks=[self.marks[i] for i in keep],
            labels=[self.labels[i] for i in keep],
            source=Chosen(self.source, tuple(keep)),
        )


@dataclass(frozen=True)
class Chosen:
    """Some pictures of another source."""

    source: Callable[[int], Picture]
    indices: tuple[int, ...]

    def __call__(self, index: int) -> Picture:
        """Picture ``index`` of the chosen ones."""
        return self.source(self.indices[index])


@dataclass
class ImageSet:
    """A data set.

    Attributes:
        name: Its name, such as ``pacs``.
        classes: Raw class names, in the order of the labels.
        domains: Pictures by domain.
        origin: Where it came from, for the record.
        expected: Published number of images by domain, and by domain and class where known; empty if there is none.
        ignored: Folders and files that were found and not used.
    """

    name: str
    classes: list[str]
    domains: dict[str, Domain]
    origin: dict[str, Any]
    expected: dict[str, int] = field(default_factory=dict)
    expected_classes: dict[str, list[int]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, list[int]]:
        """Images of each class, by domain."""
        return {
            name: [domain.labels.count(c) for c in range(len(self.classes))] for name, domain in self.domains.items()
        }

    def differences(self) -> list[str]:
        """How the counts differ from the published ones, one line for each domain (and class, where known)."""
        lines = []
        for domain, expected in self.expected.items():
            found = len(self.domains.get(domain, ()))
            if found != expected:
                lines.append(f"{domain} {found} images of {expected}")
        counts = self.counts()
        for domain, per_class in self.expected_classes.items():
            for name, found, expected in zip(self.classes, counts.get(domain, []), per_class, strict=False):
                if found != expected and len(self.domains[domain]) == self.expected[domain]:
                    lines.append(f"{domain}/{name} {found} images of {expected}")
        return lines
