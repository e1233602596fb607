"""Weights and data sets from a hub: a local one on 127.0.0.1, the real client code, in a process of its own."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from PIL import Image

from clip_tca.datasets.hub import Columns, load_hub
from clip_tca.datasets.image_source import ImageSource
from clip_tca.datasets.pictures import decode
from clip_tca.datasets.registry import BENCHMARKS
from tests.hub import Hub
from tests.tiny_clip import FOLDER, MODEL

PACS = BENCHMARKS["pacs"]


def pictures(count: int) -> list[dict[str, object]]:
    found = []
    for i in range(count):
        buffer = io.BytesIO()
        Image.new("RGB", (40, 40 + i), (i * 3 % 256, 80, 200)).save(buffer, "PNG")
        found.append({"bytes": buffer.getvalue(), "path": None})
    return found


def pacs(count: int = 56, benchmark=PACS) -> datasets.Dataset:
    """As the mirror has it: image, domain as text, label as a ClassLabel of the folder names."""
    names, domains = benchmark.classes, list(benchmark.domains)
    features = {
        "image": datasets.Image(),
        "domain": datasets.Value("string"),
        "label": datasets.ClassLabel(names=names),
    }
    content = {
        "image": pictures(count),
        "domain": [domains[i % 4] for i in range(count)],
        "label": [i // 4 % len(names) for i in range(count)],
    }
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def repository(folder: Path, table: datasets.Dataset) -> Path:
    (folder / "data").mkdir(parents=True)
    table.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    (folder / "README.md").write_text("# a copy\n")
    return folder


@pytest.fixture(autouse=True)
def quiet_home(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def run(hub: Hub, tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    mirrors = tmp_path / "mirrors.json"  # whatever fails here must not be loaded from the real ones
    mirrors.write_text(json.dumps({key: ["http://127.0.0.1:9/archive.zip"] for key in BENCHMARKS}))
    own = {"CLIP_TCA_CACHE": str(tmp_path / "store"), "CLIP_TCA_MIRRORS": str(mirrors)}
    environment = {**hub.environment(tmp_path / "hf"), **own, **more}
    return subprocess.run(
        [sys.executable, "-m", "clip_tca", *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_weights_and_data_come_from_the_hub(tmp_path):
    with Hub() as hub:
        weights = tmp_path / "weights"
        weights.mkdir()
        shutil.copy(FOLDER / "open_clip_config.json", weights)
        shutil.copy(FOLDER / "model.safetensors", weights / "open_clip_model.safetensors")
        hub.add_model("someone/small", weights)
        hub.add_dataset("flwrlabs/pacs", repository(tmp_path / "pacs", pacs()))
        output = tmp_path / "result.json"
        options = ("eval", "--dataset", "pacs", "--model", "hf-hub:someone/small", "--output", str(output))
        done = run(hub, tmp_path, *options, "--workers", "0")
        assert done.returncode == 0, done.stderr
        record = json.loads(output.read_text())
        assert record["data"]["origin"] == {"kind": "hub", "id": "flwrlabs/pacs", "revision": hub.revision}
        assert {name: about["images"] for name, about in record["data"]["domains"].items()} == dict.fromkeys(
            PACS.domains, 14
        )
        assert len(record["data"]["differences"]) == 4
        assert "WARNING: counts differ" in done.stdout
        assert record["model"]["model"] == "hf-hub:someone/small"
        assert "/someone/small/resolve/main/open_clip_model.safetensors" in hub.requests
        same = run(hub, tmp_path, "eval", "--dataset", "pacs", "--model", MODEL, "--format", "json", "--workers", "0")
        assert [r["correct"] for r in json.loads(same.stdout)["rows"]] == [r["correct"] for r in record["rows"]]
        pinned = run(hub, tmp_path, *options, "--revision", hub.revision)
        assert pinned.returncode == 0, pinned.stderr
        assert json.loads(output.read_text())["cost"]["encoded_images"] == 0
        wrong = run(hub, tmp_path, *options, "--revision", "f" * 40)
        assert wrong.returncode == 1
        assert len(wrong.stderr.strip().splitlines()) == 1
        check = run(hub, tmp_path, "data", "check", "--dataset", "pacs")
        assert check.returncode == 1
        assert "photo: 14 images, 1670 published" in check.stdout
    for name in ("cat", "dog"):
        (tmp_path / "own" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "own" / name / "1.png")
    own = ("eval", "--dataset", "folder", "--data-dir", str(tmp_path / "own"), "--method", "zero-shot", "--no-cache")
    closed = run(hub, tmp_path, *own, "--model", "hf-hub:someone/small", "--workers", "0")
    assert closed.returncode == 0, closed.stderr  # the hub is closed, its cache is enough


def corrupted(rows: list[tuple[str, int]]) -> datasets.Dataset:
    """As hub copies of CIFAR-10-C have it."""
    features = {
        "image": datasets.Image(),
        "label": datasets.Value("int64"),
        "corruption_name": datasets.Value("string"),
        "corruption_level": datasets.Value("int64"),
    }
    names, levels = zip(*rows, strict=True)
    labels = [i % 10 for i in range(len(rows))]
    columns = (pictures(len(rows)), labels, list(names), list(levels))
    return datasets.Dataset.from_dict(dict(zip(features, columns, strict=True)), datasets.Features(features))


def test_corruption_name_and_level_make_the_domain(tmp_path):
    rows = [(name, level) for level in (1, 5) for name in ("fog", "snow", "rain") for _ in range(4)]
    path = tmp_path / "cifar.parquet"
    corrupted(rows).to_parquet(path)
    data = ImageSource("cifar10-c", hub_id=str(path)).load()
    assert list(data.domains) == ["snow:5", "fog:5"]
    assert data.ignored == ["rain:1", "rain:5"]
    fog = data.domains["fog:5"]
    assert fog.labels == [2, 3, 4, 5]
    assert fog.names[0] == "bird/12"
    assert decode(fog.picture(0)).size == (40, 40 + 12)
    chosen = ImageSource("cifar10-c", hub_id=str(path), corruptions=("snow",), severities=(1, 5)).load()
    assert list(chosen.domains) == ["snow:1", "snow:5"]


def test_of_a_saved_domainnet_the_test_split_is_used_and_its_domains_may_be_numbers(tmp_path):
    def part(count: int) -> datasets.Dataset:
        content = {"image": pictures(count), "domain": [i % 6 for i in range(count)], "label": [344] * count}
        features = {"image": datasets.Image(), "domain": datasets.Value("int64"), "label": datasets.Value("int64")}
        return datasets.Dataset.from_dict(content, datasets.Features(features))

    datasets.DatasetDict({"train": part(18), "test": part(12)}).save_to_disk(tmp_path / "saved")
    data = ImageSource("domainnet", hub_id=str(tmp_path / "saved")).load()
    assert {name: len(domain) for name, domain in data.domains.items()} == dict.fromkeys(data.domains, 2)
    assert list(data.domains) == list(BENCHMARKS["domainnet"].domains)
    assert data.domains["sketch"].labels == [344, 344]


def test_an_incomplete_community_copy_is_refused_unless_it_is_named(tmp_path):
    vlcs = BENCHMARKS["vlcs"]
    with Hub() as hub:
        hub.add_dataset(vlcs.hub_id, repository(tmp_path / "vlcs", pacs(40, vlcs)))
        options = ("eval", "--dataset", "vlcs", "--model", MODEL, "--method", "zero-shot", "--workers", "0")
        done = run(hub, tmp_path, *options)
        assert done.returncode == 1
        assert "is not complete (Caltech101 10 images of 1415" in done.stderr
        assert "VLCS/{Caltech101, LabelMe, SUN09, VOC2007}/{bird" in done.stderr
        assert run(hub, tmp_path, *options, "--hub-id", vlcs.hub_id).returncode == 0


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_offline_is_one_line_that_says_what_to_do(tmp_path, offline):
    with Hub() as hub:
        data = run(hub, tmp_path, "eval", "--dataset", "pacs", "--model", MODEL, **offline)
        assert (data.returncode, data.stdout) == (1, "")
        first, *listed = data.stderr.rstrip().splitlines()
        assert "--data-dir" in first
        assert all(line.startswith("  ") for line in listed), (
            "one message; the mirrors that were tried are listed in it"
        )
        assert len(listed) == (0 if "HF_HUB_OFFLINE" in offline else 3)
        assert "PACS/{art_painting, cartoon, photo, sketch}/{dog" in data.stderr
        (tmp_path / "own" / "cat").mkdir(parents=True)
        (tmp_path / "own" / "dog").mkdir()
        for name in ("cat", "dog"):
            Image.new("RGB", (9, 9)).save(tmp_path / "own" / name / "1.png")
        model = run(hub, tmp_path, "eval", "--dataset", "folder", "--data-dir", str(tmp_path / "own"), **offline)
        assert (model.returncode, model.stdout) == (1, "")
        assert len(model.stderr.strip().splitlines()) == 1
        for remedy in ("--pretrained FILE", "HF_HOME", "--dataset demo"):
            assert remedy in model.stderr


def test_unknown_names_on_the_hub_are_one_line(tmp_path):
    with Hub() as hub:
        data = run(hub, tmp_path, "eval", "--dataset", "folder", "--hub-id", "nobody/nothing", "--model", MODEL)
        model = run(hub, tmp_path, "eval", "--dataset", "pacs", "--model", "hf-hub:nobody/nothing")
        assert data.returncode == model.returncode == 1
        for done in (data, model):
            assert "nobody/nothing" in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1


def test_local_copies_work_the_same_way(tmp_path):
    table = pacs()
    table.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "splits")
    table.to_parquet(tmp_path / "file.parquet")
    repository(tmp_path / "folder", table)
    for name, times in {"saved": 1, "splits": 2, "file.parquet": 1, "folder": 1}.items():
        data = load_hub(str(tmp_path / name), PACS)
        assert list(data.domains) == list(PACS.domains)
        assert [len(domain) for domain in data.domains.values()] == [14 * times] * 4
        photo = data.domains["photo"]
        assert photo.labels[:7] == [0, 1, 2, 3, 4, 5, 6]
        assert decode(photo.picture(1)).size == (40, 46)
        assert photo.marks[1].startswith(f"{len(photo.picture(1))}:")


def test_parquet_files_need_no_cache_unless_they_are_large(tmp_path, monkeypatch):
    """So the demo runs where the home folder can't be written."""
    pacs().to_parquet(tmp_path / "file.parquet")
    expected = load_hub(str(tmp_path / "file.parquet"), PACS)
    assert not (tmp_path / "datasets").exists()
    monkeypatch.setattr("clip_tca.datasets.hub_table.IN_MEMORY", 0)
    cached = load_hub(str(tmp_path / "file.parquet"), PACS)
    assert (tmp_path / "datasets").exists()
    assert {name: domain.fingerprint() for name, domain in cached.domains.items()} == {
        name: domain.fingerprint() for name, domain in expected.domains.items()
    }


