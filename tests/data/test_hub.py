"""Weights and data sets from a hub: a local one on 127.0.0.1, the real client code, in a process of its own."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from clip_tca.data.hub import load_hub
from clip_tca.data.image_source import ImageSource
from clip_tca.data.registry import BENCHMARKS
from tests.hub import Hub
from tests.tiny_clip import FOLDER, MODEL

PACS, PETS = BENCHMARKS["pacs"], BENCHMARKS["oxfordpets"]


def pictures(count: int) -> list[dict[str, object]]:
    found = []
    for i in range(count):
        buffer = io.BytesIO()
        Image.new("RGB", (40, 40 + i), (i * 3 % 256, 80, 200)).save(buffer, "PNG")
        found.append({"bytes": buffer.getvalue(), "path": None})
    return found


def table(names: list[str] | None = None, **columns: list[Any]) -> datasets.Dataset:
    """Images with these columns; ``names`` are those of the ClassLabel ``label``."""
    count = len(next(iter(columns.values())))
    made = datasets.Dataset.from_dict({"image": pictures(count), **columns}).cast_column("image", datasets.Image())
    return made.cast_column("label", datasets.ClassLabel(names=names)) if names else made


def pacs(count: int = 56, benchmark=PACS) -> datasets.Dataset:
    """As the mirror has it: image, domain as text, label as a ClassLabel of the folder names."""
    names, domains = benchmark.classes, list(benchmark.domains)
    labels = [i // 4 % len(names) for i in range(count)]
    return table(names, domain=[domains[i % 4] for i in range(count)], label=labels)


def repository(folder: Path, content: datasets.Dataset) -> Path:
    (folder / "data").mkdir(parents=True)
    content.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    (folder / "README.md").write_text("# a copy\n")
    return folder


def shard(path: Path, labels: list[object], first: int = 0) -> None:
    """A tar file as webdataset writes it: ``s0000000.png`` and ``s0000000.cls``, and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i, label in enumerate(labels, first):
            for name, content in (("png", pictures(i + 1)[i]["bytes"]), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"s{i:07d}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def shards(folder: Path, labels: list[object]) -> Path:
    """A copy with two test shards and a training shard."""
    half = len(labels) // 2
    shard(folder / "test" / "0.tar", labels[:half])
    shard(folder / "test" / "1.tar", labels[half:], half)
    shard(folder / "train" / "0.tar", [0])
    return folder


def saved(content: datasets.Dataset, tmp_path: Path) -> str:
    content.to_parquet(tmp_path / "own.parquet")
    return str(tmp_path / "own.parquet")


@pytest.fixture(autouse=True)
def quiet_home(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def run(hub: Hub, tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    mirrors = tmp_path / "mirrors.json"  # whatever fails here must not be loaded from the real ones
    known = [name for name, benchmark in BENCHMARKS.items() if benchmark.mirrors]
    mirrors.write_text(json.dumps({key: ["http://127.0.0.1:9/archive.zip"] for key in known}))
    own = {"CLIP_TCA_CACHE": str(tmp_path / "store"), "CLIP_TCA_MIRRORS": str(mirrors)}
    environment = {**hub.environment(tmp_path / "hf"), **own, **more}
    return subprocess.run(
        [sys.executable, "-m", "clip_tca", *arguments], env=environment, capture_output=True, text=True, check=False
    )


# -- the hub -----------------------------------------------------------------------------------------------------------


def test_weights_and_data_come_from_the_hub(tmp_path):
    with Hub() as hub:
        weights = tmp_path / "weights"
        weights.mkdir()
        shutil.copy(FOLDER / "open_clip_config.json", weights)
        shutil.copy(FOLDER / "model.safetensors", weights / "open_clip_model.safetensors")
        hub.add_model("someone/small", weights)
        hub.add_dataset("me/pacs", repository(tmp_path / "pacs", pacs()))
        output = tmp_path / "result.json"
        data = ("--dataset", "pacs", "--hub-id", "me/pacs")
        options = ("eval", *data, "--model", "hf-hub:someone/small", "--output", str(output), "--workers", "0")
        done = run(hub, tmp_path, *options)
        assert done.returncode == 0, done.stderr
        record = json.loads(output.read_text())
        assert record["data"]["origin"] == {"kind": "hub", "id": "me/pacs", "revision": hub.revision}
        assert {about["images"] for about in record["data"]["domains"].values()} == {14}
        assert "WARNING: counts differ" in done.stdout
        assert record["model"]["model"] == "hf-hub:someone/small"
        wrong = run(hub, tmp_path, *options, "--revision", "f" * 40)
        assert (wrong.returncode, len(wrong.stderr.strip().splitlines())) == (1, 1)
    closed = run(hub, tmp_path, *options, "--revision", hub.revision, "--overwrite")
    assert closed.returncode == 0, closed.stderr  # the hub is closed, its cache is enough
    assert json.loads(output.read_text())["cost"]["encoded_images"] == 0


def test_an_incomplete_copy_of_a_benchmark_is_refused_unless_it_is_named(tmp_path):
    vlcs = BENCHMARKS["vlcs"]
    mirrors = tmp_path / "own.json"
    mirrors.write_text(json.dumps({"vlcs": [vlcs.hub_id]}))
    with Hub() as hub:
        hub.add_dataset(vlcs.hub_id, repository(tmp_path / "vlcs", pacs(40, vlcs)))
        done = run(hub, tmp_path, "data", "check", "--dataset", "vlcs", CLIP_TCA_MIRRORS=str(mirrors))
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not complete (Caltech101 10 images of 1415" in done.stderr
        named = run(hub, tmp_path, "data", "check", "--dataset", "vlcs", "--hub-id", vlcs.hub_id)
        assert "Caltech101: 10 images, 1415 published" in named.stdout


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_offline_is_one_message_that_says_what_to_do(tmp_path, offline):
    with Hub() as hub:
        data = run(hub, tmp_path, "eval", "--dataset", "pacs", "--model", MODEL, **offline)
        assert (data.returncode, data.stdout) == (1, "")
        first, *listed = data.stderr.rstrip().splitlines()
        assert "--data-dir" in first
        assert len(listed) == (0 if "HF_HUB_OFFLINE" in offline else 2), "the mirrors that were tried, and the layout"
        assert "PACS/{art_painting, cartoon, photo, sketch}/{dog" in data.stderr
        model = run(hub, tmp_path, "eval", "--dataset", "demo", "--model", "ViT-B-16-quickgelu", **offline)
        assert (model.returncode, model.stdout, len(model.stderr.strip().splitlines())) == (1, "", 1)
        for remedy in ("--pretrained FILE", "HF_HOME", "--model demo"):
            assert remedy in model.stderr


@pytest.mark.parametrize(
    "words", [("folder", "--hub-id", "nobody/nothing", "--model", MODEL), ("demo", "--model", "hf-hub:nobody/nothing")]
)
def test_unknown_names_on_the_hub_are_one_line(tmp_path, words):
    with Hub() as hub:
        done = run(hub, tmp_path, "eval", "--dataset", *words)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1)
        assert "nobody/nothing" in done.stderr


# -- local copies ------------------------------------------------------------------------------------------------------


def test_local_copies_work_the_same_way(tmp_path):
    content = pacs()
    content.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": content, "test": content}).save_to_disk(tmp_path / "splits")
    content.to_parquet(tmp_path / "file.parquet")
    repository(tmp_path / "folder", content)
    for name, times in {"saved": 1, "splits": 2, "file.parquet": 1, "folder": 1}.items():
        data = load_hub(str(tmp_path / name), PACS)
        assert list(data.domains) == list(PACS.domains)
        assert [len(domain) for domain in data.domains.values()] == [14 * times] * 4
        photo = pickle.loads(pickle.dumps(data.domains["photo"]))  # noqa: S301 (for the workers that decode)
        assert photo.labels[:7] == [0, 1, 2, 3, 4, 5, 6]
        assert photo.image(1).size == (40, 46)
        assert photo.marks[1].startswith(f"{len(photo.picture(1))}:")


def test_parquet_files_need_no_cache_unless_they_are_large(tmp_path, monkeypatch):
    """So the demo runs where the home folder can't be written."""
    path = saved(pacs(), tmp_path)
    expected = load_hub(path, PACS)
    assert not (tmp_path / "datasets").exists()
    monkeypatch.setattr("clip_tca.data.hub.IN_MEMORY", 0)
    assert load_hub(path, PACS).domains["photo"].fingerprint() == expected.domains["photo"].fingerprint()
    assert (tmp_path / "datasets").exists()


def test_corruption_name_and_level_make_the_domain(tmp_path):
    rows = [(name, level) for level in (1, 5) for name in ("fog", "snow", "rain") for _ in range(4)]
    names, levels = map(list, zip(*rows, strict=True))
    path = saved(table(label=[i % 10 for i in range(24)], corruption_name=names, corruption_level=levels), tmp_path)
    data = ImageSource("cifar10-c", hub_id=path).load()
    assert (list(data.domains), data.ignored) == (["snow:5", "fog:5"], ["rain:1", "rain:5"])
    fog = data.domains["fog:5"]
    assert (fog.labels, fog.names[0], fog.image(0).size) == ([2, 3, 4, 5], "bird/12", (40, 40 + 12))
    chosen = ImageSource("cifar10-c", hub_id=path, corruptions=("snow",), severities=(1, 5)).load()
    assert list(chosen.domains) == ["snow:1", "snow:5"]


def test_of_a_saved_domainnet_the_test_split_is_used_and_its_domains_may_be_numbers(tmp_path):
    parts = {
        name: table(domain=[i % 6 for i in range(n)], label=[344] * n) for name, n in (("train", 18), ("test", 12))
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = ImageSource("domainnet", hub_id=str(tmp_path / "saved")).load()
    assert list(data.domains) == list(BENCHMARKS["domainnet"].domains)
    assert [domain.labels for domain in data.domains.values()] == [[344, 344]] * 6


def test_labels_follow_the_names_not_the_numbers(tmp_path):
    """A copy whose ClassLabel has another order, in other spelling, still gets the class order of the benchmark."""
    names = [name.upper() for name in reversed(PACS.classes)]
    path = saved(table(names, domain=["Photo"] * 7, label=list(range(7))), tmp_path)
    assert load_hub(path, PACS).domains["photo"].labels == [6, 5, 4, 3, 2, 1, 0]


def test_other_columns_and_kinds_of_labels(tmp_path):
    kinds = ["zebra", "ant", "zebra", "ant", "ant", "zebra"]
    content = table(kind=kinds, where=[3, 1, 3, 1, 3, 1], number=[10, 2, 10, 2, 2, 10])
    path = saved(content.rename_column("image", "picture"), tmp_path)
    data = load_hub(path, None, columns=("picture", "kind", "where"))
    assert (data.classes, list(data.domains)) == (["ant", "zebra"], ["1", "3"])
    assert data.domains["3"].labels == [1, 1, 0]
    numbers = load_hub(path, None, columns=("picture", "number", None))
    assert (numbers.classes, list(numbers.domains)) == (["2", "10"], ["own"])


def test_a_row_without_an_image_is_no_image(tmp_path):
    content = datasets.Dataset.from_dict({"image": [*pictures(1), None], "label": ["a", "b"]})
    path = saved(content.cast_column("image", datasets.Image()), tmp_path)
    assert load_hub(path, None).domains["own"].picture(1) is None


def test_domains_that_differ_in_spelling_only_are_told_apart(tmp_path):
    path = saved(table(domain=["x y", "x_y"] * 2, label=["a", "b", "a", "b"]), tmp_path)
    assert list(ImageSource("folder", hub_id=path, domains=("x_y",)).load().domains) == ["x_y"]
    with pytest.raises(ValueError, match="more than one"):
        ImageSource("folder", hub_id=path, domains=("X-Y",)).load()


# -- webdataset shards, as CLIP_benchmark has them ---------------------------------------------------------------------


def test_a_copy_of_clip_benchmark_is_evaluated_from_the_hub_and_its_training_images_stay_there(tmp_path):
    labels = [i % 37 for i in range(48)]
    with Hub() as hub:
        hub.add_dataset(PETS.hub_id, shards(tmp_path / "pets", labels))
        output = tmp_path / "r.json"
        options = ("--dataset", "oxfordpets", "--model", MODEL, "--prompts", "coop", "--workers", "0")
        done = run(hub, tmp_path, "eval", *options, "--method", "zero-shot", "--output", str(output))
        assert done.returncode == 0, done.stderr
        record = json.loads(output.read_text())
        assert record["data"]["origin"] == {"kind": "hub", "id": PETS.hub_id, "revision": hub.revision}
        assert record["data"]["domains"]["test"]["images"] == 48
        assert record["data"]["domains"]["test"]["per_class"] == [labels.count(label) for label in range(37)]
        asked = [path for path in hub.requests if "/resolve/" in path]
        assert any(path.endswith("test/1.tar") for path in asked)
        assert not any("train/" in path for path in asked)
    offline = run(hub, tmp_path, "data", "check", "--dataset", "oxfordpets")  # the hub is closed, the cache is enough
    assert "test: 48 images, 3669 published" in offline.stdout, offline.stderr


def test_a_hub_copy_with_another_split_says_whose_it_is_and_has_no_published_rows(tmp_path):
    caltech = BENCHMARKS["caltech101"]
    folder = tmp_path / "wds_vtab-caltech101"
    shards(folder, [0, 101, 4, 37])
    data = ImageSource("caltech101", hub_id=str(folder)).load()
    assert len(data.classes) == 102
    names = [data.classes[label] for label in data.domains["test"].labels]
    assert names == ["accordion", "yin and yang symbol", "background", "off-center face"]
    assert [data.domains["test"].image(i).size for i in range(4)] == [(40, 40 + i) for i in range(4)]
    assert data.origin["split"] == "VTAB's"
    assert data.expected == {"test": 6084}
    assert data.other_split.endswith("published results are for CoOp's (2465 images)")
    assert caltech.images == {"test": 2465}
    assert len(caltech.classes) == 100


# -- errors ------------------------------------------------------------------------------------------------------------


def refused(benchmark=None, image=None, label="kind", domain=None, **changes: list[Any]) -> Callable[[Path], object]:
    """Read a table of two rows with these columns changed."""
    content = {"kind": ["a", "b"], "where": ["x", "y"], "number": [1, 2], **changes}
    return lambda root: load_hub(saved(table(**content), root), benchmark, columns=(image, label, domain))


def pets(labels: list[object], damage: Callable[[bytes], bytes] = bytes) -> Callable[[Path], object]:
    """Read shards with these labels, the second one damaged."""

    def call(root: Path) -> object:
        broken = shards(root / "copy", labels) / "test" / "1.tar"
        broken.write_bytes(damage(broken.read_bytes()))
        return ImageSource("oxfordpets", hub_id=str(root / "copy")).load()

    return call


def no_table(root: Path) -> object:
    (root / "text.parquet").write_text("no")
    return ImageSource("folder", hub_id=str(root / "text.parquet")).load()


def empty(root: Path) -> object:
    (root / "empty").mkdir()
    return ImageSource("folder", hub_id=str(root / "empty")).load()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (refused(label=None), r"no label column among image, kind.*--label-column"),
        (refused(image="sort"), r"--image-column 'sort': no such column"),
        (refused(image="number"), r"holds int64, not images"),
        (refused(kind=["a", None]), r"column kind: row 1 has no label"),
        (refused(domain="where", where=[None, "x"]), r"row 0 has no domain"),
        (refused(PACS), r"no domain column.*--domain-column"),
        (refused(PACS, domain="where"), r"none of the domains art_painting, .* in column 'where'"),
        (refused(PACS, domain="where", where=["photo"] * 2), r"'a' is not a class of PACS"),
        (empty, "could not be loaded"),
        (no_table, "could not be loaded"),
        (lambda root: ImageSource("pacs", data_dir=str(root), hub_id="a/b").load(), "not both"),
        (lambda _: ImageSource("folder").load(), "needs --data-dir"),
        (lambda _: ImageSource("imagenette").load(), "did you mean imagenet"),
        (pets([0, 1, 37, 2]), r"column cls: '37' is not a class of OxfordPets; allowed are its 37 names, and their"),
        (pets([0, 1, -1, 2]), r"column cls: '-1' is not a class of OxfordPets"),
        (pets([0, "dog", 1, 2]), r"could not be loaded as a data set \(invalid literal for int\(\)"),
        (pets([0, 1, 2, 3], lambda whole: whole[:1100]), "column cls: row 2 has no label"),
        (pets([0, 1, 2, 3], lambda whole: whole[:3000]), r"could not be loaded .*\(unexpected end of data\)"),
        (pets([0, 1, 2, 3], lambda _: b"<html>sign in</html>" * 60), r"could not be loaded .*\(.+\); check the name"),
    ],
)
def test_what_is_no_data_set_or_does_not_fit_is_one_line(call, reason, tmp_path):
    with pytest.raises(ValueError, match=reason) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
