"""The files of a dataset folder, each checked when opened, and the pairing of captions and images.

Arrays are memory-mapped and never unpickled. Texts are UTF-8, one caption or id per line, none empty. The pairing
is data: nothing assumes five captions per image.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int32

from aoq.pipeline.reading import not_utf8, open_array, read_file, reading

Features = Float[np.ndarray, "rows regions features"]
Pairing = Int32[np.ndarray, " captions"]
"""The image of every caption."""
_MOST_IMAGE_ROWS = 2**31


def misfit(path: Path, array: np.ndarray, needs: str, remedy: str) -> ValueError:
    return ValueError(f"{path}: {needs}; this array has {array.shape} {array.dtype}. {remedy}")


def open_features(path: Path) -> Features:
    """Open `{split}_ims.npy` (rows, regions, features) as stored, float32 or float16."""
    features = open_array(path)
    if features.ndim != 3 or 0 in features.shape:
        needs = "image features need shape (images, regions, features), none of them 0"
        raise misfit(path, features, needs, "One global vector per image is (images, 1, features): reshape it.")
    if features.dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
        needs = "image features need dtype float32 or float16 in this machine's byte order"
        convert = "numpy.save(path, array.astype('float32')); 'float16' only if no number is beyond 65,504."
        raise misfit(path, features, needs, f"Convert it once: {convert}")
    return features


def open_boxes(path: Path, rows: int, regions: int) -> Float[np.ndarray, "rows regions coordinates"]:
    """Open `{split}_boxes.npy`: x1, y1, x2, y2 of every region, as fractions of the image's width and height.

    PFAN's own arrays are taken unchanged: 2K numbers per region (K > 2), its grid blocks and their shares.
    """
    boxes = open_array(path)
    fits = boxes.shape[:2] == (rows, regions) and boxes.ndim == 3 and boxes.dtype.kind == "f"
    if not fits or boxes.shape[2] < 4 or boxes.shape[2] % 2:
        needs = f"boxes need shape {(rows, regions, 4)} like the features and a float dtype"
        raise misfit(path, boxes, needs, "Write x1, y1, x2, y2 in [0, 1] for each region, or remove the file.")
    return boxes


def read_mask(path: Path, rows: int, regions: int) -> Bool[np.ndarray, "rows regions"]:
    """Read `{split}_mask.npy`: True if a region is real. It takes one byte per region in memory."""
    mask = open_array(path)
    if mask.shape != (rows, regions) or not is_binary(mask):
        needs = f"the mask needs shape {(rows, regions)} like the features and only True and False (or 1 and 0)"
        raise misfit(path, mask, needs, "Write True at real regions, or remove the file.")
    return np.array(mask, dtype=np.bool_)


def is_binary(array: np.ndarray) -> bool:
    """Return whether an array holds only True and False, or 1 and 0."""
    return array.dtype.kind in "biuf" and bool(np.isin(array, (0, 1)).all())


def read_pairing(path: Path, captions: int) -> Pairing:
    """Read `{split}_pairs.npy`: the image of every caption."""
    pairs = open_array(path)
    if pairs.shape != (captions,) or pairs.dtype.kind not in "iu":
        needs = f"needs one integer image row per caption, shape ({captions},)"
        raise misfit(path, pairs, needs, "Write it again, or remove it if captions are in image order.")
    if len(wrong := np.flatnonzero((pairs < 0) | (pairs >= _MOST_IMAGE_ROWS))):
        entry = f"entry {wrong[0]} is {pairs[wrong[0]]}"
        raise ValueError(f"{path}: {entry}; image rows start at 0 and end below {_MOST_IMAGE_ROWS:,}.")
    return np.array(pairs, dtype=np.int32)


def read_identity(path: Path, images: int) -> Int32[np.ndarray, " images"]:
    """Read `{split}_identity.npy`: images that are the same photograph share a number."""
    identity = open_array(path)
    if identity.shape != (images,) or identity.dtype.kind not in "iu":
        needs = f"needs a whole number per image, shape ({images},), the same for copies of one photograph"
        raise misfit(path, identity, needs, "Write it again, or remove it if there are no copies.")
    _, numbers = np.unique(identity, return_inverse=True)
    return numbers.reshape(-1).astype(np.int32)


def read_lines(path: Path, *, may_be_empty: bool = False) -> list[str]:
    """Read every line unchanged, without its line end; refuse undecodable bytes and, by default, empty lines."""
    content = read_text(path)
    for number, problem in line_problems(content, may_be_empty=may_be_empty):
        raise ValueError(f"{path}:{number}: {problem}")
    return [line.decode("utf-8") for line in split_lines(content)]


def read_text(path: Path) -> bytes:
    """Read a whole text file, unchecked."""
    with reading(path, "a text file"):
        return read_file(path)


def line_problems(content: bytes, *, may_be_empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and the problem of every bad line."""
    if not (content.strip() or may_be_empty):
        yield 1, "the file is empty; write one line per caption (or id)"
        return
    for number, line in enumerate(split_lines(content), start=1):
        try:
            if not (line.decode("utf-8").strip() or may_be_empty):
                yield number, "the line is empty; write its caption (or id), or remove the line"
        except UnicodeDecodeError as error:
            yield number, not_utf8(error)


