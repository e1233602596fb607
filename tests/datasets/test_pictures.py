"""Every common kind of image opens as 8-bit RGB; what can't be opened is named beforehand."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from clip_tca.datasets.pictures import decode, fault, mark


def encoded(image: Image.Image, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB") -> Image.Image:
    ramp = np.linspace(0, 255, 32 * 32).astype(np.uint8).reshape(32, 32)
    return Image.fromarray(np.stack([ramp, ramp.T, 255 - ramp], axis=2)).convert(mode)


def sixteen_bit() -> Image.Image:
    return Image.fromarray(np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32))


def animation() -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def palette_with_transparency() -> bytes:
    image = gradient("P")
    return encoded(image, "PNG", transparency=bytes(range(256)))


KINDS = {
    "JPEG": encoded(gradient(), "JPEG"),
    "CMYK JPEG": encoded(gradient("CMYK"), "JPEG"),
    "grey JPEG": encoded(gradient("L"), "JPEG"),
    "PNG": encoded(gradient(), "PNG"),
    "RGBA PNG": encoded(gradient("RGBA"), "PNG"),
    "grey with alpha": encoded(gradient("LA"), "PNG"),
    "palette": encoded(gradient("P"), "PNG"),
    "palette with transparency": palette_with_transparency(),
    "one bit": encoded(gradient("1"), "PNG"),
    "16-bit PNG": encoded(sixteen_bit(), "PNG"),
    "16-bit TIFF": encoded(sixteen_bit(), "TIFF"),
    "WebP": encoded(gradient(), "WEBP"),
    "animated GIF": animation(),
    "BMP": encoded(gradient(), "BMP"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_common_kind_opens_as_rgb(kind, tmp_path):
    (tmp_path / "picture").write_bytes(KINDS[kind])
    for source in (KINDS[kind], tmp_path / "picture", str(tmp_path / "picture")):
        assert fault(source) is None
        assert decode(source).mode == "RGB"


def test_16_bits_are_scaled_not_clipped_to_white():
    values = np.asarray(decode(KINDS["16-bit PNG"]))[..., 0].reshape(-1)
    assert values[0] == 0
    assert values[-1] == 255
    assert abs(int(values[512]) - 128) <= 1


def test_an_animation_gives_its_first_frame():
    red, _, blue = decode(KINDS["animated GIF"]).getpixel((4, 4))
    assert red > 200
    assert blue < 50


def test_cmyk_keeps_its_colours():
    expected, found = np.asarray(gradient(), float), np.asarray(decode(KINDS["CMYK JPEG"]), float)
    assert np.abs(expected - found).mean() < 30


def bomb() -> bytes:
    """A PNG whose header promises 60,000 × 60,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


BAD = {
    "empty": (b"", "empty file"),
    "text": (b"this is not a picture", "not an image"),
    "a bomb": (bomb(), "pixels"),
    "a cut JPEG": (KINDS["JPEG"][: len(KINDS["JPEG"]) // 2], "runcated"),
    "a cut PNG": (KINDS["PNG"][: len(KINDS["PNG"]) // 2], ""),
    "half a header": (KINDS["PNG"][:20], ""),
    "floating point": (encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "floating-point"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_noticed_by_its_header_or_tail_and_by_decoding(kind, tmp_path):
    content, reason = BAD[kind]
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(ValueError, match=r"\w"):
        decode(content)
    for source in (content, tmp_path / "picture"):
        found = fault(source)
        assert found
        assert reason in found


def test_a_file_that_is_gone_is_a_reason_not_a_crash(tmp_path):
    with pytest.raises(ValueError, match="gone"):
        decode(tmp_path / "nothing.jpg")


def test_a_strip_that_would_unpack_to_gigabytes_is_refused():
    assert "300 times" in fault(encoded(Image.new("RGB", (8000, 1)), "PNG"))


def test_a_cut_file_without_an_ending_is_noticed_too():
    for kind in ("BMP", "16-bit TIFF"):
        assert fault(KINDS[kind][: len(KINDS[kind]) // 2])


def test_no_image_is_a_reason():
    assert fault(None) == "no image"
    with pytest.raises(ValueError, match="no image"):
        decode(None)


def test_marks_tell_files_apart_by_their_content(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").write_bytes(b"x" * 2500 + b"y" + b"x" * 2499)
    assert mark(tmp_path / "a") == mark(b"x" * 5000)
    assert len({mark(tmp_path / "a"), mark(tmp_path / "b"), mark(b"x" * 4999)}) == 3
    assert mark(tmp_path / "gone").startswith("unreadable")
