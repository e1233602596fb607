"""The benchmarks by name: their domains, classes, published counts, and where to download them.

The list is ``eval/benchmarks.json``; an entry has the fields of :class:`Benchmark`. TerraIncognita has no
counts, because we could not verify any. The domains of a benchmark of corruptions are those of Hendrycks and Dietterich
(ICLR 2019), each at a severity: ``gaussian_noise:5``.

Published results on ImageNet, its variants and the fine-grained sets use CoOp's test splits, and so do the counts. In a
folder with CoOp's list, the images of that list are used (:mod:`clip_tca.data.folder`); the copies on the hub
are those of CLIP_benchmark, in webdataset shards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import msgspec

from clip_tca.core.checks import one_of
from clip_tca.core.folders import resource
from clip_tca.data.prompts import known_classes

COMMON = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of the published tables, in their order. The usual severity is the last."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four corruptions that the authors reserve for validation."""

CORRUPTIONS = (*COMMON, *EXTRA)
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class HubSplit:
    """Another split than that of the published results."""

    whose: str
    images: int
    classes: str = ""  # the name of its list of classes, if that is another


@dataclass(frozen=True)
class Benchmark:
    """A benchmark data set."""

    name: str  # as --dataset takes it
    title: str  # as papers write it
    # Other names of each domain's folder, in any spelling; those of DomainNet are numbers in the copy on the hub.
    domains: dict[str, Sequence[str]] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)  # published number by domain; empty without a good source
    class_images: dict[str, list[int]] = field(default_factory=dict)
    hub_id: str = ""  # copy on the Hugging Face hub; empty if none is known that loads
    split: str | None = None  # the split of it that is used; in folders, what DOMAIN_SPLIT.txt lists
    # domain/class/image, or for corruptions CORRUPTION.npy with labels.npy, or corruption/severity/class/image
    form: Literal["folders", "arrays", "severities"] = "folders"
    listed: str = ""  # CoOp's list of the test images; empty if they are all there is
    pictures: str = ""  # the folder beside it that its paths begin at
    home: str = ""  # its folder among CoOp's; empty if any name will do
    hub_split: HubSplit | None = None  # of the hub copy, if it is another one
    class_list: str = ""  # its file in prompts/classes; empty is its own name
    # Where data get loads it from, in the order of trying: the hub, the authors' archives and those of DomainBed's
    # download script, and the copies that people gave in its issue 165 when those links had died.
    mirrors: Sequence[str | list[str]] = ()

    @property
    def classes(self) -> list[str]:
        return list(known_classes(self.class_list or self.name))

    @property
    def corrupted(self) -> bool:
        return self.form != "folders"

    def on_hub(self) -> Benchmark:
        other = self.hub_split
        return self if other is None else replace(self, images={"test": other.images}, class_list=other.classes)

    def layout(self) -> str:
        names = f"{', '.join(COMMON[:2])}, …" if self.corrupted else ", ".join(self.domains)
        if self.listed:
            return f"{self.title}/{self.listed} with the images below {self.title}/{self.pictures}/"
        if self.form == "arrays":
            return f"{self.title}/{{{names}}}.npy with labels.npy beside them"
        severity = "{1, …, 5}/" if self.form == "severities" else ""
        return f"{self.title}/{{{names}}}/{severity}{{{', '.join(self.classes[:3])}, …}}/*.jpg"

    def domain(self, folder: str) -> str | None:
        """The domain that a folder or column value names."""
        return next((name for name, others in self.domains.items() if plain(folder) in {plain(name), *others}), None)

    def label(self, folder: str) -> int | None:
        """The class that a folder or column value names: its raw name in any case, or its number from 0."""
        label = _labels(self.class_list or self.name).get(plain(folder))
        if label is None and folder.isdecimal() and int(folder) < len(self.classes):
            return int(folder)
        return label

    def only(self, corruptions: Sequence[str] = (), severities: Sequence[int] = ()) -> Benchmark:
        """A benchmark of corruptions with these alone, by default the 15 common ones at severity 5."""
        chosen = [domain_named(name, CORRUPTIONS, "corruption") for name in corruptions] or COMMON
        for severity in severities:
            one_of("severity", severity, SEVERITIES)
        names = [f"{name}:{severity}" for name in chosen for severity in severities or SEVERITIES[-1:]]
        return replace(self, domains=dict.fromkeys(names, ()), images={name: self.images[name] for name in names})


@lru_cache
def _labels(class_list: str) -> dict[str, int]:
    return {plain(name): label for label, name in enumerate(known_classes(class_list))}


def plain(name: str) -> str:
    """A name without case, spaces, underscores and hyphens."""
    return name.casefold().replace(" ", "").replace("_", "").replace("-", "")


def domain_named(wanted: str, domains: Sequence[str], option: str = "domain") -> str:
    """The domain that ``wanted`` names, in any spelling; ValueError if there is none, or more than one."""
    near = [name for name in domains if name == wanted] or [name for name in domains if plain(name) == plain(wanted)]
    if len(near) != 1:
        ambiguous = " is more than one" if near else ""
        raise ValueError(f"{option}: {wanted!r}{ambiguous}; allowed are {', '.join(near or domains)}")
    return near[0]


def _benchmark(name: str, entry: dict[str, Any]) -> Benchmark:
    if "form" in entry:
        names = [f"{corruption}:{severity}" for corruption in CORRUPTIONS for severity in SEVERITIES]
        entry |= {"domains": dict.fromkeys(names, ()), "images": dict.fromkeys(names, entry["images"])}
    return msgspec.convert({**entry, "name": name}, Benchmark)


BENCHMARKS = {
    name: _benchmark(name, entry) for name, entry in json.loads(resource("eval/benchmarks.json").read_bytes()).items()
}
