"""What the rows of a table's sides are called by those whose vectors they are: a file a side, beside the lists.

    images.parquet    image_id   of row n of the images
    captions.parquet  caption_id of row n of the captions

Either may be missing; then row numbers are all that is known. The manifest has their hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.columns import read_parquet
from aoq.pipeline.digests import canonical_json
from aoq.pipeline.tables.files import MANIFEST, REMEDY, count_lists, read_manifest

FILES = {"images": "images.parquet", "captions": "captions.parquet"}
SCHEMAS = {side: pa.schema({f"{side[:-1]}_id": pa.string()}) for side in FILES}
LISTED = {"images": "i2t.parquet", "captions": "t2i.parquet"}


def write_ids(table: Path, ids: Mapping[str, Sequence[str]]) -> None:
    """Write the ids of some sides into a table that is there, and their hashes into its manifest.

    Raises:
        ValueError: for ids that are not one a row.
    """
    if not ids:
        return
    manifest = read_manifest(table)
    for side, names in ids.items():
        if len(names) != (rows := count_lists(table / LISTED[side])[0]):
            raise ValueError(f"{len(names)} {side[:-1]} ids are given for a table of {rows}; they are of other data.")
        column = pa.table([pa.array(names, pa.string())], schema=SCHEMAS[side])
        pq.write_table(column, table / FILES[side], compression="zstd", write_page_checksum=True)
    hashes = {side: _sha256(names) for side, names in ids.items()}
    manifest["ids"] = {**manifest.get("ids", {}), **hashes}
    write_atomically(table / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def read_ids(table: Path, manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """The ids of the sides that have them; refused where they are not those of the manifest."""
    found = {}
    for side, said in manifest.get("ids", {}).items():
        path = table / FILES[side]
        (name,) = SCHEMAS[side].names
        names = cast(list[str], read_parquet(path, SCHEMAS[side], remedy=REMEDY)[name].to_pylist())
        if _sha256(names) != said:
            raise ValueError(f"{path} does not hold the ids whose sha256 {table / MANIFEST} gives; {REMEDY}.")
        found[side] = names
    return found


def _sha256(names: Sequence[str]) -> str:
    return sha256(canonical_json(list(names)).encode()).hexdigest()