def test_other_columns_and_kinds_of_labels(tmp_path):
    content = {
        "picture": pictures(6),
        "kind": ["zebra", "ant", "zebra", "ant", "ant", "zebra"],
        "where": [3, 1, 3, 1, 3, 1],
        "number": [10, 2, 10, 2, 2, 10],
    }
    table = datasets.Dataset.from_dict(content)
    table = table.cast_column("picture", datasets.Image())
    table.to_parquet(tmp_path / "own.parquet")
    path = str(tmp_path / "own.parquet")
    data = load_hub(path, None, columns=Columns("picture", "kind", "where"))
    assert (data.classes, list(data.domains)) == (["ant", "zebra"], ["1", "3"])
    assert data.domains["3"].labels == [1, 1, 0]
    assert load_hub(path, None, columns=Columns("picture", "number")).classes == ["2", "10"]
    assert list(load_hub(path, None, columns=Columns("picture", "number")).domains) == ["own"]
    with pytest.raises(ValueError, match=r"no image column among picture, kind.*--image-column"):
        load_hub(path, None)
    with pytest.raises(ValueError, match=r"--label-column 'sort': no such column"):
        load_hub(path, None, columns=Columns("picture", "sort"))
    with pytest.raises(ValueError, match=r"'zebra' is not a class of PACS|'ant' is not a class of PACS"):
        load_hub(path, PACS, columns=Columns("picture", "kind", "where"))


