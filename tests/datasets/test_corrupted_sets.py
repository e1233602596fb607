"""CIFAR's arrays and ImageNet-C's folders are read in their published layouts; corruptions are domains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_tca import evaluate
from clip_tca.cli import main
from clip_tca.datasets.corruptions import COMMON, CORRUPTIONS
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.pictures import decode
from clip_tca.datasets.registry import BENCHMARKS
from tests.tiny_clip import MODEL

N = 12
"""Images of a severity."""


def arrays(folder: Path, *corruptions: str, labels: int = 5 * N, images: int = 5 * N, classes: int = 10) -> Path:
    """As published: every pixel of row i is i, so that a picture says where it came from."""
    folder.mkdir(parents=True)
    pixels = np.arange(images, dtype=np.uint8)[:, None, None, None]
    for corruption in corruptions:
        np.save(folder / f"{corruption}.npy", np.broadcast_to(pixels, (images, 32, 32, 3)).copy())
    np.save(folder / "labels.npy", np.arange(labels, dtype=np.uint8) % N % classes)
    return folder


def severities(folder: Path, *places: str) -> Path:
    for number, place in enumerate(places):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 48), (number * 20 % 256, 90, 30)).save(folder / place)
    return folder


def load(name: str, folder: Path, *corruptions: str, severities: tuple[int, ...] = ()):
    return ImageSource(name, folder, corruptions=corruptions, severities=severities).load()


# -- CIFAR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [5 * N, N])
def test_the_five_severities_of_an_array_are_in_order_with_their_labels(labels, tmp_path):
    arrays(tmp_path / "CIFAR-10-C", "fog", labels=labels)
    data = load("cifar10-c", tmp_path, "fog", severities=(3, 1))
    assert list(data.domains) == ["fog:3", "fog:1"]
    third = data.domains["fog:3"]
    assert third.labels == [i % N % 10 for i in range(N)]
    assert third.names[:2] == ["airplane/24", "automobile/25"]
    pictures = [decode(third.picture(i)) for i in range(N)]
    assert [picture.getpixel((31, 0)) for picture in pictures] == [(24 + i,) * 3 for i in range(N)]
    assert pictures[0].size == (32, 32)
    assert data.domains["fog:1"].fingerprint() != third.fingerprint()


def test_the_15_common_corruptions_at_severity_5_are_the_default(tmp_path):
    arrays(tmp_path / "data", *CORRUPTIONS)
    data = load("cifar10-c", tmp_path)
    assert list(data.domains) == [f"{name}:5" for name in COMMON]
    assert data.expected == dict.fromkeys(data.domains, 10_000)
    assert data.differences()[0] == "gaussian_noise:5 12 images of 10000"
    chosen = load("cifar10-c", tmp_path, "Speckle Noise", "fog")
    assert list(chosen.domains) == ["speckle_noise:5", "fog:5"]


def test_each_cifar_is_found_beside_the_other(tmp_path):
    arrays(tmp_path / "CIFAR-100-C", "fog", classes=100)
    with pytest.raises(
        FileNotFoundError, match=r"no CIFAR-10-C found.*CIFAR-10-C/\{gaussian_noise, shot_noise, …\}.npy"
    ):
        load("cifar10-c", tmp_path)
    arrays(tmp_path / "CIFAR-10-C", "fog")
    for name, folder in (("cifar10-c", "CIFAR-10-C"), ("cifar100-c", "CIFAR-100-C")):
        data = load(name, tmp_path, "fog")
        assert Path(data.origin["path"]).name == folder
        assert len(data.classes) == int(folder[6:-2])


def test_eval_reads_cifar_10_c(tmp_path, monkeypatch):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    arrays(tmp_path / "CIFAR-10-C", "fog", "contrast")
    record = evaluate("cifar10-c", data_dir=tmp_path, model=MODEL, methods=["zero-shot"], workers=0, severities=[2, 5])
    assert record["dataset"] == "cifar10-c"
    assert list(record["data"]["domains"]) == ["fog:2", "fog:5", "contrast:2", "contrast:5"]
    assert {row["images"] for row in record["rows"]} == {N}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda f: np.save(f / "labels.npy", np.zeros(7, int)),
            r"fog.npy: 60 images, but labels.npy has 7 labels.*again",
        ),
        (lambda f: np.save(f / "fog.npy", np.zeros((58, 32, 32, 3), np.uint8)), "58 images, but labels.npy has 60"),
        (lambda f: (f / "labels.npy").unlink(), r"labels.npy: no such file; labels.npy comes with CIFAR-10-C"),
        (lambda f: np.save(f / "labels.npy", np.full(60, 55)), r"label 55; CIFAR-10-C has 0 to 9; is it another"),
        (lambda f: np.save(f / "labels.npy", np.zeros(60)), r"labels.npy: float64 of shape \(60,\); whole numbers"),
        (
            lambda f: np.save(f / "fog.npy", np.zeros((60, 32, 32))),
            r"fog.npy: float64 of shape \(60, 32, 32\); allowed",
        ),
        (lambda f: (f / "fog.npy").write_bytes(b"\x93NUMPY"), "fog.npy: not a complete .npy file"),
        *(
            (lambda f, head=head: (f / "fog.npy").write_bytes(b"\x93NUMPY\x01\x00" + head), "not a complete .npy file")
            for head in (  # found by fuzzing: NumPy's parser said TokenError and OverflowError
                b"\x16\x00{'descr': '|u1', 's\x00\x00\n",
                b"O\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1180591620717411303424,), }\n",
            )
        ),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(change, reason, tmp_path):
    change(arrays(tmp_path / "CIFAR-10-C", "fog"))
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as caught:
        load("cifar10-c", tmp_path, "fog")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--corruption", "rain"], "corruption: 'rain'; allowed are gaussian_noise, shot_noise"),
        (["--severity", "6"], "severity: 6; allowed are 1, 2, 3, 4, 5"),
        (["--corruption", "snow"], "no CIFAR-10-C found with snow:5"),
        (["--corruption", "fog", "--corruption", "snow"], "corruption: snow:5 is not in"),
    ],
)
def test_what_is_not_there_is_one_line_and_nothing_is_written(words, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    arrays(tmp_path / "CIFAR-10-C", "fog")
    output = tmp_path / "out.json"
    common = ["eval", "--dataset", "cifar10-c", "--data-dir", str(tmp_path), "--model", MODEL, "-o", str(output)]
    assert main([*common, *words]) == 1
    printed = capsys.readouterr()
    assert reason in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert not output.exists()


def test_corruptions_are_chosen_of_data_sets_that_have_some(tmp_path):
    for name in ("pacs", "folder"):
        with pytest.raises(
            ValueError, match=rf"corruption: {name} has none; allowed are .* cifar10-c, cifar100-c, imagenet-c"
        ):
            load(name, tmp_path, "fog")
    with pytest.raises(ValueError, match="holds embeddings"):
        evaluate("synthetic", corruptions=["fog"])
    with pytest.raises(ValueError, match="no copy of ImageNet-C on the hub is known to load; give --data-dir"):
        ImageSource("imagenet-c").load()


# -- ImageNet-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "ImageNet-C/", "ImageNet-C/weather/"])
def test_corruption_severity_class_folders_are_found_under_groups_too(root, tmp_path):
    places = [f"{root}fog/{s}/{wnid}/{i}.JPEG" for s in (1, 5) for wnid in ("n01440764", "n01443537") for i in (1, 2)]
    data = load("imagenet-c", severities(tmp_path, *places), "fog", severities=(1, 5))
    assert list(data.domains) == ["fog:1", "fog:5"]
    assert data.domains["fog:5"].labels == [0, 0, 1, 1]
    assert data.domains["fog:5"].names[0] == "n01440764/1.JPEG"
    assert len(data.classes) == 1000
    assert data.differences()[0] == "fog:1 4 images of 50000"
    assert decode(data.domains["fog:5"].picture(3)).size == (48, 48)


def test_what_is_no_class_of_imagenet_is_listed_as_not_used(tmp_path):
    severities(tmp_path, "noise/shot_noise/5/n01440764/1.JPEG", "noise/shot_noise/5/cats/1.JPEG")
    data = load("imagenet-c", tmp_path)
    assert list(data.domains) == ["shot_noise:5"]
    assert data.ignored == ["shot_noise:5/cats"]


def test_eval_reads_imagenet_c_with_clip_s_names(tmp_path, monkeypatch):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    severities(tmp_path, *[f"blur/zoom_blur/5/{wnid}/1.JPEG" for wnid in ("n01440764", "n03773504", "n04008634")])
    record = evaluate("imagenet-c", data_dir=tmp_path, model=MODEL, methods=["zero-shot"], workers=0)
    assert record["dataset"] == "imagenet-c"
    assert record["prompts"]["classes"][0] == "tench"
    assert record["prompts"]["classes"].count("missile") == 2
    assert [row["images"] for row in record["rows"]] == [3]


def test_data_check_lists_what_is_missing(tmp_path, capsys):
    arrays(tmp_path / "CIFAR-10-C", "fog")
    assert main(["data", "check", "--dataset", "cifar10-c", "--data-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "fog:5: 12 images, 10000 published" in printed
    assert "missing domains: gaussian_noise:5, shot_noise:5" in printed


def test_every_benchmark_has_its_number_of_classes():
    sizes = {"domainnet": 345, "terra": 10, "office31": 31, "cifar10-c": 10, "cifar100-c": 100, "imagenet-c": 1000}
    assert {name: len(BENCHMARKS[name].classes) for name in sizes} == sizes
