"""The public layouts of the benchmarks are all recognised, and one's own folders too."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from clip_tca.datasets.folder import load_benchmark, load_folder
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.registry import BENCHMARKS
from tests.conftest import MINI


def make(root: Path, *paths: str) -> Path:
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4 + number % 5, 4), "white").save(root / path)
    return root


PACS = ("art_painting", "cartoon", "photo", "sketch")
LAYOUTS = [
    ("pacs", [f"PACS/{d}/dog/1.jpg" for d in PACS]),
    ("pacs", [f"PACS/kfold/{d}/dog/1.jpg" for d in PACS]),
    ("pacs", [f"{d}/dog/1.jpg" for d in PACS]),
    ("pacs", [f"pacs/kfold/{d}/Dog/1.PNG" for d in ("Art_Painting", "CARTOON", "Photo", "SKETCH")]),
    ("pacs", [f"data/pacs_data/{d}/dog/1.jpg" for d in ("art painting", "cartoon", "photo", "sketch")]),
    *[
        (
            "officehome",
            [f"OfficeHomeDataset_10072016/{d}/Alarm_Clock/1.jpg" for d in ("Art", "Clipart", "Product", real)],
        )
        for real in ("Real World", "RealWorld", "Real_World", "real_world", "Real")
    ],
    ("officehome", [f"office_home/{d}/alarm clock/1.jpg" for d in ("art", "clipart", "product", "real_world")]),
    ("vlcs", [f"VLCS/{d}/bird/1.jpg" for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007")]),
    ("vlcs", [f"VLCS/{d}/full/0/1.jpg" for d in ("CALTECH", "LABELME", "SUN", "PASCAL")]),
    ("vlcs", [f"VLCS/{d}/test/0/1.jpg" for d in ("caltech", "labelme", "sun", "voc")]),
    ("terra", [f"terra_incognita/location_{d}/bird/1.jpg" for d in (38, 43, 46, 100)]),
    ("office31", [f"office31/{d}/images/back_pack/frame_0001.jpg" for d in ("amazon", "dslr", "webcam")]),
    ("office31", [f"{d}/back_pack/frame_0001.jpg" for d in ("amazon", "dslr", "webcam")]),
]


@pytest.mark.parametrize(("name", "paths"), LAYOUTS)
def test_every_known_layout_is_found(name, paths, tmp_path):
    data = load_benchmark(make(tmp_path, *paths), BENCHMARKS[name])
    assert list(data.domains) == list(BENCHMARKS[name].domains)
    assert [domain.labels for domain in data.domains.values()] == [[0]] * len(data.domains)
    assert data.classes == BENCHMARKS[name].classes
    for domain in data.domains.values():
        assert Path(domain.picture(0)).is_file()


def test_the_right_data_set_is_taken_from_a_folder_with_several(tmp_path):
    pacs, office = LAYOUTS[0][1], LAYOUTS[5][1]
    make(tmp_path, *pacs, *office)
    assert "PACS" in load_benchmark(tmp_path, BENCHMARKS["pacs"]).origin["path"]
    assert "Office" in load_benchmark(tmp_path, BENCHMARKS["officehome"]).origin["path"]


def test_numeric_class_folders_follow_the_class_order(tmp_path):
    data = load_benchmark(make(tmp_path, *[f"VLCS/SUN/full/{i}/a.jpg" for i in range(5)]), BENCHMARKS["vlcs"])
    assert data.domains["SUN09"].labels == [0, 1, 2, 3, 4]
    assert [name.split("/")[1] for name in data.domains["SUN09"].names] == list("01234")


def test_full_is_not_counted_twice_beside_its_parts(tmp_path):
    paths = [f"VLCS/SUN/{split}/0/{n}.jpg" for split, n in [("full", 1), ("full", 2), ("train", 1), ("test", 2)]]
    assert len(load_benchmark(make(tmp_path, *paths), BENCHMARKS["vlcs"]).domains["SUN09"]) == 2


def test_parts_are_joined_where_there_is_no_full(tmp_path):
    paths = [f"VLCS/SUN/{split}/0/{n}.jpg" for split, n in [("crossval", 3), ("train", 1), ("test", 2)]]
    assert len(load_benchmark(make(tmp_path, *paths), BENCHMARKS["vlcs"]).domains["SUN09"]) == 3


def test_what_is_not_used_is_listed_and_hidden_files_are_not_images(tmp_path):
    make(tmp_path, "PACS/photo/dog/1.jpg", "PACS/photo/cat/1.jpg", "PACS/photo/dog/._1.jpg", "PACS/oil/dog/1.jpg")
    (tmp_path / "PACS/photo/dog/notes.txt").write_text("hello")
    data = load_benchmark(tmp_path, BENCHMARKS["pacs"])
    assert data.domains["photo"].names == ["dog/1.jpg"]
    assert set(data.ignored) == {"oil", "photo/cat", "photo/dog/notes.txt"}


def test_counts_are_compared_with_the_published_ones(tmp_path):
    data = load_benchmark(make(tmp_path, *LAYOUTS[0][1]), BENCHMARKS["pacs"])
    assert data.differences()[2] == "photo 1 images of 1670"
    assert len(data.differences()) == 4


def test_published_counts_by_class_add_up():
    for benchmark in BENCHMARKS.values():
        for domain, counts in benchmark.class_images.items():
            assert sum(counts) == benchmark.images[domain]
            assert len(counts) == len(benchmark.classes)


DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


@pytest.mark.parametrize("beside", ["", "splits/"])
def test_domainnet_is_what_its_official_test_lists_name(beside, tmp_path):
    names = ("aircraft_carrier/a_1.jpg", "aircraft_carrier/a_2.jpg", "zigzag/z_1.jpg")
    make(tmp_path, *[f"{d}/{name}" for d in DOMAINNET for name in names])
    for domain in DOMAINNET:
        lists = tmp_path / beside / f"{domain}_test.txt"
        lists.parent.mkdir(exist_ok=True)
        lists.write_text(f"{domain}/aircraft_carrier/a_2.jpg 0\n{domain}/zigzag/z_1.jpg 344\n")
    data = load_benchmark(tmp_path, BENCHMARKS["domainnet"])
    assert list(data.domains) == list(DOMAINNET)
    assert data.domains["real"].names == ["aircraft_carrier/a_2.jpg", "zigzag/z_1.jpg"]
    assert data.domains["real"].labels == [0, 344]
    (tmp_path / beside / "real_test.txt").unlink()
    assert len(load_benchmark(tmp_path, BENCHMARKS["domainnet"]).domains["real"]) == 3


def test_a_benchmark_without_verified_counts_has_nothing_to_differ_from(tmp_path):
    data = load_benchmark(make(tmp_path, "L38/bird/1.jpg", "L38/dog/1.jpg"), BENCHMARKS["terra"])
    assert (data.expected, data.differences()) == ({}, [])


def test_the_order_does_not_depend_on_the_file_system(tmp_path):
    make(tmp_path, *[f"PACS/photo/{c}/{n}.jpg" for c in ("house", "dog") for n in ("b", "a", "C")])
    names = load_benchmark(tmp_path, BENCHMARKS["pacs"]).domains["photo"].names
    assert names == ["dog/C.jpg", "dog/a.jpg", "dog/b.jpg", "house/C.jpg", "house/a.jpg", "house/b.jpg"]


def test_a_folder_without_the_data_set_says_how_it_must_look(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no VLCS found.*VLCS/\{Caltech101, LabelMe, SUN09, VOC2007\}/\{bird"):
        load_benchmark(make(tmp_path, "cats/1.jpg"), BENCHMARKS["vlcs"])
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_benchmark(tmp_path / "nowhere", BENCHMARKS["vlcs"])


def test_ones_own_folder_with_and_without_domains(tmp_path):
    make(tmp_path, *[f"own/{d}/{c}/1.jpg" for d in ("day", "night") for c in ("cat", "dog")])
    data = load_folder(tmp_path / "own")
    assert (list(data.domains), data.classes) == (["day", "night"], ["cat", "dog"])
    single = load_folder(tmp_path / "own" / "day")
    assert list(single.domains) == ["day"]
    assert single.domains["day"].labels == [0, 1]


def test_a_class_may_be_missing_in_a_domain_but_keeps_its_label(tmp_path):
    make(tmp_path, "day/cat/1.jpg", "day/dog/1.jpg", "night/dog/1.jpg")
    assert load_folder(tmp_path).domains["night"].labels == [1]


@pytest.mark.parametrize(
    ("paths", "reason"),
    [(["cat/1.jpg"], "1 class"), (["a/cat/1.jpg", "b/1.jpg"], "one layout"), (["1.jpg"], "0 class")],
)
def test_a_folder_that_is_neither_layout_is_refused(paths, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        load_folder(make(tmp_path, *paths))


def test_some_domains_can_be_chosen_in_any_spelling(tmp_path):
    make(tmp_path, *LAYOUTS[5][1])
    data = ImageSource("officehome", str(tmp_path), domains=("real_world", "Art")).load()
    assert list(data.domains) == ["Real World", "Art"]
    assert len(data.differences()) == 2
    with pytest.raises(ValueError, match=r"'Quickdraw'.*Clipart"):
        ImageSource("officehome", str(tmp_path), domains=("Quickdraw",)).load()


def test_a_changed_file_changes_the_fingerprint_and_a_moved_folder_does_not(tmp_path):
    make(tmp_path / "one", *LAYOUTS[0][1])
    before = load_benchmark(tmp_path / "one", BENCHMARKS["pacs"]).domains["photo"].fingerprint()
    (tmp_path / "one").rename(tmp_path / "two")
    assert load_benchmark(tmp_path / "two", BENCHMARKS["pacs"]).domains["photo"].fingerprint() == before
    (tmp_path / "two/PACS/photo/dog/1.jpg").write_bytes(b"changed")
    assert load_benchmark(tmp_path / "two", BENCHMARKS["pacs"]).domains["photo"].fingerprint() != before


@pytest.mark.parametrize(("name", "images"), [("pacs", 700), ("officehome", 1040), ("vlcs", 382)])
def test_the_real_pictures_are_all_found(name, images, mini):
    data = load_benchmark(MINI, BENCHMARKS[name])
    assert sum(map(len, data.domains.values())) == images
    assert data.ignored == []


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["a/Dog/1.jpg", "a/cat/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg"], "'Dog' and 'dog'"),
        (["a/cat/1.jpg", "a/dog/1.jpg", "a/cover.png", "b/cat/1.jpg", "b/cover.png"], "holds folders of images"),
    ],
)
def test_what_would_be_misread_is_refused(paths, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        load_folder(make(tmp_path, *paths))


def test_of_two_folders_for_a_domain_the_fuller_one_counts(tmp_path):
    make(tmp_path, "RealWorld/Bed/1.jpg", "Art/Bed/1.jpg")
    (tmp_path / "Real World" / "Bed").mkdir(parents=True)
    data = load_benchmark(tmp_path, BENCHMARKS["officehome"])
    assert len(data.domains["Real World"]) == 1
    assert data.ignored == ["Real World"]
    make(tmp_path, "VLCS/SUN/train/0/1.jpg")
    (tmp_path / "VLCS/SUN/full/0").mkdir(parents=True)
    assert len(load_benchmark(tmp_path / "VLCS", BENCHMARKS["vlcs"]).domains["SUN09"]) == 1


def test_a_link_to_nowhere_is_an_image_that_cannot_be_read(tmp_path):
    make(tmp_path, "cat/1.jpg", "dog/1.jpg")
    (tmp_path / "dog/2.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert len(load_folder(tmp_path).domains[tmp_path.name]) == 3
