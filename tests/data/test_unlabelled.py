"""Pictures without labels are found wherever they are, under names that a person can follow."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_tca.data.unlabelled import load_pictures


def draw(path: Path, colour: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), (colour, 40, 90)).save(path)
    return path


@pytest.fixture
def tree(tmp_path) -> Path:
    root = tmp_path / "tree"
    for colour, name in enumerate(["b.jpg", "day/a.png", "day/deep/c.PNG", "night/a.png", ".hidden/x.png"]):
        draw(root / name, colour)
    (root / "notes.txt").write_text("not a picture")
    return root


def names(pictures, **options) -> list[str]:
    return [name for domain in load_pictures(pictures, **options).domains.values() for name in domain.names]


ALL = ["b.jpg", "day/a.png", "day/deep/c.PNG", "night/a.png"]


def test_a_tree_is_read_to_its_leaves_without_hidden_files_and_tells_what_it_left_out(tree):
    data = load_pictures(tree)
    assert data.domains["pictures"].names == ALL
    assert data.ignored == ["notes.txt"]
    assert data.domains["pictures"].labels == [-1] * 4  # nobody knows


def test_subfolders_are_domains_only_if_asked(tree):
    assert list(load_pictures(str(tree)).domains) == ["pictures"]
    domains = load_pictures(tree, by_domain=True).domains
    assert {name: domain.names for name, domain in domains.items()} == {
        "day": ["day/a.png", "day/deep/c.PNG"],
        "night": ["night/a.png"],
        "tree": ["b.jpg"],
    }


def test_files_folders_and_patterns_are_named_as_they_were_given_and_none_twice(tree):
    one, day = str(tree / "b.jpg"), str(tree / "day")
    assert names([one, day, one]) == [one, f"{day}/a.png", f"{day}/deep/c.PNG"]
    assert names(f"{tree}/*/a.png") == [f"{tree}/day/a.png", f"{tree}/night/a.png"]
    assert len(names(f"{tree}/**/*.png")) == 2
    assert names(one) == ["b.jpg"]


def test_a_text_file_lists_pictures_beside_it(tree):
    (tree / "some.txt").write_text("b.jpg\n\nnight/a.png\n")
    assert [Path(name).name for name in names(tree / "some.txt")] == ["b.jpg", "a.png"]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_an_archive_is_a_tree_and_unpacked_once(suffix, tree, store):
    archive = tree.parent / f"pictures{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name in ALL:
                file.write(tree / name, name)
    else:
        with tarfile.open(archive, "w:gz") as file:
            for name in ALL:
                file.add(tree / name, name)
    assert names(archive) == ALL
    shutil.rmtree(tree)
    assert names(archive) == ALL
    assert len(list((store / "data" / "archives").glob(f"pictures{suffix}*"))) == 1


def test_rows_of_a_parquet_file_need_no_label_column(tree):
    files = [(tree / name).read_bytes() for name in ALL]
    path = tree.parent / "rows.parquet"
    pq.write_table(pa.table({"image": files, "style": ["x", "y", "x", "y"]}), path)
    assert sorted(names(path)) == ["0", "1", "2", "3"]
    assert {name: domain.names for name, domain in load_pictures(path, by_domain=True).domains.items()} == {
        "x": ["0", "2"],
        "y": ["1", "3"],
    }
    assert names(None, hub_id=str(path)) == names(path)


def test_an_address_in_a_store_is_copied_and_read(tree, place):
    store, key = fsspec.core.url_to_fs(place, use_listings_cache=False)
    for name in ALL:
        store.pipe_file(f"{key}/box/{name}", (tree / name).read_bytes())
    assert names(f"{place}/box") == ALL
    assert [name.rpartition("/box/")[2] for name in names(f"{place}/box/*/a.png")] == ["day/a.png", "night/a.png"]


def test_images_and_arrays_of_memory_are_pictures_without_loss(tree):
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    data = load_pictures([Image.fromarray(values), values, tree / "b.jpg", values[..., 0]])
    domain = data.domains["pictures"]
    assert [np.array_equal(np.asarray(domain.image(i)), values) for i in (0, 1)] == [True, True]
    assert np.array_equal(np.asarray(domain.image(3))[..., 1], values[..., 0])
    assert len(set(domain.names)) == 4
    assert len(load_pictures(np.stack([values, values])).domains["pictures"]) == 2


@pytest.mark.parametrize(
    ("pictures", "reason"),
    [
        ("{}/empty", "no picture in it; pictures end with .jpg"),
        ("{}/words", "1 other files there, such as a.doc"),
        ("{}/nowhere", "nowhere is not a file or folder"),
        ("{}/*.webp", r"nothing matches .*\*\.webp"),
        (np.zeros((3, 4)), r"float64 of shape \(3, 4\); allowed are paths, PIL images"),
        ([], "nothing was given"),
    ],
)
def test_what_holds_no_picture_is_one_line(pictures, reason, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.doc").write_text("x")
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        load_pictures(pictures.format(tmp_path) if isinstance(pictures, str) else pictures)


def test_the_demo_s_pictures_are_named_without_their_classes():
    data = load_pictures("demo", by_domain=True)
    assert {name: len(domain) for name, domain in data.domains.items()} == {"clipart": 572, "icon": 645, "sketch": 626}
    assert data.domains["icon"].names[:2] == ["icon/0.png", "icon/1.png"]
    assert {label for domain in data.domains.values() for label in domain.labels} == {-1}
