"""Whatever an image comes as, its pixels are upright 8-bit RGB; what has none is refused with its reason."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from aoq.pipeline.prepare.images import decode, thumbnail
from tests.prepare.conftest import encoded, picture


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(decode(content).image)


def test_an_rgb_image_is_taken_as_it_is():
    np.testing.assert_array_equal(pixels(encoded(picture(0))), np.asarray(picture(0)))


@pytest.mark.parametrize("mode", ["L", "P", "1"])
def test_other_modes_become_rgb(mode):
    image = picture(0).convert(mode)
    np.testing.assert_array_equal(pixels(encoded(image)), np.asarray(image.convert("RGB")))


def test_cmyk_becomes_rgb():
    found = decode(encoded(picture(0).convert("CMYK"), "TIFF"))
    assert found.changes == ("CMYK",)
    np.testing.assert_allclose(np.asarray(found.image, int), np.asarray(picture(0), int), atol=2)


def test_of_sixteen_bits_the_upper_eight_are_taken():
    values = np.array([[0, 256, 65535], [32768, 255, 4096]], dtype=np.uint16)
    found = decode(encoded(Image.fromarray(values)))
    assert found.changes == ("16-bit",)
    assert np.asarray(found.image)[..., 0].tolist() == [[0, 1, 255], [128, 0, 16]]


def test_the_first_frame_of_an_animation_is_taken():
    found = decode(encoded(picture(0), "GIF", save_all=True, append_images=[picture(1), picture(2)]))
    assert found.changes == ("animated",)
    np.testing.assert_allclose(np.asarray(found.image, int), np.asarray(picture(0), int), atol=8)


def test_rotations_of_exif_are_carried_out():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    found = decode(encoded(picture(0, 12, 8), exif=exif))
    assert (found.width, found.height, found.changes) == (8, 12, ("rotated",))
    np.testing.assert_array_equal(np.asarray(found.image), np.rot90(np.asarray(picture(0, 12, 8)), -1))


def test_what_is_transparent_lies_on_white():
    image = picture(0).convert("RGBA")
    image.putalpha(0)
    found = decode(encoded(image))
    assert found.changes == ("transparent",)
    assert (np.asarray(found.image) == 255).all()


def test_a_large_jpeg_is_decoded_at_a_fraction_and_keeps_its_size():
    found = decode(encoded(picture(0, 1600, 800), "JPEG"), least=100)
    assert found.image.size == (200, 100)
    assert (found.width, found.height) == (1600, 800)


def bomb() -> bytes:
    """A PNG of 100,000 × 100,000 pixels that takes a few bytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def real_numbers() -> bytes:
    return encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\0" * 100, "is no JPEG"),
        (encoded(picture(0, 300, 300), "JPEG")[:2000], "or is damaged"),
        (bomb(), "more than 179 megapixels"),
        (real_numbers(), "real numbers"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no JPEG"),
    ],
)
def test_what_has_no_pixels_is_refused_with_the_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        decode(content)


def test_a_thumbnail_is_a_small_jpeg():
    with Image.open(io.BytesIO(thumbnail(picture(0, 400, 100), 200))) as opened:
        assert (opened.format, opened.size) == ("JPEG", (200, 50))
