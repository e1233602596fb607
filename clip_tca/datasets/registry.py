"""The benchmarks: domains with the names of their folders, class order, and the published numbers of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from clip_tca.core.checks import one_of
from clip_tca.datasets.corruptions import COMMON, CORRUPTIONS, SEVERITIES, USUAL_SEVERITY, corrupted_domain
from clip_tca.datasets.prompts import known_classes


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
            severities, and labels.npy) or ``severities`` (corruption/severity/class/image).
    """

    name: str
    title: str
    domains: dict[str, tuple[str, ...]]
    images: dict[str, int] = field(default_factory=dict)
    class_images: dict[str, list[int]] = field(default_factory=dict)
    hub_id: str = ""
    verified: bool = True
    split: str | None = None
    form: Literal["folders", "arrays", "severities"] = "folders"

    @property
    def classes(self) -> list[str]:
        """Raw class names, in the order of the labels."""
        return list(known_classes(self.name))

    @property
    def corrupted(self) -> bool:
        """Whether its domains are corruptions."""
        return self.form != "folders"

    def layout(self) -> str:
        """The layout of its folder, in one line."""
        names = ", ".join(self.domains)
        if self.corrupted:
            names = f"{', '.join(COMMON[:2])}, …"
        if self.form == "arrays":
            return f"{self.title}/{{{names}}}.npy with labels.npy beside them"
        severity = "{1, …, 5}/" if self.form == "severities" else ""
        return f"{self.title}/{{{names}}}/{severity}{{{', '.join(self.classes[:3])}, …}}/*.jpg"

    def domain(self, folder: str) -> str | None:
        """The domain that a folder or column value names."""
        return next((name for name, others in self.domains.items() if plain(folder) in {plain(name), *others}), None)

    def label(self, folder: str) -> int | None:
        """The class that a folder or column value names: its raw name in any case, or its number from 0."""
        label = _labels(self.name).get(plain(folder))
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
def _labels(dataset: str) -> dict[str, int]:
    """The label of each class, by its plain raw name."""
    return {plain(name): label for label, name in enumerate(known_classes(dataset))}


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


def _corrupted(name: str, title: str, form: Literal["arrays", "severities"], images: int) -> Benchmark:
    """A benchmark with ``images`` for each corruption at each severity."""
    names = [corrupted_domain(corruption, severity) for corruption in CORRUPTIONS for severity in SEVERITIES]
    return Benchmark(name, title, dict.fromkeys(names, ()), dict.fromkeys(names, images), form=form)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "pacs",
            "PACS",
            {"art_painting": ("art", "artpaintings", "painting"), "cartoon": (), "photo": (), "sketch": ()},
            {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
            {
                "art_painting": [379, 255, 285, 184, 201, 295, 449],
                "cartoon": [389, 457, 346, 135, 324, 288, 405],
                "photo": [189, 202, 182, 186, 199, 280, 432],
                "sketch": [772, 740, 753, 608, 816, 80, 160],
            },
            "flwrlabs/pacs",
        ),
        Benchmark(
            "officehome",
            "OfficeHome",
            {"Art": (), "Clipart": (), "Product": (), "Real World": ("real",)},
            {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
            {},
            "flwrlabs/office-home",
        ),
        Benchmark(
            "vlcs",
            "VLCS",
            {
                "Caltech101": ("caltech",),
                "LabelMe": (),
                "SUN09": ("sun",),
                "VOC2007": ("voc", "pascal", "pascalvoc", "voc07"),
            },
            {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
            {
                "Caltech101": [237, 123, 118, 67, 870],
                "LabelMe": [80, 1209, 88, 42, 1237],
                "SUN09": [20, 932, 1036, 30, 1264],
                "VOC2007": [330, 699, 428, 420, 1499],
            },
            "ai22mtech12002/DG_VLCS",
            verified=False,
        ),
        Benchmark(
            "domainnet",
            "DomainNet",
            {
                "clipart": ("0",),  # numbers: as in the hub copy
                "infograph": ("1",),
                "painting": ("2",),
                "quickdraw": ("3",),
                "real": ("4",),
                "sketch": ("5",),
            },
            {
                "clipart": 14604,
                "infograph": 15582,
                "painting": 21850,
                "quickdraw": 51750,
                "real": 52041,
                "sketch": 20916,
            },
            hub_id="wltjr1007/DomainNet",
            split="test",
        ),
        Benchmark(
            "terra",
            "TerraIncognita",
            {
                "L100": ("location100", "100"),
                "L38": ("location38", "38"),
                "L43": ("location43", "43"),
                "L46": ("location46", "46"),
            },
        ),
        Benchmark(
            "office31",
            "Office-31",
            {"amazon": (), "dslr": (), "webcam": ()},
            {"amazon": 2817, "dslr": 498, "webcam": 795},
        ),
        _corrupted("cifar10-c", "CIFAR-10-C", "arrays", 10_000),
        _corrupted("cifar100-c", "CIFAR-100-C", "arrays", 10_000),
        _corrupted("imagenet-c", "ImageNet-C", "severities", 50_000),
    )
}