def test_labels_follow_the_names_not_the_numbers(tmp_path):
    """A copy whose ClassLabel has another order, in other spelling, still gets the class order of the benchmark."""
    names = [name.upper() for name in reversed(PACS.classes)]
    features = {
        "image": datasets.Image(),
        "domain": datasets.Value("string"),
        "label": datasets.ClassLabel(names=names),
    }
    content = {"image": pictures(7), "domain": ["Photo"] * 7, "label": list(range(7))}
    datasets.Dataset.from_dict(content, features=datasets.Features(features)).to_parquet(tmp_path / "a.parquet")
    assert load_hub(str(tmp_path / "a.parquet"), PACS).domains["photo"].labels == [6, 5, 4, 3, 2, 1, 0]


def test_a_row_without_a_label_is_named(tmp_path):
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    content = {"image": pictures(3), "label": [0, None, 1]}
    datasets.Dataset.from_dict(content, features=datasets.Features(features)).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 1 has no label"):
        load_hub(str(tmp_path / "a.parquet"), None)


def test_what_is_no_data_set_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no")
    for name in ("empty", "text.parquet"):
        with pytest.raises(ValueError, match="could not be loaded"):
            load_hub(str(tmp_path / name), None)
    with pytest.raises(ValueError, match="not both"):
        ImageSource("pacs", data_dir=str(tmp_path), hub_id="a/b").load()
    with pytest.raises(ValueError, match="needs --data-dir"):
        ImageSource("folder").load()
    with pytest.raises(ValueError, match="allowed are pacs"):
        ImageSource("imagenette").load()


