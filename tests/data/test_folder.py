"""The public layouts of the benchmarks are all recognised, corruptions as arrays and folders, and one's own folders."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_tca.cli import main
from clip_tca.data.folder import load_benchmark, load_folder
from clip_tca.data.image_source import ImageSource
from clip_tca.data.registry import BENCHMARKS, COMMON, CORRUPTIONS
from tests.conftest import MINI


def make(root: Path, *paths: str) -> Path:
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4 + number % 5, 4), "white").save(root / path)
    return root


def read(name: str, root: Path, *paths: str):
    return load_benchmark(make(root, *paths), BENCHMARKS[name])


def load(name: str, folder: Path, *corruptions: str, severities: tuple[int, ...] = ()):
    return ImageSource(name, folder, corruptions=corruptions, severities=severities).load()


PACS = "PACS/{}/dog/1.jpg", "art_painting|cartoon|photo|sketch"
OFFICE = "OfficeHomeDataset_10072016/{}/Alarm_Clock/1.jpg"
LAYOUTS = [
    ("pacs", *PACS),
    ("pacs", "PACS/kfold/{}/dog/1.jpg", PACS[1]),
    ("pacs", "{}/dog/1.jpg", PACS[1]),
    ("pacs", "pacs/kfold/{}/Dog/1.PNG", "Art_Painting|CARTOON|Photo|SKETCH"),
    *(("officehome", OFFICE, f"Art|Clipart|Product|{real}") for real in ("Real World", "RealWorld", "Real")),
    ("officehome", "office_home/{}/alarm clock/1.jpg", "art|clipart|product|real_world"),
    ("vlcs", "VLCS/{}/bird/1.jpg", "Caltech101|LabelMe|SUN09|VOC2007"),
    ("vlcs", "VLCS/{}/full/0/1.jpg", "CALTECH|LABELME|SUN|PASCAL"),
    ("vlcs", "VLCS/{}/test/0/1.jpg", "caltech|labelme|sun|voc"),
    ("terra", "terra_incognita/location_{}/bird/1.jpg", "38|43|46|100"),
    ("office31", "office31/{}/images/back_pack/frame_0001.jpg", "amazon|dslr|webcam"),
    ("office31", "{}/back_pack/frame_0001.jpg", "amazon|dslr|webcam"),
]


def paths(layout: str, domains: str) -> list[str]:
    return [layout.format(domain) for domain in domains.split("|")]


@pytest.mark.parametrize(("name", "layout", "domains"), LAYOUTS)
def test_every_known_layout_is_found(name, layout, domains, tmp_path):
    data = read(name, tmp_path, *paths(layout, domains))
    assert list(data.domains) == list(BENCHMARKS[name].domains)
    assert [domain.labels for domain in data.domains.values()] == [[0]] * len(data.domains)
    assert data.classes == BENCHMARKS[name].classes
    assert all(domain.image(0).height == 4 for domain in data.domains.values())


@pytest.mark.parametrize(("name", "images"), [("pacs", 700), ("officehome", 1040), ("vlcs", 382)])
def test_the_real_pictures_are_all_found_in_a_folder_with_several_data_sets(name, images, mini):
    data = load_benchmark(MINI, BENCHMARKS[name])
    assert sum(map(len, data.domains.values())) == images
    assert data.ignored == []


def test_full_is_not_counted_twice_beside_its_parts_and_parts_are_joined_without_it(tmp_path):
    (tmp_path / "VLCS/PASCAL/full/0").mkdir(parents=True)  # empty
    whole = [f"VLCS/SUN/{place}.jpg" for place in ("full/0/1", "full/0/2", "train/0/1", "test/0/2")]
    parts = [f"VLCS/PASCAL/{place}.jpg" for place in ("crossval/0/3", "train/0/1", "test/0/2")]
    data = read("vlcs", tmp_path, *whole, *parts)
    assert {name: len(domain) for name, domain in data.domains.items()} == {"SUN09": 2, "VOC2007": 3}


def test_of_two_folders_for_a_domain_the_fuller_one_counts(tmp_path):
    (tmp_path / "Real World" / "Bed").mkdir(parents=True)
    data = read("officehome", tmp_path, "RealWorld/Bed/1.jpg", "Art/Bed/1.jpg")
    assert len(data.domains["Real World"]) == 1
    assert data.ignored == ["Real World"]


def test_what_is_not_used_is_listed_and_hidden_files_are_not_images(tmp_path):
    make(tmp_path, "PACS/photo/dog/1.jpg", "PACS/photo/cat/1.jpg", "PACS/photo/dog/._1.jpg", "PACS/oil/dog/1.jpg")
    (tmp_path / "PACS/photo/dog/notes.txt").write_text("hello")
    data = read("pacs", tmp_path)
    assert data.domains["photo"].names == ["dog/1.jpg"]
    assert set(data.ignored) == {"oil", "photo/cat", "photo/dog/notes.txt"}


def test_counts_are_compared_with_the_published_ones_if_there_are_any(tmp_path):
    differences = read("pacs", tmp_path, *paths(*PACS)).differences()
    assert (len(differences), differences[2]) == (4, "photo 1 images of 1670")
    data = read("terra", tmp_path, "L38/bird/1.jpg", "L38/dog/1.jpg")
    assert (data.expected, data.differences()) == ({}, [])


@pytest.mark.parametrize("beside", ["", "splits/"])
def test_domainnet_is_what_its_official_test_lists_name(beside, tmp_path):
    names = ("aircraft_carrier/a_1.jpg", "aircraft_carrier/a_2.jpg", "zigzag/z_1.jpg")
    make(tmp_path, *[f"{domain}/{name}" for domain in ("real", "sketch") for name in names])
    (tmp_path / beside).mkdir(exist_ok=True)
    (tmp_path / beside / "real_test.txt").write_text("real/aircraft_carrier/a_2.jpg 0\nreal/zigzag/z_1.jpg 344\n")
    data = read("domainnet", tmp_path)
    assert data.domains["real"].names == ["aircraft_carrier/a_2.jpg", "zigzag/z_1.jpg"]
    assert data.domains["real"].labels == [0, 344]
    assert len(data.domains["sketch"]) == 3, "without a list it is all of them"


def test_the_order_does_not_depend_on_the_file_system(tmp_path):
    data = read("pacs", tmp_path, *[f"PACS/photo/{c}/{n}.jpg" for c in ("house", "dog") for n in ("b", "a", "C")])
    expected = ["dog/C.jpg", "dog/a.jpg", "dog/b.jpg", "house/C.jpg", "house/a.jpg", "house/b.jpg"]
    assert data.domains["photo"].names == expected


def test_ones_own_folder_with_and_without_domains(tmp_path):
    make(tmp_path, *[f"own/{place}/1.jpg" for place in ("day/cat", "day/dog", "night/dog")])
    (tmp_path / "own/night/dog/2.jpg").symlink_to(tmp_path / "nowhere.jpg")
    data = load_folder(tmp_path / "own")
    assert (list(data.domains), data.classes) == (["day", "night"], ["cat", "dog"])
    assert data.domains["night"].labels == [1, 1], "a link to nowhere is an image, so that it is reported"
    single = load_folder(tmp_path / "own" / "day")
    assert (list(single.domains), single.domains["day"].labels) == (["day"], [0, 1])


def test_pictures_beside_the_folders_and_empty_folders_are_reported(tmp_path, capsys):
    root = make(tmp_path, *[f"own/{name}" for name in ("day/cat/1.jpg", "day/dog/1.jpg", "night/dog/1.jpg", "a.jpg")])
    for empty in ("day/horse", "night/cat"):
        (root / "own" / empty).mkdir()
    found = [f"{name} (no pictures directly in it)" for name in ("day/horse", "night/cat")]
    assert load_folder(root / "own").ignored == ["a.jpg (beside the folders)", *found]
    (root / "own" / "day" / "b.jpg").write_bytes(b"x")
    beside = ["b.jpg (beside the folders)", "day/horse (no pictures directly in it)"]
    assert load_folder(root / "own" / "day").ignored == beside
    main(["data", "check", "--dataset", "folder", "--data-dir", str(root / "own" / "day")])
    out = capsys.readouterr().out
    assert all(f"extra, not used: {name}" in out for name in beside)


def test_some_domains_can_be_chosen_in_any_spelling(tmp_path):
    make(tmp_path, *paths(OFFICE, "Art|Clipart|Product|Real World"))
    data = ImageSource("officehome", tmp_path, domains=("real_world", "Art")).load()
    assert list(data.domains) == ["Real World", "Art"]
    assert len(data.differences()) == 2
    with pytest.raises(ValueError, match=r"'Quickdraw'.*Clipart"):
        ImageSource("officehome", tmp_path, domains=("Quickdraw",)).load()


def test_a_changed_file_changes_the_fingerprint_and_a_moved_folder_does_not(tmp_path):
    before = read("pacs", tmp_path / "one", *paths(*PACS)).domains["photo"].fingerprint()
    (tmp_path / "one").rename(tmp_path / "two")
    assert read("pacs", tmp_path / "two").domains["photo"].fingerprint() == before
    (tmp_path / "two/PACS/photo/dog/1.jpg").write_bytes(b"changed")
    assert read("pacs", tmp_path / "two").domains["photo"].fingerprint() != before


# -- corruptions -------------------------------------------------------------------------------------------------------

N = 12
"""Images of a severity."""


def arrays(folder: Path, *corruptions: str, labels: int = 5 * N, classes: int = 10) -> Path:
    """As CIFAR's are published: every pixel of row i is i, so that a picture says where it came from."""
    folder.mkdir(parents=True)
    pixels = np.arange(5 * N, dtype=np.uint8)[:, None, None, None]
    for corruption in corruptions:
        np.save(folder / f"{corruption}.npy", np.broadcast_to(pixels, (5 * N, 32, 32, 3)).copy())
    np.save(folder / "labels.npy", np.arange(labels, dtype=np.uint8) % N % classes)
    return folder


