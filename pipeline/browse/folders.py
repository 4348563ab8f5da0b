"""Tables' folders to browse, by their own pairs, with texts, ids and pictures that are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aoq.pipeline.browse.source import Album, Source, open_table
from aoq.pipeline.data.folder import Split
from aoq.pipeline.tables.own_rows import TableRows
from aoq.pipeline.tables.table import read_table


def open_folders(
    folders: Sequence[Path],
    texts: Sequence[str] | None = None,
    image_ids: Sequence[str] | None = None,
    caption_ids: Sequence[str] | None = None,
    pictures: Path | None = None,
) -> Source:
    """Open tables of the same data; `pictures` is where an image's file is its id.

    Raises:
        ValueError: for a table of one set, and for captions that have no image or several, and images without any.
    """
    first = folders[0]
    table = read_table(first)
    if table.is_one_set:
        raise ValueError(f"{first} is of one set, and pages show two sides; look at it with: aoq inspect {first}")
    rows = TableRows(table, texts, image_ids, caption_ids)
    if (np.diff(table.own("t2i").offsets) != 1).any() or (np.diff(table.own("i2t").offsets) < 1).any():
        raise ValueError(
            f"{first} has captions of no image or of several, or images of none, and pages show each image with its "
            f"captions; look at it with: aoq inspect {first}"
        )
    captions = list(rows.captions if texts else rows.named or [f"caption {row}" for row in range(len(table.t2i))])
    features = np.broadcast_to(np.float32(0), (len(table.i2t), 1, 1))
    split = Split("table", features, captions, rows.image_of, list(rows.ids))
    tables = tuple(open_table([str(folder)], folder, split) for folder in folders)
    return Source(Album.of(first, split, pictures), tables, ())
