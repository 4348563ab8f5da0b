"""The pixels of any image are upright 8-bit RGB; an image without pixels is refused with the reason."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from aoq.pipeline.data.images import decode, thumbnail
from tests.prepare.conftest import encoded, picture


def test_plain_images_become_rgb():
    for mode in ("RGB", "L", "P", "1"):
        image = picture(0).convert(mode)
        np.testing.assert_array_equal(np.asarray(decode(encoded(image)).image), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(
    ("content", "change", "tolerance"),
    [
        (encoded(picture(0).convert("CMYK"), "TIFF"), "CMYK", 2),
        (encoded(picture(0), "GIF", save_all=True, append_images=[picture(1), picture(2)]), "animated", 8),
    ],
)
def test_the_first_frame_is_taken_and_cmyk_converted(content, change, tolerance):
    decoded = decode(content)
    assert decoded.changes == (change,)
    np.testing.assert_allclose(np.asarray(decoded.image, int), np.asarray(picture(0), int), atol=tolerance)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_the_upper_eight_of_the_bits_that_are_used_are_taken(bits):
    values = np.array([[0, 1, 255], [128, 0, 16]], dtype=np.uint16) << (bits - 8)
    decoded = decode(encoded(Image.fromarray(values + np.uint16(2 ** (bits - 8) - 1))))
    assert decoded.changes == ("16-bit",)
    assert np.asarray(decoded.image)[..., 0].tolist() == [[0, 1, 255], [128, 0, 16]]


def test_rotations_of_exif_are_carried_out():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    decoded = decode(encoded(picture(0, 12, 8), exif=exif))
    assert (decoded.width, decoded.height, decoded.changes) == (8, 12, ("rotated",))
    np.testing.assert_array_equal(np.asarray(decoded.image), np.rot90(np.asarray(picture(0, 12, 8)), -1))


def test_transparent_areas_become_white():
    image = picture(0).convert("RGBA")
    image.putalpha(0)
    decoded = decode(encoded(image))
    assert decoded.changes == ("transparent",)
    assert (np.asarray(decoded.image) == 255).all()


def test_a_large_jpeg_is_decoded_at_a_fraction_and_keeps_its_size():
    decoded = decode(encoded(picture(0, 1600, 800), "JPEG"), least=100)
    assert decoded.image.size == (200, 100)
    assert (decoded.width, decoded.height) == (1600, 800)
    with Image.open(io.BytesIO(thumbnail(decoded.image, 50))) as opened:
        assert (opened.format, opened.size) == ("JPEG", (50, 25))


def bomb() -> bytes:
    """A PNG of 100,000 × 100,000 pixels that takes a few bytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0" * 99)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\0" * 100, "is no JPEG"),
        (encoded(picture(0, 300, 300), "JPEG")[:2000], "or is damaged"),
        (bomb(), "more than 179 megapixels"),
        (encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF"), "real numbers"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no JPEG"),
    ],
)
def test_content_without_pixels_is_refused_with_the_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        decode(content)
