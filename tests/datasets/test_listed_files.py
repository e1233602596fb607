"""CoOp's folders: the test images are those that its file lists, in any order on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.registry import BENCHMARKS


def picture(path: Path, red: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (red, 0, 0)).save(path)


def eurosat(folder: Path, test: object = None) -> Path:
    """As CoOp's page lays it out: pictures in ``2750/CLASS/``, and a file that divides them."""
    names = [f"{name}/{name}_{i}.jpg" for name in ("SeaLake", "AnnualCrop") for i in (1, 2)]
    for number, name in enumerate(names):
        picture(folder / "2750" / name, number)
    lists = {"train": [[names[3], 0, "Annual Crop Land"]], "val": [], "test": [
        [names[0], 9, "Sea or Lake"], [names[2], 0, "Annual Crop Land"], [names[1], 9, "Sea or Lake"]]}  # fmt: skip
    (folder / "split_zhou_EuroSAT.json").write_text(json.dumps(lists if test is None else {"test": test}))
    return folder


def load(folder: Path, dataset: str = "eurosat"):
    return ImageSource(dataset, data_dir=folder).load()


@pytest.mark.parametrize("level", [".", "eurosat"])
def test_only_the_test_images_are_used_and_the_record_says_whose_split_it_is(level, tmp_path):
    eurosat(tmp_path / level)
    data = load(tmp_path)
    assert data.domains["test"].names == [
        "AnnualCrop/AnnualCrop_1.jpg",
        "SeaLake/SeaLake_1.jpg",
        "SeaLake/SeaLake_2.jpg",
    ]
    assert data.domains["test"].labels == [0, 9, 9]
    assert data.domains["test"].image(1).getpixel((0, 0))[0] < 5
    assert data.origin["split"] == "CoOp's, split_zhou_EuroSAT.json"
    assert data.differences() == ["test 3 images of 8100"]


def test_aircraft_s_own_list_names_number_and_variant(tmp_path):
    for number in ("0034309", "1514522"):
        picture(tmp_path / "images" / f"{number}.jpg")
    (tmp_path / "images_variant_test.txt").write_text("1514522 F-16A/B\n0034309 707-320\n")
    data = load(tmp_path, "fgvcaircraft")
    assert data.domains["test"].names == ["0034309.jpg", "1514522.jpg"]
    assert [data.classes[label] for label in data.domains["test"].labels] == ["707-320", "F-16A/B"]
    (tmp_path / "images_variant_test.txt").write_text("1514522 Concorde\n")
    with pytest.raises(ValueError, match=r"test image 0 is '1514522\.jpg' with label None.*from 0 to 99"):
        load(tmp_path, "fgvcaircraft")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ([["SeaLake/SeaLake_1.jpg", 10, "x"]], r"test image 0 is .* with label 10; .* a label from 0 to 9 are needed"),
        ([["../secret.jpg", 1, "x"]], r"'\.\./secret\.jpg' with label 1; a path below 2750/"),
        ([["/etc/passwd", 1, "x"]], "a path below 2750/"),
        ([["SeaLake/SeaLake_7.jpg", 9, "x"]], r"1 of the 1 images in split_zhou_EuroSAT\.json are not there, such as"),
        ([["a.jpg", 1]], "not a list of test images"),
        ([], "no test image in it"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_in_one_line(test, reason, tmp_path):
    eurosat(tmp_path, test)
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_the_list_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no split_zhou_SUN397\.json, which lists the test images of SUN397"):
        load(tmp_path, "sun397")
    (tmp_path / "split_zhou_EuroSAT.json").write_text("{")
    with pytest.raises(ValueError, match=r"not a list of test images \(.*\); download it again"):
        load(tmp_path)


def test_imagenet_s_own_folders_are_its_test_set_in_each_of_its_releases(tmp_path):
    picture(tmp_path / "imagenet" / "images" / "val" / "n01440764" / "a.JPEG")
    picture(tmp_path / "imagenet" / "images" / "train" / "n01440764" / "b.JPEG")
    data = load(tmp_path / "imagenet", "imagenet")
    assert data.domains["test"].names == ["n01440764/a.JPEG"]
    v2 = tmp_path / "imagenetv2" / "imagenetv2-matched-frequency-format-val"
    for number in ("0", "7", "999"):
        picture(v2 / number / "a.jpeg")
    assert load(tmp_path / "imagenetv2", "imagenet-v2").domains["test"].labels == [0, 7, 999]
    picture(tmp_path / "imagenet-adversarial" / "imagenet-a" / "n12267677" / "a.jpg")
    assert load(tmp_path / "imagenet-adversarial", "imagenet-a").domains["test"].labels == [199]
    assert BENCHMARKS["imagenet-a"].classes[199] == "n12267677"


def test_in_a_folder_of_all_data_sets_each_finds_its_own(tmp_path):
    picture(tmp_path / "imagenet" / "images" / "val" / "n01440764" / "a.JPEG")
    picture(tmp_path / "imagenet" / "images" / "val" / "n01443537" / "a.JPEG")
    picture(tmp_path / "imagenet-sketch" / "images" / "n01440764" / "sketch.JPEG")
    eurosat(tmp_path / "eurosat")
    assert load(tmp_path, "imagenet").domains["test"].names == ["n01440764/a.JPEG", "n01443537/a.JPEG"]
    assert load(tmp_path, "imagenet-sketch").domains["test"].names == ["n01440764/sketch.JPEG"]
    assert len(load(tmp_path).domains["test"]) == 3
