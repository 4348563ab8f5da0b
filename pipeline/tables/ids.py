"""Ids of the rows of a table's sides, one file per side beside the lists.

    images.parquet    image_id   of row n of the images
    captions.parquet  caption_id of row n of the captions
    items.parquet     item_id    of row n of one set

Any file may be missing; rows are then known by number alone. The manifest has the files' hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.digests import canonical_json
from aoq.pipeline.scratch import write_atomically
from aoq.pipeline.tables.files import MANIFEST, REMEDY, count_rows, directions_of, read_manifest
from aoq.pipeline.tables.readme import write_table_readme
from aoq.pipeline.tables.rows import rows_by_id

NOUNS = {"images": "image", "captions": "caption"}
ITEM = "item"
"""Name of a row of one set."""


def nouns_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name of a row of each side."""
    return NOUNS if len(directions_of(manifest)) > 1 else {"images": ITEM}


def id_columns(manifest: Mapping[str, Any]) -> dict[str, tuple[str, pa.Schema]]:
    """File of each side's ids, and its column."""
    nouns = nouns_of(manifest)
    return {side: (f"{noun}s.parquet", pa.schema({f"{noun}_id": pa.string()})) for side, noun in nouns.items()}


def write_ids(table: Path, ids: Mapping[str, Sequence[str]]) -> None:
    """Write the ids of some sides into an existing table, and their hashes into its manifest.

    Raises:
        ValueError: unless each row has one id of its own.
    """
    if not ids:
        return
    manifest = read_manifest(table)
    counts, nouns, columns = count_rows(table, manifest), nouns_of(manifest), id_columns(manifest)
    for side, names in ids.items():
        if len(names) != counts[side]:
            raise ValueError(
                f"{len(names)} {nouns[side]} ids are given for a table of {counts[side]}; they are of other data."
            )
        rows_by_id(names, nouns[side])
        file, schema = columns[side]
        column = pa.table([pa.array(names, pa.string())], schema=schema)
        pq.write_table(column, table / file, compression="zstd", write_page_checksum=True)
    hashes = {side: _sha256(names) for side, names in ids.items()}
    manifest["ids"] = {**manifest.get("ids", {}), **hashes}
    write_atomically(table / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    write_table_readme(table)


def read_ids(table: Path, manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read the ids of the sides that have them; refused if they do not match the manifest's hashes."""
    found = {}
    columns, hashes = id_columns(manifest), manifest.get("ids", {})
    if unknown := hashes.keys() - columns.keys():
        raise ValueError(
            f"{table / MANIFEST} has ids of {sorted(unknown)}, and the table's sides are {[*columns]}; {REMEDY}."
        )
    for side, said in hashes.items():
        file, schema = columns[side]
        names = cast(list[str], read_parquet(table / file, schema, remedy=REMEDY)[schema.names[0]].to_pylist())
        if _sha256(names) != said:
            raise ValueError(f"{table / file} does not hold the ids whose sha256 {table / MANIFEST} gives; {REMEDY}.")
        count, different = count_rows(table, manifest)[side], len({*names})
        if not len(names) == different == count:
            raise ValueError(
                f"{table / file} has {len(names)} ids, {different} of them different, and the table has {count} rows, "
                f"each with an id of its own; {REMEDY}."
            )
        found[side] = names
    return found


def _sha256(names: Sequence[str]) -> str:
    return sha256(canonical_json(list(names)).encode()).hexdigest()