def split_lines(content: bytes) -> list[bytes]:
    """Split lines and drop their ends. Bytes, because `str.splitlines` also cuts at characters a caption may hold."""
    lines = content.removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines]


def repeats(features: Features, captions: int, pairs: Pairing | None, ids: Sequence[str] | None) -> int:
    """Count the consecutive rows of one image: k in official arrays that repeat it once per caption, else 1."""
    rows = len(features)
    if rows != captions:
        return 1
    if pairs is not None:
        times, rest = divmod(rows, int(pairs.max()) + 1)
        return times if rest == 0 and times > 1 and _is_repeated(features, times) else 1
    run = next((row for row in range(1, rows) if not np.array_equal(features[row], features[0])), 1)
    # Two equal adjacent images make the first run longer than k, so the divisors of the run are tried too.
    for times in (times for times in range(run, 1, -1) if run % times == 0 and rows % times == 0):
        if _is_repeated(features, times) and (ids is None or len(ids) != rows or _is_constant(ids, times)):
            return times
    return 1


def _is_repeated(rows: Features, times: int) -> bool:
    """Return whether each `times` rows are equal, judged by 16 evenly spaced groups, including the first and last."""
    starts = np.unique(np.linspace(0, len(rows) // times - 1, 16).astype(np.int64)) * times
    return all(np.array_equal(rows[start], rows[start + i]) for start in starts for i in range(1, times))


def pair_captions(path: Path, images: int, captions: int, pairs: Pairing | None) -> Pairing:
    """Return the image of every caption: `pairs`, or by default equally many consecutive captions per image.

    Errors are about `path`, the file of the pairs, or else of the captions.
    """
    if pairs is None:
        if captions % images:
            raise ValueError(
                f"{path}: {captions} captions for {images} images is not a whole number per image; add the missing "
                f"ones, or say which image each belongs to in {path.name.replace('_caps.txt', '_pairs.npy')}."
            )
        return np.repeat(np.arange(images, dtype=np.int32), captions // images)
    if pairs.max() >= images:
        raise ValueError(
            f"{path}: caption {int(np.argmax(pairs)) + 1} is paired with image {pairs.max()}, but there "
            f"are {images} images (0 to {images - 1}); the pairs or the features belong to another data set."
        )
    if len(without := np.flatnonzero(np.bincount(pairs, minlength=images) == 0)):
        raise ValueError(
            f"{path}: {len(without)} of {images} images have no caption (first rows {without[:5].tolist()}); "
            "pair a caption with each, or leave those images out."
        )
    return pairs


def fit_ids(path: Path, ids: list[str], images: int, captions: int) -> list[str]:
    """Return one id per image, from one line per image or one line per caption with the image's id repeated."""
    if len(ids) == images:
        return ids
    times = captions // images
    if len(ids) == captions == images * times and _is_constant(ids, times):
        return ids[::times]
    raise ValueError(
        f"{path}: {len(ids)} ids for {images} images with {captions} captions; write one per image, in row order."
    )


def _is_constant(ids: Sequence[str], times: int) -> bool:
    return all(ids[i] == ids[i - i % times] for i in range(len(ids)))
