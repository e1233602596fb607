"""The benchmarks: names, class lists and counts that tables of the literature rely on."""

from __future__ import annotations

import pytest
from open_clip import IMAGENET_CLASSNAMES

from clip_tca.data.prompts import class_names, known_classes, load_prompts
from clip_tca.data.registry import BENCHMARKS

COOP = {
    "imagenet": (1000, 50_000), "imagenet-v2": (1000, 10_000), "imagenet-a": (200, 7_500), "imagenet-r": (200, 30_000),
    "imagenet-sketch": (1000, 50_889), "caltech101": (100, 2_465), "oxfordpets": (37, 3_669),
    "stanfordcars": (196, 8_041), "flowers102": (102, 2_463), "food101": (101, 30_300), "fgvcaircraft": (100, 3_333),
    "sun397": (397, 19_850), "dtd": (47, 1_692), "eurosat": (10, 8_100), "ucf101": (101, 3_783),
}  # fmt: skip
"""Classes and test images in CoOp's paper, table of data sets."""

CLASSES = {
    "pacs": 7, "officehome": 65, "vlcs": 5, "domainnet": 345, "terra": 10, "office31": 31, "cifar10-c": 10,
    "cifar100-c": 100, "imagenet-c": 1000,
}  # fmt: skip


def test_every_benchmark_has_its_classes_and_the_images_of_coop_s_paper():
    assert set(BENCHMARKS) == {*CLASSES, *COOP}
    assert {name: len(BENCHMARKS[name].classes) for name in CLASSES} == CLASSES
    assert {name: (len(BENCHMARKS[name].classes), BENCHMARKS[name].images["test"]) for name in COOP} == COOP


def test_published_counts_by_class_add_up():
    for benchmark in BENCHMARKS.values():
        for domain, counts in benchmark.class_images.items():
            assert (sum(counts), len(counts)) == (benchmark.images[domain], len(benchmark.classes))


def test_class_names_are_those_that_published_results_were_made_with():
    for name in ("imagenet-c", "imagenet-v2"):
        assert class_names(BENCHMARKS[name].classes, "clean", name) == list(IMAGENET_CLASSNAMES)
        assert BENCHMARKS[name].classes == sorted(BENCHMARKS[name].classes)
    for name in ("imagenet-a", "imagenet-r"):
        assert known_classes(name).items() <= known_classes("imagenet").items()
    assert class_names(BENCHMARKS["eurosat"].classes, "clean", "eurosat")[-1] == "Sea or Lake"
    assert next(iter(known_classes("caltech101").items())) == ("Faces", "face")
    assert known_classes("stanfordcars")["AM General Hummer SUV 2000"] == "2000 AM General Hummer SUV"
    assert known_classes("sun397")["apartment_building/outdoor"] == "outdoor apartment building"


@pytest.mark.parametrize("name", COOP)
def test_every_set_of_the_literature_has_templates_of_openai_and_one_of_coop(name):
    names = class_names(BENCHMARKS[name].classes, "clean", name)
    assert load_prompts("clip", names, name).texts()
    assert len(load_prompts("coop", names, name).templates) == 1