@pytest.mark.parametrize("labels", [5 * N, N])
def test_the_five_severities_of_an_array_are_in_order_with_their_labels(labels, tmp_path):
    arrays(tmp_path / "CIFAR-10-C", "fog", labels=labels)
    data = load("cifar10-c", tmp_path, "fog", severities=(3, 1))
    assert list(data.domains) == ["fog:3", "fog:1"]
    third = pickle.loads(pickle.dumps(data.domains["fog:3"]))  # noqa: S301 (for worker processes)
    assert third.labels == [i % N % 10 for i in range(N)]
    assert third.names[:2] == ["airplane/24", "automobile/25"]
    assert [third.image(i).getpixel((31, 0)) for i in range(N)] == [(24 + i,) * 3 for i in range(N)]
    assert third.image(0).size == (32, 32)
    assert data.domains["fog:1"].fingerprint() != third.fingerprint()


def test_the_15_common_corruptions_at_severity_5_are_the_default(tmp_path):
    arrays(tmp_path / "data", *CORRUPTIONS)
    data = load("cifar10-c", tmp_path)
    assert list(data.domains) == [f"{name}:5" for name in COMMON]
    assert data.differences()[0] == "gaussian_noise:5 12 images of 10000"
    assert list(load("cifar10-c", tmp_path, "Speckle Noise", "fog").domains) == ["speckle_noise:5", "fog:5"]


