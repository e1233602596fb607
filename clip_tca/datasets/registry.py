"""The benchmarks by name: their domains, classes, published counts, and where to download them.

The list is ``eval/benchmarks.json``; an entry has the fields of :class:`Benchmark`. TerraIncognita has no
counts, because we could not verify any. The domains of a benchmark of corruptions are those of Hendrycks and Dietterich
(ICLR 2019), each at a severity: ``gaussian_noise:5``.

Published results on ImageNet, its variants and the fine-grained sets use CoOp's test splits, and so do the counts. In a
folder with CoOp's list, the images of that list are used (:mod:`clip_tca.datasets.folder`); the copies on the hub
are those of CLIP_benchmark, in webdataset shards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from clip_tca.core.checks import one_of
from clip_tca.core.folders import resource
from clip_tca.datasets.prompts import known_classes

COMMON = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of the published tables, in their order. The usual severity is the last."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four corruptions that the authors reserve for validation."""

CORRUPTIONS = (*COMMON, *EXTRA)
SEVERITIES = (1, 2, 3, 4, 5)


class HubSplit(NamedTuple):
    """Another split than that of the published results; ``classes`` names its list of classes, if that is another."""

    whose: str
    images: int
    classes: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark data set.

    Attributes:
        name: As ``--dataset`` takes it.
        title: As papers write it.
        domains: Other names of each domain's folder, compared without case, spaces, ``_`` and ``-``. Those of
            DomainNet are numbers in the copy on the hub.
        images: Published number of images by domain; empty where we could verify none.
        class_images: The same by class, if published.
        hub_id: Copy on the Hugging Face hub; empty if none is known that loads.
        split: The split of it that is used, if not all are. In folders it is what ``DOMAIN_SPLIT.txt`` lists.
        form: ``folders`` are domain/class/image. A benchmark of corruptions has ``arrays`` (CORRUPTION.npy with all
            severities, and labels.npy) or ``severities`` (corruption/severity/class/image).
        listed: The file that lists the test images, that of CoOp; empty if they are all there is.
        pictures: The folder beside it that its paths begin at.
        home: Its folder in a folder of many data sets, as CoOp lays them out; empty if any name will do.
        hub_split: The split of the hub copy, if it is another one.
        class_list: Name of its list in ``prompts/classes``; empty is its own name.
        mirrors: Where ``clip-tca data get`` loads it from (:class:`clip_tca.datasets.local_copy.Mirror`), in the order
            of trying: the hub, the authors' archives and those of DomainBed's download script, and the copies that
            people gave in its issue 165 when those links had died. A hash is there where public sources agree on it.
    """

    name: str
    title: str
    domains: dict[str, Sequence[str]]
    images: dict[str, int] = field(default_factory=dict)
    class_images: dict[str, list[int]] = field(default_factory=dict)
    hub_id: str = ""
    split: str | None = None
    form: Literal["folders", "arrays", "severities"] = "folders"
    listed: str = ""
    pictures: str = ""
    home: str = ""
    hub_split: HubSplit | None = None
    class_list: str = ""
    mirrors: Sequence[str | list[str]] = ()

    @property
    def classes(self) -> list[str]:
        """Raw class names, in the order of the labels."""
        return list(known_classes(self.class_list or self.name))

    @property
    def corrupted(self) -> bool:
        """Whether its domains are corruptions."""
        return self.form != "folders"

    def on_hub(self) -> Benchmark:
        """The benchmark with the counts and the classes of its copy on the hub."""
        other = self.hub_split
        return self if other is None else replace(self, images={"test": other.images}, class_list=other.classes)

    def layout(self) -> str:
        """The layout of its folder, in one line."""
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
    """The label of each class, by its plain raw name."""
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
    """An entry of the list; corruptions all have the same number of images."""
    if "form" in entry:
        names = [f"{corruption}:{severity}" for corruption in CORRUPTIONS for severity in SEVERITIES]
        entry |= {"domains": dict.fromkeys(names, ()), "images": dict.fromkeys(names, entry["images"])}
    if "hub_split" in entry:
        entry["hub_split"] = HubSplit(**entry["hub_split"])
    return Benchmark(name, **entry)


BENCHMARKS: dict[str, Benchmark] = {
    name: _benchmark(name, entry)
    for name, entry in json.loads(resource("eval/benchmarks.json").read_text(encoding="utf-8")).items()
}
