"""A table as a screen sees it, kept beside the table: nothing is taken out of the table itself.

`i2t.parquet` and `t2i.parquet` hold, row for row and place for place,

    anchor_id   int32
    flags       fixed_size_list<uint16>[h]   bit n: rule n of the manifest's `rules` holds
    suspicion   fixed_size_list<float32>[h]  0 to 1

and `manifest.json` the screen, the sha256 of the lists it is of, and what each rule found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, UInt16

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.config.screen import EXCLUSIONS, RULES, Suspected
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.files import MANIFEST, group_rows, readable_errors, table_hashes
from aoq.pipeline.tables.screens.rules import bit

FORMAT_VERSION = 1
EXCLUDED = sum(bit(rule) for rule in EXCLUSIONS)
GROUP_ROWS = 4096


@dataclass(frozen=True)
class Judged:
    """One direction's negatives: which rules hold, and how much they are to be suspected."""

    flags: UInt16[np.ndarray, "anchors h"]
    suspicion: Float32[np.ndarray, "anchors h"]

    @property
    def is_allowed(self) -> Bool[np.ndarray, "anchors h"]:
        """What no rule leaves out, suspected or not."""
        return self.flags & EXCLUDED == 0

    def weights(self, suspected: Suspected) -> Float32[np.ndarray, "anchors h"]:
        """How much of each negative is left: 0 of what a rule leaves out, and of what is suspected 0 (`drop`),
        1 - suspicion (`downweight`) or 1 (`keep`). Padding counts like a negative without flags.
        """
        if suspected == "drop":
            left = (self.flags == 0).astype(np.float32)
        else:
            left = 1 - self.suspicion if suspected == "downweight" else np.ones_like(self.suspicion)
        return np.where(self.is_allowed, left, np.float32(0))


@dataclass(frozen=True)
class View:
    i2t: Judged
    t2i: Judged
    manifest: Mapping[str, Any]

    def __getitem__(self, direction: Direction) -> Judged:
        return self.i2t if direction == "i2t" else self.t2i


def write_view(view: View, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for direction in DIRECTIONS:
        judged = view[direction]
        rows, h = judged.flags.shape
        columns = {
            "anchor_id": pa.array(np.arange(rows, dtype=np.int32)),
            "flags": pa.FixedSizeListArray.from_arrays(pa.array(judged.flags.ravel()), h),
            "suspicion": pa.FixedSizeListArray.from_arrays(pa.array(judged.suspicion.ravel()), h),
        }
        path = folder / f"{direction}.parquet"
        pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True, row_group_size=GROUP_ROWS)
    write_atomically(folder / MANIFEST, (json.dumps(view.manifest, indent=1) + "\n").encode())


def read_view(folder: Path, table: Mapping[str, Any]) -> View:
    """The view, which must be of the table with this manifest."""
    manifest = read_view_manifest(folder, table)
    i2t, t2i = (read_judged(folder / f"{direction}.parquet") for direction in DIRECTIONS)
    return View(i2t, t2i, manifest)


def read_view_manifest(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """What the view says of itself; refused as `read_view` does."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, of = manifest.get("format_version"), manifest.get("table_sha256")
        if "rules" not in manifest:
            raise ValueError("it does not say `rules`: a table's?")
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no {MANIFEST}, so it is no view; `aoq screen` makes one.") from None
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} is no view's ({error}); make it again with `aoq screen`.") from None
    if version != FORMAT_VERSION or manifest["rules"] != list(RULES)[: len(manifest["rules"])]:
        raise ValueError(f"{folder} has format version {version}, this version reads {FORMAT_VERSION}; screen again.")
    if of != table_hashes(table):
        raise ValueError(f"{folder} is a view of another table (its sha256 differ); screen this one.")
    return manifest


def read_judged(path: Path, group: int | None = None) -> Judged:
    """One direction of a view, or one row group of it; every page checked."""
    columns = ["flags", "suspicion"]
    with readable_errors(path, "screen again"), pq.ParquetFile(path, page_checksum_verification=True) as file:
        rows = file.read(columns) if group is None else file.read_row_group(group, columns)
    return Judged(*(rows[name].combine_chunks().flatten().to_numpy().reshape(len(rows), -1) for name in columns))


def judged_groups(path: Path) -> list[int]:
    """How many rows each row group of one direction has."""
    with readable_errors(path, "screen again"), pq.ParquetFile(path) as file:
        return group_rows(file)
