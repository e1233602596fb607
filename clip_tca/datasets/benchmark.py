"""A benchmark data set: its domains with the names of their folders, class order, and published numbers of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from clip_tca.core.checks import one_of
from clip_tca.datasets.corruptions import COMMON, CORRUPTIONS, SEVERITIES, USUAL_SEVERITY, corrupted_domain
from clip_tca.datasets.prompts import known_classes


@dataclass(frozen=True)
class HubSplit:
    """The split of a copy on the hub, where it is not that of the published results.

    Attributes:
        whose: Whose split it is, in words.
        images: How many test images it has.
        classes: Name of its list in ``prompts/classes``, if its classes are other ones too.
    """

    whose: str
    images: int
    classes: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark data set.

    Attributes:
        name: As ``--dataset`` takes it.
        title: As papers write it.
        domains: Other names of each domain's folder, compared without case, spaces, ``_`` and ``-``.
        images: Published number of images by domain; empty where we could verify none.
        class_images: The same by class, if published.
        hub_id: Copy on the Hugging Face hub; empty if none is known that loads.
        verified: Whether that copy is known to be complete.
        split: The split of it that is used, if not all are. In folders it is what ``DOMAIN_SPLIT.txt`` lists.
        form: ``folders`` are domain/class/image. A benchmark of corruptions has ``arrays`` (CORRUPTION.npy with all
            severities, and labels.npy) or ``severities`` (corruption/severity/class/image). The test images of one that
            is ``listed`` are in a file.
        listed: That file, the one of CoOp.
        pictures: The folder beside it that its paths begin at.
        home: Its folder in a folder of many data sets, as CoOp lays them out; empty if any name will do.
        hub_split: The split of the hub copy, if it is another one.
        class_list: Name of its list in ``prompts/classes``; empty is its own name.
    """

    name: str
    title: str
    domains: dict[str, tuple[str, ...]]
    images: dict[str, int] = field(default_factory=dict)
    class_images: dict[str, list[int]] = field(default_factory=dict)
    hub_id: str = ""
    verified: bool = True
    split: str | None = None
    form: Literal["folders", "arrays", "severities", "listed"] = "folders"
    listed: str = ""
    pictures: str = ""
    home: str = ""
    hub_split: HubSplit | None = None
    class_list: str = ""

    @property
    def classes(self) -> list[str]:
        """Raw class names, in the order of the labels."""
        return list(known_classes(self.class_list or self.name))

    @property
    def corrupted(self) -> bool:
        """Whether its domains are corruptions."""
        return self.form in ("arrays", "severities")

    def on_hub(self) -> Benchmark:
        """The benchmark with the counts and the classes of its copy on the hub."""
        other = self.hub_split
        return self if other is None else replace(self, images={"test": other.images}, class_list=other.classes)

    def layout(self) -> str:
        """The layout of its folder, in one line."""
        names = ", ".join(self.domains)
        if self.corrupted:
            names = f"{', '.join(COMMON[:2])}, …"
        if self.form == "listed":
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

    def only(self, corruptions: Sequence[str], severities: Sequence[int]) -> Benchmark:
        """A benchmark of corruptions with these alone, by default the 15 common ones at severity 5."""
        chosen = [domain_named(name, list(CORRUPTIONS), "corruption") for name in corruptions] or COMMON
        for severity in severities:
            one_of("severity", severity, SEVERITIES)
        names = [corrupted_domain(name, severity) for name in chosen for severity in severities or [USUAL_SEVERITY]]
        return replace(
            self, domains=dict.fromkeys(names, ()), images={name: self.images[name] for name in dict.fromkeys(names)}
        )


@lru_cache
def _labels(class_list: str) -> dict[str, int]:
    """The label of each class, by its plain raw name."""
    return {plain(name): label for label, name in enumerate(known_classes(class_list))}


def plain(name: str) -> str:
    """A name without case, spaces, underscores and hyphens."""
    return name.casefold().replace(" ", "").replace("_", "").replace("-", "")


def domain_named(wanted: str, domains: list[str], option: str = "domain") -> str:
    """The domain that ``wanted`` names, in any spelling; ValueError if there is none, or more than one."""
    near = [name for name in domains if name == wanted] or [name for name in domains if plain(name) == plain(wanted)]
    if len(near) != 1:
        ambiguous = " is more than one" if near else ""
        raise ValueError(f"{option}: {wanted!r}{ambiguous}; allowed are {', '.join(near or domains)}")
    return near[0]