def test_each_cifar_is_found_beside_the_other(tmp_path):
    arrays(tmp_path / "CIFAR-100-C", "fog", classes=100)
    arrays(tmp_path / "CIFAR-10-C", "fog")
    for name, folder in (("cifar10-c", "CIFAR-10-C"), ("cifar100-c", "CIFAR-100-C")):
        assert Path(load(name, tmp_path, "fog").origin["path"]).name == folder


@pytest.mark.parametrize("root", ["", "ImageNet-C/", "ImageNet-C/weather/"])
def test_corruption_severity_class_folders_are_found_under_groups_too(root, tmp_path):
    make(
        tmp_path,
        *[f"{root}fog/{s}/{name}/{i}.JPEG" for s in (1, 5) for name in ("n01440764", "n01443537") for i in "12"],
    )
    make(tmp_path, f"{root}fog/5/cats/1.JPEG")
    data = load("imagenet-c", tmp_path, "fog", severities=(1, 5))
    assert list(data.domains) == ["fog:1", "fog:5"]
    assert data.domains["fog:5"].labels == [0, 0, 1, 1]
    assert data.domains["fog:5"].names[0] == "n01440764/1.JPEG"
    assert data.differences()[0] == "fog:1 4 images of 50000"
    assert data.ignored == ["fog:5/cats"]


