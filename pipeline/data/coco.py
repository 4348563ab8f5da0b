"""Annotations of COCO's test images, which go by their own ids, as files beside a split."""

from __future__ import annotations

import io
import json
import logging
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra

logger = logging.getLogger(__name__)

CATEGORIES = 90
SETS = ("eccv", "cxc")
CAPTIONS = 5


def write_coco_relevance(folder: Path, split: Split) -> list[Path]:
    """`{split}_relevance_eccv.parquet` and `_cxc.parquet`: what ECCV Caption and CxC call right, of the split's images.

    An image's captions go by their places: COCO's five stand in its order. Two of ECCV Caption's 22,550 answers to
    images are captions beyond those five, which no split has.
    """
    known, image_rows = _known(), {image: row for row, image in enumerate(coco_image_ids(split))}
    places = {int(caption): divmod(number, CAPTIONS) for number, caption in enumerate(known.coco_ids)}
    images = _test_images()
    caption_rows = {
        caption: int(split.captions_of[image_rows[images[image]]][place])
        for caption, (image, place) in places.items()
        if images[image] in image_rows
    }
    written = []
    for name in SETS:
        right = getattr(known, f"{name}_gts")
        pairs = [("i2t", image, caption) for image, captions in right["i2t"].items() for caption in captions]
        pairs += [("t2i", image, caption) for caption, of_caption in right["t2i"].items() for image in of_caption]
        there = [pair for pair in pairs if pair[1] in image_rows and pair[2] in caption_rows]
        columns = {
            "caption_id": [caption_rows[caption] for _, _, caption in there],
            "image_id": [image_rows[image] for _, image, _ in there],
            "direction": [direction for direction, _, _ in there],
        }
        if not there:
            raise ValueError(f"split {split.name!r} has no image that {name} asks about; it is not COCO's test split.")
        file, path = io.BytesIO(), folder / f"{split.name}_relevance_{name}.parquet"
        pq.write_table(pa.table(columns), file)
        write_atomically(path, file.getvalue())
        written.append(path)
    return written


def write_coco_classes(folder: Path, split: Split, instances: Path) -> Path:
    """`{split}_classes.npy` for PMRP: the categories of which an image has an instance, of `instances_val2014.json`."""
    try:
        annotations = json.loads(instances.read_text(encoding="utf-8"))["annotations"]
        shown = [(int(one["image_id"]), int(one["category_id"]) - 1) for one in annotations]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{instances} is not COCO's instances_val2014.json ({error!r}).") from None
    rows = {image: row for row, image in enumerate(coco_image_ids(split))}
    classes = np.zeros((split.image_count, CATEGORIES), dtype=np.bool_)
    for image, category in shown:
        if image in rows:
            classes[rows[image], category] = True
    if not classes.any():
        raise ValueError(f"{instances} has no instance in any image of {split.name!r}; is it that of val2014?")
    file, path = io.BytesIO(), folder / f"{split.name}_classes.npy"
    np.save(file, classes)
    write_atomically(path, file.getvalue())
    return path


def coco_image_ids(split: Split) -> list[int]:
    """COCO's id of every image: the split's own ids, or by their order if these are all of the 5,000 test images."""
    test = _test_images()
    if not (np.bincount(split.image_of) == CAPTIONS).all():
        raise ValueError(f"split {split.name!r} has images with other than COCO's {CAPTIONS} captions.")
    if all(image.isdecimal() for image in split.ids) and set(map(int, split.ids)) <= set(test):
        return [int(image) for image in split.ids]
    if split.image_count == len(test):
        logger.info("%s: its ids are not COCO's; its images are taken to stand in COCO's order", split.name)
        return test
    raise ValueError(
        f"split {split.name!r} has {split.image_count} images with ids like {split.ids[0]!r}: neither COCO's ids of "
        f"test images nor all {len(test)} of them; write their COCO ids to {split.name}_ids.txt."
    )


def _test_images() -> list[int]:
    """The 5,000 ids in the field's order."""
    known = _known()
    return [int(known.coco_gts["t2i"][caption][0]) for caption in known.coco_ids[::CAPTIONS].tolist()]


@lru_cache(maxsize=1)
def _known() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have ujson
        return import_extra("eccv_caption", "eccv", "COCO's test set").Metrics()
