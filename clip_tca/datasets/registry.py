"""The benchmarks: domains with the names of their folders, class order, and the published numbers of images."""

from __future__ import annotations

from dataclasses import dataclass

from clip_tca.datasets.prompts import known_classes


@dataclass(frozen=True)
class Benchmark:
    """A benchmark data set.

    Attributes:
        name: As ``--dataset`` takes it.
        title: As papers write it.
        domains: Other names of each domain's folder, compared without case, spaces, ``_`` and ``-``.
        images: Published number of images by domain.
        class_images: The same by class, if published.
        hub_id: Copy on the Hugging Face hub.
        verified: Whether that copy is known to be complete.
    """

    name: str
    title: str
    domains: dict[str, tuple[str, ...]]
    images: dict[str, int]
    class_images: dict[str, list[int]]
    hub_id: str
    verified: bool = True

    @property
    def classes(self) -> list[str]:
        """Raw class names, in the order of the labels."""
        return list(known_classes(self.name))

    def layout(self) -> str:
        """The layout of its folder, in one line."""
        return f"{self.title}/{{{', '.join(self.domains)}}}/{{{', '.join(self.classes[:3])}, …}}/*.jpg"

    def domain(self, folder: str) -> str | None:
        """The domain that a folder or column value names."""
        return next((name for name, others in self.domains.items() if plain(folder) in {plain(name), *others}), None)

    def label(self, folder: str) -> int | None:
        """The class that a folder or column value names: its raw name in any case, or its number from 0."""
        names = [plain(name) for name in self.classes]
        if plain(folder) in names:
            return names.index(plain(folder))
        return int(folder) if folder.isdecimal() and int(folder) < len(names) else None


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
    )
}
