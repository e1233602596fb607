"""The data sets of the CLIP literature: names, class lists and counts that tables of it rely on."""

from __future__ import annotations

import pytest
from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

from clip_tca.datasets.literature import LITERATURE
from clip_tca.datasets.prompts import class_names, known_classes, load_prompts
from clip_tca.datasets.registry import BENCHMARKS

COUNTS = {
    "imagenet": (1000, 50_000), "imagenet-v2": (1000, 10_000), "imagenet-a": (200, 7_500), "imagenet-r": (200, 30_000),
    "imagenet-sketch": (1000, 50_889), "caltech101": (100, 2_465), "oxfordpets": (37, 3_669),
    "stanfordcars": (196, 8_041), "flowers102": (102, 2_463), "food101": (101, 30_300), "fgvcaircraft": (100, 3_333),
    "sun397": (397, 19_850), "dtd": (47, 1_692), "eurosat": (10, 8_100), "ucf101": (101, 3_783),
}  # fmt: skip
"""Classes and test images in CoOp's paper, table of data sets."""


def test_there_are_fifteen_sets_with_the_classes_and_images_of_coop_s_paper():
    assert {b.name: (len(b.classes), b.images["test"]) for b in LITERATURE} == COUNTS
    assert all(BENCHMARKS[benchmark.name] is benchmark for benchmark in LITERATURE)


def test_the_counts_that_follow_from_a_rule_are_what_the_rule_says():
    assert COUNTS["food101"][1] == 101 * (1000 - 500 - 200)  # CoOp: 50 % train, 20 % validation, of 1,000 each
    assert COUNTS["sun397"][1] == 397 * 50  # the official partition 01
    assert COUNTS["eurosat"][1] == round(27_000 * 0.3)
    assert BENCHMARKS["food101"].hub_split.images == 101 * 250  # the official split
    assert BENCHMARKS["dtd"].hub_split.images == 47 * 40


def test_imagenet_s_variants_have_names_of_clip_for_their_own_ids():
    assert class_names(BENCHMARKS["imagenet-v2"].classes, "clean", "imagenet-v2") == list(IMAGENET_CLASSNAMES)
    whole = known_classes("imagenet")
    for name in ("imagenet-a", "imagenet-r"):
        assert known_classes(name).items() <= whole.items()
        assert list(known_classes(name)) == sorted(known_classes(name))


def test_class_names_are_those_that_published_results_were_made_with():
    assert class_names(BENCHMARKS["eurosat"].classes, "clean", "eurosat")[-1] == "Sea or Lake"
    assert known_classes("caltech101")["Faces"] == "face"
    assert list(known_classes("caltech101"))[:4] == ["Faces", "Leopards", "Motorbikes", "accordion"]
    assert known_classes("stanfordcars")["AM General Hummer SUV 2000"] == "2000 AM General Hummer SUV"
    assert known_classes("sun397")["apartment_building/outdoor"] == "outdoor apartment building"
    assert known_classes("ucf101")["Apply_Eye_Makeup"] == "Apply Eye Makeup"


def test_clip80_is_openai_s_list_of_templates():
    templates = load_prompts("clip80", ["dog"]).templates
    assert templates == tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)
    assert load_prompts("clip", ["dog"], "imagenet-sketch").templates == templates


@pytest.mark.parametrize("benchmark", LITERATURE, ids=lambda benchmark: benchmark.name)
def test_every_set_has_templates_of_openai_and_one_of_coop(benchmark):
    names = class_names(benchmark.classes, "clean", benchmark.name)
    assert load_prompts("clip", names, benchmark.name).texts()
    assert len(load_prompts("coop", names, benchmark.name).templates) == 1


def test_templates_by_data_set_are_those_of_their_authors():
    assert load_prompts("coop", (), "dtd").templates == ("{} texture.",)
    assert load_prompts("clip", (), "sun397").templates == ("a photo of a {}.", "a photo of the {}.")
    assert [len(load_prompts("clip", (), name).templates) for name in ("caltech101", "stanfordcars", "ucf101")] == [
        34,
        8,
        48,
    ]
    for name, dataset in (("coop", "pacs"), ("clip", "pacs"), ("clip", None)):
        with pytest.raises(ValueError, match=rf"prompts: '{name}' .*; allowed are single, watt, clip80 and a file"):
            load_prompts(name, (), dataset)