def test_rows_without_image_label_or_domain(tmp_path):
    def table(**changes):
        content = {"image": pictures(4), "kind": ["a", "b", "a", "b"], "where": ["x", "y", "x", "y"], **changes}
        made = datasets.Dataset.from_dict(content)
        if not isinstance(content["image"][0], int):
            made = made.cast_column("image", datasets.Image())
        made.to_parquet(tmp_path / "t.parquet")
        return load_hub(str(tmp_path / "t.parquet"), None, columns=Columns("image", "kind", "where"))

    data = table(image=[*pictures(3), None])
    assert data.domains["y"].picture(1) is None
    with pytest.raises(ValueError, match="row 2 has no label"):
        table(kind=["a", "b", None, "b"])
    with pytest.raises(ValueError, match="row 1 has no domain"):
        table(where=["x", None, "x", "y"])
    with pytest.raises(ValueError, match=r"holds int64, not images"):
        table(image=[1, 2, 3, 4])


def test_a_benchmark_needs_its_domains(tmp_path):
    pacs().remove_columns("domain").to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"no domain column.*--domain-column"):
        load_hub(str(tmp_path / "a.parquet"), PACS)


def test_domains_that_differ_in_spelling_only_are_told_apart(tmp_path):
    made = pacs(8).remove_columns("domain").add_column("domain", ["x y", "x_y"] * 4)
    made.to_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    assert list(ImageSource("folder", hub_id=path, domains=("x_y",)).load().domains) == ["x_y"]
    with pytest.raises(ValueError, match="more than one"):
        ImageSource("folder", hub_id=path, domains=("X-Y",)).load()
