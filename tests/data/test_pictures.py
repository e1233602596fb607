"""Every common kind of image opens as 8-bit RGB; what can't be opened is named beforehand."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from clip_tca.data.pictures import content, decode, mark


def encoded(image: Image.Image, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB") -> Image.Image:
    ramp = np.linspace(0, 255, 32 * 32).astype(np.uint8).reshape(32, 32)
    return Image.fromarray(np.stack([ramp, ramp.T, 255 - ramp], axis=2)).convert(mode)


def sixteen_bit() -> Image.Image:
    return Image.fromarray(np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32))


def header(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises that many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


FRAMES = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
KINDS = {
    "JPEG": encoded(gradient(), "JPEG"),
    "CMYK JPEG": encoded(gradient("CMYK"), "JPEG"),
    "grey JPEG": encoded(gradient("L"), "JPEG"),
    "PNG": encoded(gradient(), "PNG"),
    "RGBA PNG": encoded(gradient("RGBA"), "PNG"),
    "grey with alpha": encoded(gradient("LA"), "PNG"),
    "palette": encoded(gradient("P"), "PNG"),
    "palette with transparency": encoded(gradient("P"), "PNG", transparency=bytes(range(256))),
    "one bit": encoded(gradient("1"), "PNG"),
    "16-bit PNG": encoded(sixteen_bit(), "PNG"),
    "16-bit TIFF": encoded(sixteen_bit(), "TIFF"),
    "WebP": encoded(gradient(), "WEBP"),
    "animated GIF": encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
    "BMP": encoded(gradient(), "BMP"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_common_kind_opens_as_rgb(kind, tmp_path):
    (tmp_path / "picture").write_bytes(KINDS[kind])
    for source in (KINDS[kind], tmp_path / "picture", str(tmp_path / "picture")):
        assert decode(source).mode == "RGB"


def test_16_bits_are_scaled_an_animation_gives_its_first_frame_and_cmyk_keeps_its_colours():
    values = np.asarray(decode(KINDS["16-bit PNG"]))[..., 0].reshape(-1)
    assert (values[0], values[-1]) == (0, 255)
    assert abs(int(values[512]) - 128) <= 1
    red, _, blue = decode(KINDS["animated GIF"]).getpixel((4, 4))
    assert red > 200 > 50 > blue
    assert np.abs(np.asarray(gradient(), float) - np.asarray(decode(KINDS["CMYK JPEG"]), float)).mean() < 30


BAD = {
    "missing": (None, "no image"),
    "empty": (b"", "not an image"),
    "text": (b"this is not a picture", "not an image"),
    "a cut JPEG": (KINDS["JPEG"][: len(KINDS["JPEG"]) // 2], "runcated"),
    "a cut PNG": (KINDS["PNG"][: len(KINDS["PNG"]) // 2], ""),
    "half a header": (KINDS["PNG"][:20], ""),
    "a cut BMP": (KINDS["BMP"][: len(KINDS["BMP"]) // 2], ""),
    "a cut TIFF": (KINDS["16-bit TIFF"][: len(KINDS["16-bit TIFF"]) // 2], ""),
    "floating point": (encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "floating-point"),
    # Pillow itself refuses twice as many, and only warns of these
    "a bomb": (header(9_500, 9_500), "9500 × 9500 pixels, more than 89,478,485 (a decompression bomb?)"),
    "a large bomb": (header(60_000, 60_000), "pixels"),
    "a strip": (encoded(Image.new("RGB", (8000, 1)), "PNG"), "one side is over 300 times the other"),
}


@pytest.mark.parametrize("kind", BAD)
def test_the_reason_why_a_file_is_bad_is_named(kind, tmp_path):
    damaged, reason = BAD[kind]
    sources = [damaged]
    if damaged is not None:
        (tmp_path / "picture").write_bytes(damaged)
        sources.append(tmp_path / "picture")
    for source in sources:
        with pytest.raises(ValueError, match=r"\w") as error:
            decode(source)
        assert reason in str(error.value)


def test_a_file_that_is_gone_is_a_reason_not_a_crash(tmp_path):
    with pytest.raises(ValueError, match="gone"):
        decode(tmp_path / "nothing.jpg")
    assert mark(tmp_path / "nothing.jpg").startswith("unreadable")


def test_a_picture_is_told_by_its_content_in_a_file_or_in_memory(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 9000)
    (tmp_path / "b").write_bytes(b"x" * 3000 + b"y" + b"x" * 5999)
    assert content(tmp_path / "a") == content(b"x" * 9000) == mark(b"x" * 9000)
    assert len({content(tmp_path / "a"), content(tmp_path / "b"), content(b"x" * 8999)}) == 3
    assert content(tmp_path / "nothing.jpg").startswith("unreadable")


def test_marks_tell_files_apart_by_parts_of_their_content(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").write_bytes(b"x" * 2500 + b"y" + b"x" * 2499)
    assert len({mark(tmp_path / "a"), mark(tmp_path / "b"), mark(b"x" * 4999)}) == 3
