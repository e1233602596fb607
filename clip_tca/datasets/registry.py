"""The benchmarks by name."""

from __future__ import annotations

from typing import Literal

from clip_tca.datasets.benchmark import Benchmark, domain_named, plain
from clip_tca.datasets.corruptions import CORRUPTIONS, SEVERITIES, corrupted_domain
from clip_tca.datasets.literature import LITERATURE

__all__ = ["BENCHMARKS", "Benchmark", "domain_named", "plain"]


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
        *LITERATURE,
    )
}