# -- CoOp's folders: the test images are those that its file lists -----------------------------------------------------


def eurosat(folder: Path, test: object = None) -> Path:
    """As CoOp's page lays it out: pictures in ``2750/CLASS/``, and a file that divides them."""
    names = [f"{name}/{name}_{i}.jpg" for name in ("SeaLake", "AnnualCrop") for i in (1, 2)]
    make(folder, *(f"2750/{name}" for name in names))
    lists = {"train": [[names[3], 0, "Annual Crop Land"]], "val": [], "test": [
        [names[0], 9, "Sea or Lake"], [names[2], 0, "Annual Crop Land"], [names[1], 9, "Sea or Lake"]]}  # fmt: skip
    (folder / "split_zhou_EuroSAT.json").write_text(json.dumps(lists if test is None else {"test": test}))
    return folder


@pytest.mark.parametrize("level", [".", "eurosat"])
def test_only_the_test_images_are_used_and_the_record_says_whose_split_it_is(level, tmp_path):
    eurosat(tmp_path / level)
    data = load("eurosat", tmp_path)
    names = ["AnnualCrop/AnnualCrop_1.jpg", "SeaLake/SeaLake_1.jpg", "SeaLake/SeaLake_2.jpg"]
    assert data.domains["test"].names == names
    assert data.domains["test"].labels == [0, 9, 9]
    assert data.domains["test"].image(1).size == (4, 4)
    assert data.origin["split"] == "CoOp's, split_zhou_EuroSAT.json"
    assert data.differences() == ["test 3 images of 8100"]


def test_aircraft_s_own_list_names_number_and_variant(tmp_path):
    make(tmp_path, "images/0034309.jpg", "images/1514522.jpg")
    (tmp_path / "images_variant_test.txt").write_text("1514522 F-16A/B\n0034309 707-320\n")
    data = load("fgvcaircraft", tmp_path)
    assert data.domains["test"].names == ["0034309.jpg", "1514522.jpg"]
    assert [data.classes[label] for label in data.domains["test"].labels] == ["707-320", "F-16A/B"]


def test_in_a_folder_of_all_data_sets_each_finds_its_own_test_images(tmp_path):
    """ImageNet's folders need no list."""
    make(
        tmp_path,
        "imagenet/images/val/n01440764/a.JPEG",
        "imagenet/images/train/n01440764/b.JPEG",
        "imagenet-sketch/images/n01440764/sketch.JPEG",
        "imagenetv2/imagenetv2-matched-frequency-format-val/7/a.jpeg",
        "imagenetv2/imagenetv2-matched-frequency-format-val/999/a.jpeg",
        "imagenet-adversarial/imagenet-a/n12267677/a.jpg",
    )
    eurosat(tmp_path / "eurosat")
    assert load("imagenet", tmp_path).domains["test"].names == ["n01440764/a.JPEG"]
    assert load("imagenet-sketch", tmp_path).domains["test"].names == ["n01440764/sketch.JPEG"]
    assert load("imagenet-v2", tmp_path / "imagenetv2").domains["test"].labels == [7, 999]
    assert load("imagenet-a", tmp_path / "imagenet-adversarial").domains["test"].labels == [199]
    assert BENCHMARKS["imagenet-a"].classes[199] == "n12267677"
    assert len(load("eurosat", tmp_path).domains["test"]) == 3


# -- errors ------------------------------------------------------------------------------------------------------------


