"""A screen's judgement of a table, kept beside it (docs/formats/table.md); the table itself is not changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, UInt32
from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.config.screen import EXCLUSIONS, MATCHING, RULES, Suspected
from aoq.pipeline.files import file_sha256, known_sha256
from aoq.pipeline.reading import parse_json, read_file, reading
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables import files


def bit(rule: str) -> int:
    """Flag of a rule."""
    return 1 << RULES.index(rule)


def flagged_rules(flags: int) -> tuple[str, ...]:
    """List the rules whose bits are set.

    >>> flagged_rules(bit("same_text") | bit("mutual_rank"))
    ('same_text', 'mutual_rank')
    """
    return tuple(rule for rule in RULES if flags & bit(rule))


VIEW_VERSION = 1
EXCLUDED = sum(bit(rule) for rule in EXCLUSIONS)
_GROUP_ROWS = 4096
_VIEW_SCHEMA = pa.schema({"anchor_id": pa.int32(), "flags": pa.list_(pa.uint32()), "suspicion": pa.list_(pa.float32())})
_VIEW_REMEDY = "screen again"


@dataclass(frozen=True)
class Judged:
    """One direction's negatives: the rules that hold, and their suspicion."""

    flags: UInt32[np.ndarray, "anchors h"]
    suspicion: Float32[np.ndarray, "anchors h"]

    @property
    def is_allowed(self) -> Bool[np.ndarray, "anchors h"]:
        """Return whether each negative is left in by all rules, suspected or not."""
        return self.flags & EXCLUDED == 0

    @property
    def matches(self) -> Bool[np.ndarray, "anchors h"]:
        """Return whether a rule that finds matches flags each negative."""
        return self.flags & sum(map(bit, MATCHING)) != 0

    def weights(self, suspected: Suspected) -> Float32[np.ndarray, "anchors h"]:
        """Sampling weight of each negative: 0 if a rule leaves it out, and if it is suspected 0 (`drop`, `positive`),
        1 - suspicion (`downweight`) or 1 (`soft_margin`, `keep`). Padding counts like a negative without flags.
        """
        undoubted = self.flags == 0
        left = {"downweight": 1 - self.suspicion, "soft_margin": 1, "keep": 1, "drop": undoubted, "positive": undoubted}
        return np.where(self.is_allowed, left[suspected], 0).astype(np.float32)


@dataclass(frozen=True)
class View:
    """Both directions; they are the same for one set."""

    i2t: Judged
    t2i: Judged
    manifest: Mapping[str, Any]

    def __getitem__(self, direction: Direction) -> Judged:
        return self.i2t if direction == "i2t" else self.t2i

    def require_some(self, remedy: str) -> None:
        """Refuse a view that leaves no negative."""
        counts = self.manifest["directions"].values()
        if (listed := sum(one["listed"] for one in counts)) and not any(one["left"] for one in counts):
            raise ValueError(f"the rules drop all {listed:,} negatives, so every list would be empty; {remedy}.")


def write_view(view: View, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for direction in view.manifest["directions"]:
        judged = view[direction]
        rows, h = judged.flags.shape
        columns = {
            "anchor_id": pa.array(np.arange(rows, dtype=np.int32)),
            "flags": pa.FixedSizeListArray.from_arrays(pa.array(judged.flags.ravel()), h),
            "suspicion": pa.FixedSizeListArray.from_arrays(pa.array(judged.suspicion.ravel()), h),
        }
        path = folder / f"{direction}.parquet"
        pq.write_table(
            pa.table(columns), path, compression="zstd", write_page_checksum=True, row_group_size=_GROUP_ROWS
        )
        hashes[direction] = file_sha256(path)
    files.write_manifest(folder, {**view.manifest, "sha256": hashes})


class ViewManifest(TypedDict):
    format_version: int
    rules: list[str]
    table_sha256: dict[str, str]
    directions: dict[Direction, dict[str, Any]]
    """Numbers of negatives that the rules meet, take and leave."""
    sha256: NotRequired[dict[Direction, str]]
    """Hashes of the view's files; older views lack them."""


def read_view(folder: Path, table: Mapping[str, Any]) -> View:
    """Read the view, which must belong to the table with this manifest; its files must match its hashes."""
    path, parts = folder / files.MANIFEST, []
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {files.MANIFEST}, so it is not a view; `aoq screen` makes one.")
    with reading(path, "a view's manifest", "make it again with `aoq screen`"):
        manifest = cast(dict[str, Any], parse_json(read_file(path), ViewManifest))
    version, rules = manifest["format_version"], manifest["rules"]
    if version != VIEW_VERSION or rules != list(RULES)[: len(rules)]:
        raise ValueError(f"{folder} has format version {version}, but this aoq reads {VIEW_VERSION}; screen again.")
    if manifest["table_sha256"] != files.table_hashes(table):
        raise ValueError(f"{folder} is a view of another table (its sha256 differ); screen this one.")
    for direction in files.table_directions(table):
        file, about = folder / f"{direction}.parquet", files.search_facts(table, direction)
        with reading(file, "the view's file", _VIEW_REMEDY):
            if "sha256" in manifest and known_sha256(file) != manifest["sha256"].get(direction):
                raise ValueError(f"its sha256 is not the one in {path}")
        rows = read_parquet(file, _VIEW_SCHEMA, remedy=_VIEW_REMEDY)
        files.require_numbers(file, rows)
        columns = (rows[name].combine_chunks() for name in ("flags", "suspicion"))
        judged = Judged(*(column.flatten().to_numpy().reshape(len(rows), -1) for column in columns))
        lists, h = judged.flags.shape
        if (lists, h) != (about.get("anchors", lists), about.get("h", h)) or (lists, h) != judged.suspicion.shape:
            raise ValueError(f"{file} has flags for {lists} lists of {h}, but the table has others; {_VIEW_REMEDY}.")
        parts.append(judged)
    return View(parts[0], parts[-1], manifest)
