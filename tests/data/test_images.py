"""The pixels of any image are upright 8-bit RGB; an image without pixels is refused with the reason.

Pictures in `thumbs/` are shown small, one at a time, wherever their ids and links do not lead elsewhere.
"""

import base64
import io
import logging
import os
import resource
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.images import WIDTH, Thumbnails, decode, thumbnail
from tests.pictures import bomb
from tests.prepare.conftest import encoded, picture


def test_images_become_rgb_of_which_the_first_frame_is_taken():
    for mode in ("RGB", "L", "P", "1"):
        image = picture(0).convert(mode)
        np.testing.assert_array_equal(np.asarray(decode(encoded(image)).image), np.asarray(image.convert("RGB")))
    frames = encoded(picture(0), "GIF", save_all=True, append_images=[picture(1), picture(2)])
    for content, tolerance in ((encoded(picture(0).convert("CMYK"), "TIFF"), 2), (frames, 8)):
        np.testing.assert_allclose(np.asarray(decode(content).image, int), np.asarray(picture(0), int), atol=tolerance)
    for mode, given in (("RGBA", {}), ("RGB", {"transparency": (0, 0, 0)}), ("L", {"transparency": 0})):
        image = Image.new(mode, (4, 4))
        assert (np.asarray(decode(encoded(image, **given)).image) == 255).all()


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_the_upper_eight_of_the_bits_that_are_used_are_taken(bits):
    values = np.array([[0, 1, 255], [128, 0, 16]], dtype=np.uint16) << (bits - 8)
    decoded = decode(encoded(Image.fromarray(values + np.uint16(2 ** (bits - 8) - 1))))
    assert np.asarray(decoded.image)[..., 0].tolist() == [[0, 1, 255], [128, 0, 16]]


def test_rotations_of_exif_are_carried_out():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    decoded = decode(encoded(picture(0, 12, 8), exif=exif))
    assert (decoded.width, decoded.height) == (8, 12)
    np.testing.assert_array_equal(np.asarray(decoded.image), np.rot90(np.asarray(picture(0, 12, 8)), -1))


def test_a_large_jpeg_is_decoded_at_a_fraction_and_keeps_its_size():
    decoded = decode(encoded(picture(0, 1600, 800), "JPEG"), least=100)
    assert decoded.image.size == (200, 100)
    assert (decoded.width, decoded.height) == (1600, 800)
    small = thumbnail(picture(0, 1600, 800))
    with Image.open(io.BytesIO(small.content)) as opened:
        assert (opened.format, opened.size) == ("JPEG", (200, 100)) == ("JPEG", (small.width, small.height))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\0" * 100, "is not JPEG"),
        (encoded(picture(0, 300, 300), "JPEG")[:2000], "or is damaged"),
        (bomb(20_000), "more than 179 megapixels"),
        (encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF"), "floating-point pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not JPEG"),
    ],
)
def test_content_without_pixels_is_refused_with_the_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        decode(content)


@pytest.fixture
def thumbnails(write_split):
    """One picture, one file that is none, one that lies elsewhere, and one that is missing."""
    folder = write_split(ids=["a.png", "b.png", "../a.png", "d.png"])
    (folder / "thumbs").mkdir()
    (folder / "thumbs" / "b.png").write_bytes(b"no picture")
    for path in (folder / "thumbs" / "a.png", folder / "a.png"):
        path.write_bytes(encoded(picture(0)))
    return Thumbnails(folder, open_split(folder, "train"))


def test_what_is_no_picture_or_lies_elsewhere_is_none(thumbnails):
    shown = thumbnails.read(0)
    assert shown.uri == f"data:image/jpeg;base64,{base64.b64encode(shown.content).decode()}"
    assert [thumbnails.read(image) for image in (1, 2, 3)] == [None] * 3


def test_without_pillow_it_says_what_to_install(thumbnails, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r'pictures needs PIL .*`pip install "aoq\[report\]"`'):
        thumbnails.read(0)
    assert thumbnails.read(3) is None


@pytest.mark.parametrize("side", [8_000, 13_000])
def test_a_small_file_of_many_pixels_is_refused_by_its_header(thumbnails, tmp_path, side, caplog):
    (tmp_path / "thumbs" / "a.png").write_bytes(bomb(side))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert thumbnails.read(0) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
    assert f"{tmp_path / 'thumbs' / 'a.png'} has more than 50 megapixels" in caplog.text


@pytest.mark.parametrize(
    ("form", "mode"), [("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "RGBA"), ("WEBP", "RGB"), ("GIF", "P")]
)
def test_pictures_of_the_known_formats_are_shown_small(thumbnails, tmp_path, form, mode):
    Image.new(mode, (900, 600)).save(tmp_path / "thumbs" / "a.png", form)
    shown = thumbnails.read(0)
    with Image.open(io.BytesIO(shown.content)) as small:
        assert (small.format, small.size) == ("JPEG", (WIDTH, WIDTH * 2 // 3))
    assert (shown.width, shown.height) == (WIDTH, WIDTH * 2 // 3)


def test_links_are_followed_as_a_folder_and_otherwise_named_once(thumbnails, tmp_path, caplog):
    thumbs = tmp_path / "thumbs"
    for name in ("b.png", "d.png"):
        (thumbs / name).unlink(missing_ok=True)
        (thumbs / name).symlink_to(tmp_path / "a.png")
    with caplog.at_level(logging.WARNING):
        assert [thumbnails.read(image) for image in (1, 3, 1)] == [None] * 3
    assert caplog.text.count("is a link out of thumbs/") == 1
    assert f"{thumbs / 'b.png'} is a link" in caplog.text
    (thumbs / "d.png").unlink()
    os.link(thumbs / "a.png", thumbs / "d.png")
    thumbs.rename(tmp_path / "elsewhere")
    thumbs.symlink_to("elsewhere")
    assert thumbnails.read(3) == thumbnails.read(0) is not None


def test_one_picture_is_decoded_at_a_time(thumbnails, monkeypatch):
    at_once, most, opened = [], [], Image.open

    def counted(*given, **options):
        at_once.append(1)
        most.append(len(at_once))
        threading.Event().wait(0.02)
        at_once.pop()
        return opened(*given, **options)

    monkeypatch.setattr(Image, "open", counted)
    threads = [threading.Thread(target=thumbnails.read, args=(0,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
