"""Corruptions do what their formulas say, alike in every run, and embeddings are stored apart for each."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from PIL import Image

from clip_tca import evaluate
from clip_tca.data.corruptions import CORRUPTION_KINDS, SIZE, Corruption
from clip_tca.data.registry import CORRUPTIONS
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def scene() -> Image.Image:
    """Coloured spots, in the size that needs no resizing."""
    spots = np.random.default_rng(0).integers(20, 235, (45, 45, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def values(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=float)


def grey(level: int = 128) -> Image.Image:
    return Image.new("RGB", (SIZE, SIZE), (level,) * 3)


@pytest.mark.parametrize("name", CORRUPTION_KINDS)
def test_a_picture_is_always_corrupted_in_the_same_way_and_more_at_a_higher_severity(name, scene):
    assert name in CORRUPTIONS
    corruption = pickle.loads(pickle.dumps(Corruption(name, 3)))  # noqa: S301 (for worker processes)
    first, again, other = (corruption(scene, about) for about in ("a", "a", "b"))
    assert first.size == (SIZE, SIZE)
    assert first.tobytes() == again.tobytes() != scene.tobytes()
    assert (other.tobytes() != first.tobytes()) == ("noise" in name or name in ("fog", "motion_blur"))
    changes = [np.abs(values(Corruption(name, s)(scene, "a")) - values(scene)).mean() for s in (1, 5)]
    assert changes[1] > changes[0] > 0 or name == "saturate"  # its severities go both ways


def test_noise_has_the_published_strength():
    def spread(name: str, severity: int) -> float:
        return float(values(Corruption(name, severity)(grey(), "a")).std()) / 255

    assert spread("gaussian_noise", 1) == pytest.approx(0.08, rel=0.02)
    assert spread("speckle_noise", 1) == pytest.approx(0.15 * 128 / 255, rel=0.02)
    assert spread("shot_noise", 1) == pytest.approx((128 / 255 / 60) ** 0.5, rel=0.02)
    hit = values(Corruption("impulse_noise", 4)(grey(), "a")) != 128
    assert hit.mean() == pytest.approx(0.17, abs=0.01)


def test_contrast_and_hsv_changes_by_hand():
    image = grey(100)
    image.paste((200, 100, 50), (0, 0, SIZE // 2, SIZE))
    flat = values(Corruption("contrast", 1)(image, ""))  # towards the means 150, 100 and 75
    assert flat[0, 0].tolist() == [170, 100, 65]
    bright = values(Corruption("brightness", 2)(image, ""))  # 200 + 51 of 255, hue and saturation kept
    assert bright[0, 0].tolist() == pytest.approx([251, 125, 62], abs=1)
    assert bright[0, -1].tolist() == pytest.approx([151] * 3, abs=1)
    pale = values(Corruption("saturate", 1)(image, ""))  # 200 − 0.3 · (200 − x)
    assert pale[0, 0].tolist() == pytest.approx([200, 170, 155], abs=1)
    assert pale[0, -1].tolist() == [100] * 3


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "pixelate"])
def test_blurs_leave_a_plain_picture_alone(name):
    assert np.abs(values(Corruption(name, 5)(grey(), "a")) - 128).max() <= 1


def test_a_gaussian_blur_is_that_of_its_standard_deviation():
    image = Image.new("RGB", (SIZE, SIZE))
    image.paste((255, 255, 255), (SIZE // 2, 0, SIZE, SIZE))
    slope = np.diff(values(Corruption("gaussian_blur", 4)(image, ""))[100, :, 0] / 255)
    place = np.arange(len(slope))
    assert (slope * (place - (slope * place).sum()) ** 2).sum() ** 0.5 == pytest.approx(4, rel=0.05)


def test_any_size_is_brought_to_that_of_the_parameters():
    wide = Image.new("RGB", (900, 300), (10, 200, 10))
    wide.paste((250, 0, 0), (300, 0, 600, 300))
    seen = values(Corruption("brightness", 1)(wide, ""))
    assert (seen[:, :, 0] > 200).mean() > 0.97  # the middle


@pytest.mark.parametrize("text", ["snow:3", "fog:6", "fog"])
def test_what_can_not_be_applied_is_one_line(text):
    with pytest.raises(ValueError, match=rf"^corrupt: '{text}'; allowed are gaussian_noise, .* from 1 to 5: fog:3$"):
        Corruption.parse(text)


def test_embeddings_are_stored_apart_for_each_corruption(tmp_path, monkeypatch, scene):
    monkeypatch.setenv("CLIP_TCA_CACHE", str(tmp_path / "store"))
    for name, picture in (("cat", scene), ("dog", scene.rotate(90))):
        (tmp_path / "own" / name).mkdir(parents=True)
        picture.save(tmp_path / "own" / name / "1.png")

    def run(**more):
        return evaluate("folder", data_dir=tmp_path / "own", model=MODEL, methods=["zero-shot"], workers=0, **more)

    counts = [run(corrupt=c)["cost"]["encoded_images"] for c in (None, "fog:3", "fog:3", "fog:4", None)]
    assert counts == [2, 2, 0, 2, 0]
    record = run(corrupt="fog:3")
    assert record["data"]["origin"]["corrupt"] == "fog:3"
