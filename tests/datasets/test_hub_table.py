"""Webdataset shards, in the layout of CLIP_benchmark's copies, from a hub on 127.0.0.1 and from a folder."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import pytest
from PIL import Image

from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.registry import BENCHMARKS
from tests.hub import Hub
from tests.tiny_clip import MODEL

PETS = BENCHMARKS["oxfordpets"]


def shard(path: Path, labels: list[object], first: int = 0, suffix: str = "webp") -> None:
    """A tar file as webdataset writes it: ``s0000000.webp`` and ``s0000000.cls``, and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i, label in enumerate(labels, first):
            picture = io.BytesIO()
            Image.new("RGB", (40, 40 + i), (i * 9 % 256, 80, 200)).save(picture, "PNG" if suffix == "png" else "WEBP")
            for name, content in ((suffix, picture.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"s{i:07d}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def repository(folder: Path, labels: list[object]) -> Path:
    """A copy with two test shards and a training shard."""
    half = len(labels) // 2
    shard(folder / "test" / "0.tar", labels[:half])
    shard(folder / "test" / "1.tar", labels[half:], half)
    shard(folder / "train" / "0.tar", [0])
    (folder / "test" / "nshards.txt").write_text("2\n")
    (folder / "train" / "nshards.txt").write_text("1\n")
    (folder / "classnames.txt").write_text("\n".join(PETS.classes) + "\n")
    (folder / "zeroshot_classification_templates.txt").write_text("a photo of a {c}, a type of pet.\n")
    return folder


@pytest.fixture(autouse=True)
def quiet_home(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def run(hub: Hub, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**hub.environment(tmp_path / "hf"), "CLIP_TCA_CACHE": str(tmp_path / "store")}
    command = [sys.executable, "-m", "clip_tca", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_copy_of_clip_benchmark_is_evaluated_from_the_hub_and_its_training_images_stay_there(tmp_path):
    labels = [i % 37 for i in range(48)]
    with Hub() as hub:
        hub.add_dataset(PETS.hub_id, repository(tmp_path / "pets", labels))
        output = tmp_path / "r.json"
        options = ("--dataset", "oxfordpets", "--model", MODEL, "--prompts", "coop", "--workers", "0")
        done = run(hub, tmp_path, "eval", *options, "--method", "zero-shot", "--output", str(output))
        assert done.returncode == 0, done.stderr
        record = json.loads(output.read_text())
        assert record["data"]["origin"] == {"kind": "hub", "id": PETS.hub_id, "revision": hub.revision}
        assert record["data"]["domains"]["test"]["images"] == 48
        assert record["data"]["domains"]["test"]["per_class"] == [labels.count(label) for label in range(37)]
        assert record["data"]["differences"] == ["test 48 images of 3669"]
        assert record["prompts"]["templates"] == ["a photo of a {}, a type of pet."]
        assert record["prompts"]["classes"][1] == "american bulldog"
        asked = [path for path in hub.requests if "/resolve/" in path]
        assert any(path.endswith("test/1.tar") for path in asked)
        assert not any("train/" in path for path in asked)
    offline = run(hub, tmp_path, "data", "check", "--dataset", "oxfordpets")  # the hub is closed, the cache is enough
    assert "test: 48 images, 3669 published" in offline.stdout, offline.stderr


def test_a_hub_copy_with_another_split_says_whose_it_is_and_has_no_published_rows(tmp_path):
    caltech = BENCHMARKS["caltech101"]
    folder = tmp_path / "wds_vtab-caltech101"
    repository(folder, [0, 101, 4, 37])
    data = ImageSource("caltech101", hub_id=str(folder)).load()
    assert len(data.classes) == 102
    assert [data.classes[label] for label in data.domains["test"].labels] == [
        "accordion", "yin and yang symbol", "background", "off-center face",
    ]  # fmt: skip
    assert data.origin["split"] == "VTAB's"
    assert data.expected == {"test": 6084}
    assert data.other_split.endswith("published results are for CoOp's (2465 images)")
    assert caltech.images == {"test": 2465}
    assert len(caltech.classes) == 100


def test_pictures_are_decoded_when_they_are_asked_for_and_in_the_order_of_the_shards(tmp_path):
    folder = repository(tmp_path / "copy", [5, 6, 7, 8])
    data = ImageSource("oxfordpets", hub_id=str(folder)).load()
    domain = data.domains["test"]
    assert domain.labels == [5, 6, 7, 8]
    assert [domain.image(i).size for i in range(4)] == [(40, 40 + i) for i in range(4)]
    assert domain.names[0] == "bengal/0"


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 1, 37, 2], r"column cls: '37' is not a class of OxfordPets; allowed are its 37 names, and their numbers"),
        ([0, 1, -1, 2], r"column cls: '-1' is not a class of OxfordPets"),
        ([0, "dog", 1, 2], r"could not be loaded as a data set \(invalid literal for int\(\)"),
    ],
)
def test_labels_outside_the_class_list_are_named_in_one_line(labels, reason, tmp_path):
    folder = repository(tmp_path / "copy", labels)
    with pytest.raises(ValueError, match=reason) as error:
        ImageSource("oxfordpets", hub_id=str(folder)).load()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: whole[:1100], "column cls: row 2 has no label"),
        (lambda whole: whole[:3000], r"could not be loaded as a data set \(unexpected end of data\)"),
        (lambda whole: b"<html>sign in</html>" * 60, r"could not be loaded as a data set \(.+\); check the name"),
    ],
)
def test_a_broken_shard_is_an_error_in_one_line(content, reason, tmp_path):
    folder = repository(tmp_path / "copy", [0, 1, 2, 3])
    broken = folder / "test" / "1.tar"
    broken.write_bytes(content(broken.read_bytes()))
    with pytest.raises(ValueError, match=reason) as error:
        ImageSource("oxfordpets", hub_id=str(folder)).load()
    assert "\n" not in str(error.value)
    assert "An error occurred while generating" not in str(error.value)


def test_without_a_hub_there_is_one_line_that_says_what_a_folder_must_look_like(tmp_path):
    with Hub() as hub:
        pass  # its port is closed again
    done = run(hub, tmp_path, "data", "check", "--dataset", "food101")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "clip-benchmark/wds_food101: could not be loaded" in done.stderr
    assert "split_zhou_Food101.json" in done.stderr


def test_of_a_whole_copy_with_another_split_the_check_says_complete_and_notes_the_split(tmp_path, monkeypatch, capsys):
    from clip_tca.cli import main
    from clip_tca.datasets import image_source
    from clip_tca.datasets.benchmark import HubSplit

    eurosat = BENCHMARKS["eurosat"]
    small = {"eurosat": type(eurosat)(**{**vars(eurosat), "hub_split": HubSplit("VTAB's", 4)})}
    monkeypatch.setattr(image_source, "BENCHMARKS", small)
    folder = tmp_path / "wds_vtab-eurosat"
    repository(folder, [0, 1, 2, 9])
    assert main(["data", "check", "--dataset", "eurosat", "--hub-id", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "test: 4 images, 4 published" in printed
    assert "note: the hub copy has another split (VTAB's), published results are for CoOp's (8100 images)" in printed
    assert printed.rstrip().endswith("complete")
