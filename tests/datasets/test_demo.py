"""The bundled demo: pictures that anyone draws alike, and a small CLIP that knows them in one style."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from safetensors.torch import load_file

from clip_tca.core.resources import resource
from clip_tca.datasets.demo import CLASSES, IMAGES, STYLES, contact_sheet, draw, scene

SUBSET = 12


def pixels(style: str, name: str, index: int, seed: int = 0) -> np.ndarray:
    return np.asarray(draw(style, name, index, seed))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_drawn_in_every_style(style: str, name: str):
    image, about = scene(style, name, 3)
    assert (image.mode, image.size) == ("RGB", (96, 96))
    assert np.asarray(image).std() > 5
    assert about.colour
    assert about.place
    np.testing.assert_array_equal(pixels(style, name, 3), np.asarray(image))


def test_another_process_draws_the_same_pixels():
    code = (
        "import hashlib; from clip_tca.datasets.demo import CLASSES, STYLES, draw;"
        "print(hashlib.sha256(b''.join(draw(s, c, 5).tobytes() for s in STYLES for c in CLASSES)).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = hashlib.sha256(b"".join(draw(s, c, 5).tobytes() for s in STYLES for c in CLASSES)).hexdigest()
    assert other == here


@pytest.mark.parametrize("style", STYLES)
def test_no_two_pictures_are_alike_and_training_has_none_of_them(style: str):
    evaluation = {draw(style, "horse", index).tobytes() for index in range(IMAGES)}
    assert len(evaluation) == IMAGES
    assert not evaluation & {draw(style, "horse", index, seed).tobytes() for seed in (1, 2) for index in range(20)}


def test_sketches_are_dark_lines_on_white_paper_and_the_other_styles_have_colour():
    def grey(style: str) -> bool:
        picture = pixels(style, "house", 0).astype(int)
        return bool((picture[..., 0] == picture[..., 1]).all() and (picture[..., 1] == picture[..., 2]).all())

    assert [style for style in STYLES if grey(style)] == ["sketch"]
    assert np.median(pixels("sketch", "house", 0)) > 235


@pytest.mark.parametrize("arguments", [("oil", "dog", 0), ("photo", "cat", 0), ("photo", "dog", -1)])
def test_unknown_pictures_are_refused_by_name(arguments: tuple[str, str, int]):
    with pytest.raises(ValueError, match=r"oil|cat|-1"):
        draw(*arguments)


def test_contact_sheet_shows_the_evaluation_pictures():
    sheet = np.asarray(contact_sheet(columns=1))
    dog = pixels("art_painting", "dog", 0)
    rows = [r for r in range(40) if (sheet[r : r + 96, 64:160] == dog).all()]
    assert len(rows) == 1


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads(resource("eval/demo/open_clip_config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(config: dict) -> open_clip.CLIP:
    """The shipped weights: float16 on disk, computed in float32."""
    built = open_clip.CLIP(**config["model_cfg"])
    weights = load_file(resource("eval/demo/model.safetensors"))
    assert {value.dtype for value in weights.values()} == {torch.float16}
    built.load_state_dict({name: value.float() for name, value in weights.items()}, strict=True)
    return built.eval()


def zero_shot(model: open_clip.CLIP, config: dict, style: str) -> float:
    """Accuracy on the first pictures of the evaluation set, in per cent."""
    preprocess = image_transform_v2(PreprocessCfg(**config["preprocess_cfg"]), is_train=False)
    tokenizer = open_clip.SimpleTokenizer(context_length=config["model_cfg"]["text_cfg"]["context_length"])
    x = torch.stack([preprocess(draw(style, name, index)) for name in CLASSES for index in range(SUBSET)])
    assert x.shape[1:] == (3, 64, 64)
    with torch.no_grad():
        text = model.encode_text(tokenizer([f"a photo of a {name}" for name in CLASSES]), normalize=True)
        guess = (model.encode_image(x, normalize=True) @ text.T).argmax(1)
    return 100 * float((guess == torch.arange(len(CLASSES)).repeat_interleave(SUBSET)).float().mean())


def test_weights_are_the_ones_the_configuration_names_and_stay_small(config: dict):
    content = resource("eval/demo/model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == config["sha256"]
    assert len(content) <= 12_000_000


def test_open_clip_builds_the_same_model_by_name(config: dict, model: open_clip.CLIP, tmp_path):
    (tmp_path / "clip-tca-demo.json").write_text(json.dumps(config["model_cfg"]), encoding="utf-8")
    open_clip.add_model_config(tmp_path)
    named = open_clip.create_model("clip-tca-demo")
    assert {k: v.shape for k, v in named.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}


def test_the_model_knows_photos_and_less_of_the_other_styles(config: dict, model: open_clip.CLIP):
    accuracy = {style: zero_shot(model, config, style) for style in STYLES}
    assert accuracy["photo"] >= 90
    for style in STYLES:
        assert style == "photo" or accuracy[style] < accuracy["photo"]
