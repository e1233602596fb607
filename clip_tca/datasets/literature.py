"""The data sets of the CLIP literature: ImageNet with its variants, and ten fine-grained sets. Each is one domain.

Published results are for CoOp's test splits, and so are the counts here. A folder with CoOp's list of files is read by
that list (:mod:`clip_tca.datasets.listed_files`). The copies on the hub are those of CLIP_benchmark, in webdataset
shards; where the split of a copy is another one, :class:`clip_tca.datasets.benchmark.HubSplit` says whose.
"""

from __future__ import annotations

from clip_tca.datasets.benchmark import Benchmark, HubSplit

DOMAIN = "test"
"""The one domain."""

V2 = "imagenetv2matchedfrequencyformatval"
"""The folder of ImageNetV2's usual form."""


def _imagenet(name: str, title: str, home: str, folders: tuple[str, ...], images: int, copy: str) -> Benchmark:
    """ImageNet or one of its variants, whose test set is all there is: the same in every copy."""
    return Benchmark(name, title, {DOMAIN: folders}, {DOMAIN: images}, hub_id=_hub(copy), split=DOMAIN, home=home)


def _listed(
    name: str, title: str, images: int, listed: str, pictures: str, copy: str = "", other: HubSplit | None = None
) -> Benchmark:
    """A set whose test images are ``listed`` in a file, by paths in the folder ``pictures``."""
    return Benchmark(
        name,
        title,
        {DOMAIN: ()},
        {DOMAIN: images},
        hub_id=_hub(copy) if copy else "",
        split=DOMAIN,
        form="listed",
        listed=listed,
        pictures=pictures,
        hub_split=other,
    )


def _hub(copy: str) -> str:
    return f"clip-benchmark/wds_{copy}"


LITERATURE = (
    _imagenet("imagenet", "ImageNet", "imagenet", ("val", "validation"), 50_000, "imagenet1k"),
    _imagenet("imagenet-v2", "ImageNetV2", "imagenetv2", (V2,), 10_000, "imagenetv2"),
    _imagenet("imagenet-a", "ImageNet-A", "imagenet-adversarial", ("imageneta",), 7_500, "imagenet-a"),
    _imagenet("imagenet-r", "ImageNet-R", "imagenet-rendition", ("imagenetr",), 30_000, "imagenet-r"),
    _imagenet("imagenet-sketch", "ImageNet-Sketch", "imagenet-sketch", ("images", "sketch"), 50_889, "imagenet_sketch"),
    _listed(
        "caltech101",
        "Caltech101",
        2_465,
        "split_zhou_Caltech101.json",
        "101_ObjectCategories",
        "vtab-caltech101",
        HubSplit("VTAB's", 6_084, "caltech101-vtab"),
    ),
    _listed("oxfordpets", "OxfordPets", 3_669, "split_zhou_OxfordPets.json", "images", "vtab-pets"),
    _listed("stanfordcars", "StanfordCars", 8_041, "split_zhou_StanfordCars.json", ".", "cars"),
    _listed(
        "flowers102",
        "Flowers102",
        2_463,
        "split_zhou_OxfordFlowers.json",
        "jpg",
        "vtab-flowers",
        HubSplit("the official one", 6_149),
    ),
    _listed(
        "food101",
        "Food101",
        30_300,
        "split_zhou_Food101.json",
        "images",
        "food101",
        HubSplit("the official one", 25_250),
    ),
    _listed("fgvcaircraft", "FGVCAircraft", 3_333, "images_variant_test.txt", "images", "fgvc_aircraft"),
    _listed("sun397", "SUN397", 19_850, "split_zhou_SUN397.json", "SUN397", "sun397", HubSplit("all images", 108_754)),
    _listed(
        "dtd",
        "DTD",
        1_692,
        "split_zhou_DescribableTextures.json",
        "images",
        "vtab-dtd",
        HubSplit("the official one", 1_880),
    ),
    _listed("eurosat", "EuroSAT", 8_100, "split_zhou_EuroSAT.json", "2750", "vtab-eurosat", HubSplit("VTAB's", 5_400)),
    _listed("ucf101", "UCF101", 3_783, "split_zhou_UCF101.json", "UCF-101-midframes"),
)
"""No copy of UCF101's middle frames is in CLIP_benchmark's list."""