def cifar(**files: np.ndarray | bytes) -> Callable[[Path], object]:
    """Make CIFAR-10-C with other files of these names, and load it."""

    def call(root: Path) -> object:
        arrays(root / "CIFAR-10-C", "fog")
        for name, content in files.items():
            path = root / "CIFAR-10-C" / f"{name}.npy"
            np.save(path, content) if isinstance(content, np.ndarray) else path.write_bytes(content)
            if not len(content):
                path.unlink()
        return load("cifar10-c", root, "fog")

    return call


def own(*files: str) -> Callable[[Path], object]:
    return lambda root: load_folder(make(root, *files))


def listed(*rows: list[object]) -> Callable[[Path], object]:
    return lambda root: load("eurosat", eurosat(root, list(rows)))


def aircraft(root: Path) -> object:
    (root / "images_variant_test.txt").write_text("1514522 Concorde\n")
    return load("fgvcaircraft", make(root, "images/1514522.jpg"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda root: read("vlcs", root, "cats/1.jpg"), "no VLCS VLCS/{Caltech101, LabelMe, SUN09, VOC2007}/{bird"),
        (lambda root: load_benchmark(root / "nowhere", BENCHMARKS["vlcs"]), "nowhere no such folder --data-dir"),
        (lambda root: read("sun397", root), "no SUN397 SUN397/split_zhou_SUN397.json with the images"),
        (own("cat/1.jpg"), "1 class"),
        (own("1.jpg"), "0 class"),
        (own("a/cat/1.jpg", "b/1.jpg"), "one layout"),
        (own("a/Dog/1.jpg", "a/cat/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg"), "'Dog' and 'dog'"),
        (own("a/cat/1.jpg", "a/dog/1.jpg", "a/cover.png", "b/cat/1.jpg", "b/cover.png"), "holds folders of images"),
        (lambda root: load("cifar10-c", arrays(root / "CIFAR-100-C", "fog").parent), "no CIFAR-10-C .npy"),
        (cifar(labels=np.zeros(7, int)), "labels.npy (7,) 60 images"),
        (cifar(labels=b""), "labels.npy no such file CIFAR-10-C"),
        (cifar(labels=np.full(60, 55)), "labels.npy from 0 to 9"),
        (cifar(labels=np.zeros(60)), "labels.npy float64 (60,)"),
        (cifar(fog=np.zeros((58, 32, 32, 3), np.uint8)), "fog.npy (58, 32, 32, 3)"),
        (cifar(fog=np.zeros((60, 32, 32))), "fog.npy float64 (60, 32, 32)"),
        (cifar(fog=b"\x93NUMPY"), "fog.npy not a complete .npy file"),
        # found by fuzzing: NumPy's parser said TokenError
        (cifar(fog=b"\x93NUMPY\x01\x00\x16\x00{'descr': '|u1', 's\x00\x00\n"), "fog.npy not a complete .npy file"),
        (lambda root: load("cifar10-c", root, "rain"), "corruption 'rain' gaussian_noise, shot_noise"),
        (lambda root: load("cifar10-c", root, severities=(6,)), "severity 6 1, 2, 3, 4, 5"),
        (lambda root: load("cifar10-c", arrays(root / "x", "fog"), "fog", "snow"), "corruption snow:5 is not in"),
        (lambda root: load("pacs", root, "fog"), "corruption pacs has none cifar10-c, cifar100-c, imagenet-c"),
        (lambda root: ImageSource("imagenet-c").load(), "no copy of ImageNet-C --data-dir"),
        (aircraft, "test image 0 '1514522.jpg' label None from 0 to 99"),
        (listed(["SeaLake/SeaLake_1.jpg", 10, "x"]), "test image 0 label 10 from 0 to 9"),
        (listed(["../secret.jpg", 1, "x"]), "'../secret.jpg' below 2750/"),
        (listed(["SeaLake/SeaLake_7.jpg", 9, "x"]), "1 of the 1 images split_zhou_EuroSAT.json"),
        (listed(["a.jpg", 1]), "not a list of test images"),
        (listed(), "no test image in it"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_it(call, words, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words.split())
