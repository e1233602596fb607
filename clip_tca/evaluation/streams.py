"""Streams and protocols: the images of a run, their order and batches, and the divisor of the accuracy.

Protocols: ``full`` counts every image. ``watt`` never sees the last incomplete batch and still divides by all images.
``kept`` drops that batch too, and divides by the images seen.

Labels are used to draw the stream; methods never see them. A draw depends only on the labels, the seed and the options,
so it is the same for every method. The kinds are those of StatA (Zanella et al., CVPR 2025; its ``sampler.py``):

``iid`` shuffles. ``sorted`` shows class after class, the classes in a random order. ``dirichlet:GAMMA`` splits each
class over slots in shares drawn from a symmetric Dirichlet(γ), and shows slot after slot, each shuffled; there are as
many slots as whole batches, at most one for each class. With a smaller γ, more images of a class come together.

``classes_present`` K (or A to B, drawn each time) limits the classes of each batch, or of the whole set in the
transductive setting. StatA draws such batches independently, so images recur; here each image comes once, so the last
batches are smaller and have fewer classes. ``long_tail`` R keeps n₀ · R^(−i/(C−1)) images of class i of C, at least
one, the classes in a random order (Cui et al., CVPR 2019); n₀ is as large as all classes allow.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.checks import check_flag, check_number, check_positive
from clip_tca.results.schema import STREAMS, Protocol, Setting, StreamInfo, StreamKind


def order(images: int, protocol: Protocol, batch: int, seed: int) -> Tensor:
    """Indices of the images seen, shuffled."""
    shuffled = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return shuffled if protocol == "full" else shuffled[: images // batch * batch]


def divisor(images: int, seen: int, protocol: Protocol) -> int:
    """The divisor of the number of correct predictions."""
    return seen if protocol == "kept" else images


@dataclass(frozen=True)
class Draw:
    """Indices of the images drawn, and the sizes of the batches that are seen: a protocol may drop the last batch."""

    drawn: Tensor
    sizes: list[int]

    @property
    def seen(self) -> Tensor:
        return self.drawn[: sum(self.sizes)]


@dataclass(frozen=True)
class Stream:
    """How a run draws its images; the options are those of the module's text."""

    kind: StreamKind = "iid"
    gamma: float | None = None
    classes_present: tuple[int, int] | None = None
    long_tail: float | None = None
    mix_domains: bool = False

    @classmethod
    def of(cls, stream: str, classes_present: int | str | None, long_tail: Any, mix_domains: Any) -> Stream:
        """From the options of :func:`clip_tca.evaluate`; ValueError names a bad one."""
        kind, colon, number = str(stream).partition(":")
        if kind not in STREAMS or (kind == "dirichlet") != bool(colon):
            raise ValueError(f"stream: {stream!r}; allowed are iid, sorted and dirichlet:GAMMA, such as dirichlet:0.1")
        try:
            gamma = float(number) if colon else None
        except ValueError:
            raise ValueError(f"stream: {stream!r}; GAMMA is a number, such as 0.1") from None
        if gamma is not None:
            check_positive("stream: GAMMA", gamma)
        if long_tail is not None:
            check_number("long_tail", long_tail, 1)
        check_flag("mix_domains", mix_domains)
        present = None if classes_present is None else _range(classes_present)
        return cls(kind, gamma, present, long_tail, mix_domains)

    def check(self, setting: Setting, protocol: Protocol) -> None:
        if self.kind != "iid" and setting == "transductive":
            raise ValueError(
                f"stream: {self.kind!r} is an order of batches, and one fit on the whole domain has none; "
                "use --setting online or episodic"
            )
        if self.classes_present and setting != "transductive":
            if self.kind != "iid":
                raise ValueError(f"classes_present: draws the batches itself; leave out --stream {self.kind}")
            if protocol != "full":
                raise ValueError(
                    f"classes_present: batches differ in size, so protocol {protocol!r} drops none; use full"
                )

    def check_classes(self, classes: int) -> None:
        if self.classes_present and self.classes_present[1] > classes:
            raise ValueError(f"classes_present: {self.classes_present[1]}, but the data set has {classes} classes")

    def draw(self, labels: Tensor, seed: int, setting: Setting, protocol: Protocol, batch: int) -> Draw:
        random, truth = np.random.default_rng(seed), labels.cpu().numpy()
        pool = torch.from_numpy(self._pool(truth, random, setting == "transductive"))
        shuffled = pool[order(len(pool), "full", batch, seed)]
        if self.classes_present and setting != "transductive":
            batches = _few_classes(shuffled.numpy(), truth, self.classes_present, batch, random)
            return Draw(torch.from_numpy(np.concatenate(batches)), [len(part) for part in batches])
        if self.kind != "iid":
            slots = random.permutation(int(truth.max()) + 1)[truth]  # a slot for each class, in a random order
            if self.gamma is not None:
                slots = _slots(truth, pool.numpy(), self.gamma, batch, random)
            shuffled = shuffled[torch.from_numpy(np.argsort(slots[shuffled.numpy()], kind="stable"))]
        seen = len(shuffled) if protocol == "full" else len(shuffled) // batch * batch
        return Draw(shuffled, [min(batch, seen - start) for start in range(0, seen, batch)])

    def record(self) -> StreamInfo:
        present = self.classes_present and list(self.classes_present)
        return cast("StreamInfo", {**asdict(self), "classes_present": present})

    def _pool(self, truth: np.ndarray, random: np.random.Generator, whole: bool) -> np.ndarray:
        classes = np.unique(truth)
        if self.classes_present and whole:
            count = int(random.integers(*self.classes_present, endpoint=True))
            classes = random.choice(classes, min(count, len(classes)), replace=False)
        members = [np.flatnonzero(truth == label) for label in random.permutation(classes)]
        if self.long_tail is not None:
            counts = long_tail_counts([len(part) for part in members], self.long_tail)
            members = [random.permutation(part)[:count] for part, count in zip(members, counts, strict=True)]
        return np.sort(np.concatenate(members))


