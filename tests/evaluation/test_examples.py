"""What a record holds for its report: examples of changed predictions."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

import clip_tca
from clip_tca.cli import main
from tests.demo_files import write_demo
from tests.records import honest


@pytest.mark.parametrize("protocol", ["full", "watt"])
def test_examples_are_what_their_kind_says_and_fixed_minus_broken_is_the_gain(protocol):
    record = honest(protocol=protocol)
    right = {(row["method"], row["domain"]): row["correct"] for row in record["rows"]}
    groups = record["examples"]["groups"]
    assert {(g["method"], g["domain"]) for g in groups} == {key for key in right if key[0] != "zero-shot"}
    for group in groups:
        gain = right[group["method"], group["domain"]] - right["zero-shot", group["domain"]]
        assert group["counts"]["fixed"] - group["counts"]["broken"] == gain
        for kind, before, after in (("fixed", 0, 1), ("broken", 1, 0), ("still_wrong", 0, 0)):
            assert len(group[kind]) == min(2, group["counts"][kind])
            for image in group[kind]:
                assert ((image["before"] == image["true"]), (image["after"] == image["true"])) == (before, after)
                assert image["before"] != image["after"]


def test_examples_of_pictures_have_names_and_small_pictures_in_the_data_set_s_order(tmp_path):
    folder = write_demo(tmp_path, ["sketch"], classes=4, images=20)
    options = {"data_dir": folder, "model": "demo", "methods": ["zero-shot", "linear-tca"], "examples": 3}
    (group,) = clip_tca.evaluate("folder", **options)["examples"]["groups"]
    (first, *_), *_ = kinds = [group[kind] for kind in ("fixed", "broken", "still_wrong") if group[kind]]
    for images in kinds:
        assert [image["position"] for image in images] == sorted({image["position"] for image in images})
    small = Image.open(io.BytesIO(base64.b64decode(first["thumbnail"])))
    assert (small.format, max(small.size) <= 96, first["name"][-4:]) == ("JPEG", True, ".png")


def test_examples_are_off_unless_asked_for_and_a_bad_number_is_named(capsys):
    assert "examples" not in clip_tca.evaluate("synthetic", methods=["zero-shot"])
    assert main(["eval", "--dataset", "synthetic", "--examples", "-1"]) == 1
    assert "examples: -1" in capsys.readouterr().err
