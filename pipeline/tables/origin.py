"""Check that a dataset folder is the one that a table was mined on, row by row."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from aoq.pipeline.data.folder import Split
from aoq.pipeline.tables.pairs import is_among, pair_keys, paired, pairing_sha256
from aoq.pipeline.tables.table import NegativeTable


def require_origin(table: NegativeTable, split: Split, fingerprint: str) -> None:
    """Refuse a split of another fingerprint, or, if the table has none, of other sizes, ids or pairs.

    Raises:
        ValueError: names the difference.
    """
    for noun, found, count in (
        ("images", split.image_count, len(table.i2t)),
        ("captions", split.caption_count, len(table.t2i)),
    ):
        if found != count:
            raise ValueError(f"the split has {found} {noun}, and the table {count}; it was mined on other data.")
    mined, captions = table.manifest.get("dataset"), split.caption_count
    if mined is not None and mined not in (fingerprint, *_named_by_pairs(table, captions)):
        raise ValueError(
            f"the table was mined on other data (fingerprint {mined[:12]}, this split's is {fingerprint[:12]}): its "
            "rows are other images and captions, or in another order; mine again."
        )
    if "images" in table.ids and (ids := list(table.ids["images"])) != split.ids:
        row = next(row for row, (one, other) in enumerate(zip(ids, split.ids, strict=True)) if one != other)
        raise ValueError(
            f"image {row} is {ids[row]!r} in the table and {split.ids[row]!r} in the split; its data are others, or in "
            "another order, so mine again."
        )
    if table.positives is not None:
        keys = np.sort(pair_keys(table.positives[:, 0], table.positives[:, 1], captions))
        pairs = paired(split.image_of)
        if len(missing := pairs[~is_among(pair_keys(pairs[:, 0], pairs[:, 1], captions), keys)]):
            image, caption = missing[0]
            raise ValueError(
                f"caption {caption} is of image {image} in the split, and not in the table; its data are others, or in "
                "another order, so mine again."
            )


def _named_by_pairs(table: NegativeTable, captions: int) -> list[str]:
    """Hashes that identify the data of a table mined from vectors: its pairs are all that is known of them."""
    if table.positives is None:
        return []
    in_memory = sha256(np.ascontiguousarray(table.positives, dtype="<i4").tobytes()).hexdigest()
    return [in_memory, pairing_sha256(table.positives, captions)]