def slots_of(images: int, shares: np.ndarray) -> np.ndarray:
    """Slots ``(images,)`` of the images of a class, split in these ``shares``; cuts are rounded down."""
    cuts = (np.cumsum(shares)[:-1] * images).astype(np.int64)
    slots: np.ndarray = np.searchsorted(cuts, np.arange(images), side="right")
    return slots


def long_tail_counts(available: list[int], ratio: float) -> list[int]:
    """Images to keep of each class, the most frequent first: the last has 1/ratio of the first, at least one."""
    profile = ratio ** -(np.arange(len(available)) / max(1, len(available) - 1))
    largest = float((np.array(available) / profile).min())
    return [max(1, round(largest * share)) for share in profile.tolist()]


def _slots(truth: np.ndarray, pool: np.ndarray, gamma: float, batch: int, random: np.random.Generator) -> np.ndarray:
    """For each image ``(n,)`` of the pool its slot, for others 0."""
    classes = np.unique(truth[pool])
    count = max(1, min(len(pool) // batch, len(classes)))
    slots = np.zeros(len(truth), dtype=np.int64)
    for label in classes:
        members = random.permutation(pool[truth[pool] == label])
        slots[members] = slots_of(len(members), random.dirichlet([gamma] * count))
    return slots


def _few_classes(
    shuffled: np.ndarray, truth: np.ndarray, present: tuple[int, int], batch: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Batches of a drawn number of classes, until no image is left: one image of each, the others at random."""
    left = {int(label): shuffled[truth[shuffled] == label] for label in np.unique(truth[shuffled])}
    batches, shown = [], np.zeros(len(truth), dtype=bool)
    while left:
        count = min(int(random.integers(*present, endpoint=True)), len(left), batch)
        chosen = random.choice(sorted(left), count, replace=False).tolist()
        others = random.permutation(np.concatenate([left[label][1:] for label in chosen]))
        taken = np.concatenate([[left[label][0] for label in chosen], others])[:batch]
        batches.append(random.permutation(taken))
        shown[taken] = True
        for label in chosen:
            rest = left.pop(label)
            if len(rest := rest[~shown[rest]]):
                left[label] = rest
    return batches


def _range(present: int | str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(present))
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high or isinstance(present, bool):
        raise ValueError(
            f"classes_present: {present!r}; a number of classes of at least 1 is needed, or A-B such as 1-4"
        )
    return low, high
