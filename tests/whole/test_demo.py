"""The bundled demo: real pictures that may be given away, and a small CLIP that gains from adaptation on them."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import open_clip
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import clip_tca
from clip_tca.core.folders import resource
from clip_tca.data.hub import DEMO, demo_set
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


def test_every_class_is_there_in_every_style_and_no_two_pictures_are_alike(data):
    assert list(data.domains) == STYLES
    assert min(min(counts) for counts in data.counts().values()) >= 35
    pictures = [domain.image(i) for domain in data.domains.values() for i in range(len(domain))]
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    assert min(float(np.asarray(picture.convert("L")).std()) for picture in pictures) > 5


def test_every_picture_may_be_redistributed_and_its_source_and_author_are_listed():
    rows = pq.read_table(resource(DEMO), columns=["source", "licence", "author"]).to_pylist()
    listed = resource("eval/demo/LICENCES.md").read_text(encoding="utf-8")
    assert {row["licence"] for row in rows} <= LICENCES
    assert all(row["source"] and row["author"] for row in rows)
    packages = {row["source"].split(" ")[0] for row in rows}
    sets = {row["source"].split(": ")[1].split(":")[0] for row in rows if row["source"].startswith("@iconify")}
    assert [name for name in sorted(packages | sets) if name not in listed] == []


def test_the_record_says_where_the_pictures_came_from(data):
    digest = hashlib.sha256(resource(DEMO).read_bytes()).hexdigest()
    assert data.name == "demo"
    assert data.origin == {"kind": "demo", "file": "eval/demo/pictures.parquet", "sha256": digest}


def test_open_clip_builds_the_same_model_from_the_configuration_and_the_weights_that_it_names(tmp_path):
    path = resource("eval/demo/model.safetensors")
    config = json.loads(resource("eval/demo/open_clip_config.json").read_text(encoding="utf-8"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == config["sha256"]
    (tmp_path / "clip-tca-demo.json").write_text(json.dumps(config["model_cfg"]), encoding="utf-8")
    open_clip.add_model_config(tmp_path)
    named = open_clip.create_model("clip-tca-demo")
    named.load_state_dict({name: value.to(named.state_dict()[name].dtype) for name, value in load_file(path).items()})
    ours = OpenClipEncoder("demo", device="cpu")
    picture = ours.transform(Image.new("RGB", (112, 112), "red"))[None]
    with torch.inference_mode():
        torch.testing.assert_close(named.eval().encode_image(picture), ours.encode_images(picture))


@pytest.mark.parametrize("options", [{}, {"shares": "uniform"}], ids=str)
def test_both_methods_gain_in_every_style(data, options):
    found: dict[str, dict[str, float]] = {}
    for row in clip_tca.evaluate("demo", options=options)["rows"]:
        found.setdefault(row["method"], {})[row["domain"]] = row["accuracy"]
    for style in STYLES:
        assert found["zero-shot"][style] > 2 * 100 / len(data.classes)
        assert found["linear-tca"][style] > found["zero-shot"][style] + 1
        assert found["conditional-tca"][style] > found["linear-tca"][style] + (1 if options else 0)
