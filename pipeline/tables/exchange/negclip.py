"""NegCLIP's TSV: a row per pair, title (the caption), filepath, neg_caption and neg_image.

`neg_caption` are texts, negatives of the row's image. `neg_image` are numbers of rows, whose images are negatives of
the row's caption: the trainer adds such a row's image, caption and one of its `neg_caption` to the batch. It draws one
of each list, so no list may be empty, nor the list of a row that another row names. `negclip_reading.py` reads it.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32, Int64

from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written

LOAD = """
# open_clip with NegCLIP's CsvDataset, which reads lists of negatives
python -m training.main --dataset-type csv --train-data $folder/train.tsv --csv-img-key filepath \\
    --csv-caption-key title --csv-hard-captions-key neg_caption …
"""

Lists = Int32[np.ndarray, "anchors depth"]


def write_negclip(outgoing: Outgoing, folder: Path) -> Written:
    """Write captions as the anchors; one that lacks what a row needs is left out, and no other row names it."""
    assert outgoing.other is not None
    of_captions, of_images = _all_lists(outgoing), _all_lists(outgoing.other)
    captions = np.repeat(np.arange(len(of_captions)), np.diff(outgoing.positives.offsets))
    images = outgoing.positives.ids
    kept = _kept(captions, images, of_captions, np.any(of_images >= 0, axis=1))
    captions, images = captions[kept], images[kept]
    row_of = np.full(len(of_images), -1)
    row_of[images[::-1]] = np.arange(len(images))[::-1]  # an image's first row
    folder.mkdir()
    texts, files = outgoing.anchors.values, outgoing.candidates.values
    with (folder / "train.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("title", "filepath", "neg_caption", "neg_image"))
        for caption, image in zip(captions.tolist(), images.tolist(), strict=True):
            rows = row_of[_real(of_captions[caption])]
            negatives = [texts[row] for row in _real(of_images[image])]
            writer.writerow((texts[caption], files[image], negatives, rows[rows >= 0].tolist()))
    return Written(len(captions), len(of_captions) - len(np.unique(captions)))


def _all_lists(outgoing: Outgoing) -> Lists:
    return np.concatenate([chunk.lists.negative_ids for chunk in outgoing.chunks()])


def _real(ids: Int32[np.ndarray, " depth"]) -> Int32[np.ndarray, " real"]:
    return ids[ids >= 0]


def _kept(
    captions: Int64[np.ndarray, " pairs"],
    images: Int32[np.ndarray, " pairs"],
    of_captions: Lists,
    has_captions: Bool[np.ndarray, " images"],
) -> Bool[np.ndarray, " pairs"]:
    """Mark pairs that have a negative caption, and a negative image with a row of its own."""
    kept = has_captions[images]
    while True:
        has_row = np.zeros(len(has_captions) + 1, dtype=np.bool_)  # the last entry is for padding
        has_row[images[kept]] = True
        left = kept & has_row[of_captions].any(axis=1)[captions]
        if left.sum() == kept.sum():
            return left
        kept = left
