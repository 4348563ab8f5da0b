"""Annotations of COCO's test images, which have ids of their own, as files beside a split."""

from __future__ import annotations

import io
import logging
import warnings
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from typing_extensions import TypedDict

from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import write_atomically

logger = logging.getLogger(__name__)

_CATEGORIES = 90
_CAPTIONS = 5


class Instance(TypedDict):
    """One object in one image, with the keys of COCO's files."""

    image_id: int
    category_id: Annotated[int, Field(ge=1, le=_CATEGORIES)]


class Instances(TypedDict):
    """The parts of `instances_val2014.json` that are used."""

    annotations: list[Instance]


def write_coco_relevance(folder: Path, split: Split) -> list[Path]:
    """Write `{split}_relevance_eccv.parquet` and `_cxc.parquet`: the right answers by ECCV Caption and CxC.

    An image's captions go by position: COCO's five come in its order. Two of ECCV Caption's 22,550 answers to
    images are captions beyond those five, which no split has.
    """
    known, image_rows = _known(), {image: row for row, image in enumerate(coco_image_ids(split))}
    caption_rows = {
        caption: int(split.captions_of[image_rows[image]][place])
        for (image, place), caption in zip(
            product(_test_images(), range(_CAPTIONS)), known.coco_ids.tolist(), strict=True
        )
        if image in image_rows
    }
    written = []
    for name in ("eccv", "cxc"):
        right = getattr(known, f"{name}_gts")
        pairs = [(caption, image, "i2t") for image, captions in right["i2t"].items() for caption in captions]
        pairs += [(caption, image, "t2i") for caption, images in right["t2i"].items() for image in images]
        there = [(caption_rows[c], image_rows[i], way) for c, i, way in pairs if c in caption_rows and i in image_rows]
        if not there:
            raise ValueError(f"split {split.name!r} has no image of {name}; take COCO's test split.")
        columns = dict(zip(("caption_id", "image_id", "direction"), zip(*there, strict=True), strict=True))
        file, path = io.BytesIO(), folder / f"{split.name}_relevance_{name}.parquet"
        pq.write_table(pa.table(columns), file)
        write_atomically(path, file.getvalue())
        written.append(path)
    return written


def write_coco_classes(folder: Path, split: Split, instances: Path) -> Path:
    """Write `{split}_classes.npy` for PMRP: the categories of each image's instances in `instances_val2014.json`."""
    annotations = read_json(instances, Instances, remedy="take COCO's instances_val2014.json")["annotations"]
    rows = {image: row for row, image in enumerate(coco_image_ids(split))}
    classes = np.zeros((split.image_count, _CATEGORIES), dtype=np.bool_)
    for one in annotations:
        if one["image_id"] in rows:
            classes[rows[one["image_id"]], one["category_id"] - 1] = True
    if not classes.any():
        raise ValueError(f"{instances} has no instance in any image of {split.name!r}; take that of val2014.")
    file, path = io.BytesIO(), folder / f"{split.name}_classes.npy"
    np.save(file, classes)
    write_atomically(path, file.getvalue())
    return path


def coco_image_ids(split: Split) -> list[int]:
    """Return COCO's id of every image: the split's ids, or by position for a split of all 5,000 test images."""
    test = _test_images()
    if not (np.bincount(split.image_of) == _CAPTIONS).all():
        raise ValueError(f"split {split.name!r} has images with other than COCO's {_CAPTIONS} captions.")
    if all(image.isdecimal() for image in split.ids) and set(map(int, split.ids)) <= set(test):
        return [int(image) for image in split.ids]
    if split.image_count == len(test):
        logger.info("%s: its ids are not COCO's; its images are taken to be in COCO's order", split.name)
        return test
    raise ValueError(
        f"split {split.name!r} has {split.image_count} images with ids like {split.ids[0]!r}: neither COCO's ids of "
        f"test images nor all {len(test)} of them; write their COCO ids to {split.name}_ids.txt."
    )


def _test_images() -> list[int]:
    """Return the 5,000 ids in their usual order."""
    known = _known()
    return [int(known.coco_gts["t2i"][caption][0]) for caption in known.coco_ids[::_CAPTIONS].tolist()]


@cache
def _known() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends ujson
        return import_extra("eccv_caption", "eccv", "COCO's test set").Metrics()
