"""Check that a dataset folder is the one that a table was mined on, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from aoq.pipeline.data.folder import Split
from aoq.pipeline.tables.files import count_rows, read_manifest, read_positives
from aoq.pipeline.tables.ids import read_ids
from aoq.pipeline.tables.pairs import Pairs, is_among, pair_keys, paired, pairing_sha256
from aoq.pipeline.tables.table import NegativeTable

REMEDY = "give the data that the table was mined on, or mine again"


@dataclass(frozen=True)
class Origin:
    """The rows that a table was mined on, as far as it says."""

    images: int
    captions: int
    fingerprint: str | None
    ids: Mapping[str, Sequence[str]]
    positives: Pairs | None

    @classmethod
    def of(cls, table: NegativeTable) -> Origin:
        named = table.manifest.get("dataset")
        return cls(len(table.i2t), len(table.t2i), named, table.ids, table.positives)

    @classmethod
    def read(cls, folder: Path) -> Origin:
        """Read what the table in a folder says, without its lists."""
        manifest = read_manifest(folder)
        counts, positives = count_rows(folder, manifest), read_positives(folder, manifest)
        ids = read_ids(folder, manifest)
        return cls(counts["images"], counts["captions"], manifest.get("dataset"), ids, positives)


def require_origin(table: NegativeTable | Path, split: Split, fingerprint: str) -> None:
    """Refuse a split of another fingerprint, or, if the table has none, of other sizes, ids or pairs.

    `table` is one in memory, or a folder, whose lists are not read.

    Raises:
        ValueError: names the difference.
    """
    origin = Origin.read(table) if isinstance(table, Path) else Origin.of(table)
    for noun, found, count in (
        ("images", split.image_count, origin.images),
        ("captions", split.caption_count, origin.captions),
    ):
        if found != count:
            raise ValueError(f"the split has {found} {noun}, and the table {count}; {REMEDY}.")
    mined, captions = origin.fingerprint, split.caption_count
    if mined is not None and mined not in (fingerprint, *_named_by_pairs(origin.positives, captions)):
        raise ValueError(
            f"the table was mined on other data (fingerprint {mined[:12]}, this split's is {fingerprint[:12]}): its "
            f"rows are other images and captions, or in another order; {REMEDY}."
        )
    if "images" in origin.ids and (ids := list(origin.ids["images"])) != split.ids:
        row = next(row for row, (one, other) in enumerate(zip(ids, split.ids, strict=True)) if one != other)
        raise ValueError(
            f"image {row} is {ids[row]!r} in the table and {split.ids[row]!r} in the split, whose rows are others, or "
            f"in another order; {REMEDY}."
        )
    if origin.positives is not None:
        keys = np.sort(pair_keys(origin.positives[:, 0], origin.positives[:, 1], captions))
        pairs = paired(split.image_of)
        if len(missing := pairs[~is_among(pair_keys(pairs[:, 0], pairs[:, 1], captions), keys)]):
            image, caption = missing[0]
            raise ValueError(
                f"caption {caption} is of image {image} in the split, and not in the table, whose rows are others, or "
                f"in another order; {REMEDY}."
            )


def _named_by_pairs(positives: Pairs | None, captions: int) -> list[str]:
    """Hashes that identify the data of a table mined from vectors: its pairs are all that is known of them."""
    if positives is None:
        return []
    in_memory = sha256(np.ascontiguousarray(positives, dtype="<i4").tobytes()).hexdigest()
    return [in_memory, pairing_sha256(positives, captions)]
